"""How this program was called and installed: the command line, its version, and what installs more of it."""

from contextvars import ContextVar
from pathlib import Path

COMMAND: ContextVar[str | None] = ContextVar("command", default=None)
"""The command line under way; None when called from Python."""


def own_version() -> str | None:
    """None where becl is run from a source tree and not installed."""
    # Not at the top: it takes half of the time in which `becl` starts.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("becl")
    except PackageNotFoundError:
        return None


def own_requirements() -> list[str]:
    """What the installed package asks for, with its extras; nothing where it is not installed."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        return requires("becl") or []
    except PackageNotFoundError:
        return []


def checkout() -> Path | None:
    """The folder of the repository, where becl runs from there."""
    folder = Path(__file__).parents[2]
    return folder if (folder / "pyproject.toml").is_file() else None


def to_install(extra: str) -> str:
    """The command that installs an extra; becl itself is on no package index, so pip would not find it by its name."""
    if folder := checkout():
        return f"pip install -e '{folder}[{extra}]'"
    asked = [text.partition(";") for text in own_requirements()]
    needed = [what.strip() for what, _, when in asked if f'extra == "{extra}"' in when.replace("'", '"')]
    return "pip install " + (" ".join(f"'{what}'" for what in needed) or f"'.[{extra}]' in the repository")
