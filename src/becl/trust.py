"""Whose code is run: an environment from outside the package is imported only where somebody asked for its code.

Folders of runs and sweep files name environments too, `py:module:function` or `gym:module/ID`, and may come from
anybody. So a name is trusted when it was typed as the command's own argument, or with `--trust`, or `trust=True` from
Python, which trust what a folder or file names.
"""

from becl.errors import UserError
from becl.invocation import COMMAND

_TRUSTED: set[str] = set()
"""Names of environments, of this process."""


def trust(*names: str) -> None:
    """Agrees that the code behind these environments is run in this process; our own (`walker`) have no prefix."""
    _TRUSTED.update(name for name in names if ":" in name)


def is_trusted(name: str) -> bool:
    return name in _TRUSTED


def check_trusted(name: str, module: str) -> None:
    """Raises if an environment would import a module that nobody asked for; says what to type."""
    if is_trusted(name):
        return
    command = COMMAND.get()
    how = "pass trust=True, as in becl.load(folder, trust=True)" if command is None else f"type {command} --trust"
    raise UserError(
        f"{name} runs code from outside becl, the module {module!r}, which was not asked for: if you know what it "
        f"does, {how}"
    )
