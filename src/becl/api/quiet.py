"""Commands called from Python: what they print, and their exit codes."""

import contextlib
import io
from collections.abc import Iterator


@contextlib.contextmanager
def printing(wanted: bool) -> Iterator[None]:
    """What commands print is kept from the terminal where it is not wanted."""
    with contextlib.ExitStack() as stack:
        if not wanted:
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        yield


def check_code(code: int) -> None:
    """A command's exit code as Python has it: Ctrl-C raises."""
    if code == 130:
        raise KeyboardInterrupt("stopped after a checkpoint; the same call continues")
