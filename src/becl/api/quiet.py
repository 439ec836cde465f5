"""Commands called from Python: what they print, and their exit codes."""

import contextlib
import io
import sys
from collections.abc import Iterator
from typing import Any

PACKAGE = __name__.partition(".")[0]
BETWEEN = (*sys.stdlib_module_names, "rich", "jaxtyping", "beartype")
"""Modules through which others print: who it was is looked for behind them."""


class Quiet(io.TextIOBase):
    """A stream that drops what this package writes; what callbacks and environments write goes where it went before."""

    def __init__(self, before: Any):
        self._before = before

    def write(self, text: str) -> int:
        return len(text) if ours() else self._before.write(text)

    def flush(self) -> None:
        self._before.flush()

    def isatty(self) -> bool:
        return False


def ours() -> bool:
    """Whether what is being printed is this package's: the nearest caller that is no library tells."""
    frame = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        home = module.partition(".")[0]
        if home == PACKAGE and module != __name__:
            return True
        if home not in (PACKAGE, *BETWEEN):
            return False
        frame = frame.f_back
    return True  # A thread of a library's, such as that of a bar.


@contextlib.contextmanager
def printing(wanted: bool) -> Iterator[None]:
    """What commands print is kept from the terminal where it is not wanted."""
    with contextlib.ExitStack() as stack:
        if not wanted:
            stack.enter_context(contextlib.redirect_stdout(Quiet(sys.stdout)))
            stack.enter_context(contextlib.redirect_stderr(Quiet(sys.stderr)))
        yield


def check_code(code: int) -> None:
    """A command's exit code as Python has it: Ctrl-C raises."""
    if code == 130:
        raise KeyboardInterrupt("stopped after a checkpoint; the same call continues")
