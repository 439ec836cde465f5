"""What is printed on a terminal: tables, and the two streams of the program, which do not fail.

Nobody may listen to a program: its output goes to a pipe that is closed, a disk that is full, or nowhere at all. A
command that makes files goes on without it. One that only shows something has nothing more to do, and ends.
"""

import codecs
import contextlib
import errno
import os
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

from becl.errors import printable

CLOSED_PIPE = 141
"""Exit code of a program whose output nobody reads any more, as shells have it (128 + SIGPIPE)."""
IN_ASCII = {"·": "-", "−": "-", "–": "-", "×": "x", "±": "+/-", "→": "->", "≤": "<=", "≥": ">=", "κ": "kappa"}


def console() -> Any:
    from rich.console import Console

    # Tables keep their shape in a pipe or a log.
    return Console(width=None if Console().is_terminal else 120)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], lines: bool = False) -> Any:
    """A table of texts as they are: names come from files of others, and neither markup nor control characters count.

    A cell that is rich's own `Text` keeps its style.
    """
    from rich.table import Table
    from rich.text import Text

    def shown(cell: Any) -> Text:
        return cell if isinstance(cell, Text) else Text(printable(str(cell)))

    grid = Table(title=Text(printable(title), "italic"), show_lines=lines, title_justify="left")
    for name in columns:
        grid.add_column(shown(name))
    for row in rows:
        grid.add_row(*map(shown, row))
    return grid


# --- The streams of the program ---------------------------------------------------------------------------------------


Loss = Literal["ends", "counts", "ignored"]
"""What follows where output is lost: the program ends at once; or in the end, with a line; or nothing."""


class Output:
    """A stream that takes everything: after the first failure, what is written is dropped."""

    def __init__(self, stream: Any):
        self._stream = stream
        self.error: OSError | None = None
        """The first failure."""
        self.loss: Loss = "ignored"

    @property
    def code(self) -> int:
        """The exit code that a loss means."""
        if self.error is None or self.loss == "ignored":
            return 0
        if self.error.errno != errno.EPIPE:
            return 1
        return CLOSED_PIPE if self.loss == "ends" else 0

    def write(self, text: str) -> int:
        self._try(lambda: self._stream.write(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _try(self, do: Any) -> None:
        if self.error is None:
            try:
                do()
            except ValueError:  # It was closed.
                self.error = OSError(errno.EBADF, os.strerror(errno.EBADF))
            except OSError as error:
                self.error = error
                # Also for what is left in buffers, and for compiled code.
                with contextlib.suppress(OSError, ValueError):
                    _to_nowhere(self._stream.fileno())
        if self.loss == "ends" and self.error is not None:
            raise SystemExit(self.code)


def _to_nowhere(handle: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    if nowhere != handle:
        os.dup2(nowhere, handle)
        os.close(nowhere)


@contextlib.contextmanager
def streams() -> Iterator[Output]:
    """Standard output and error that do not fail, inside; gives the first."""
    closed = [number for number in range(3) if not _is_open(number)]
    for number in closed:  # Else the next file that is opened would be standard output.
        _to_nowhere(number)
    before = sys.stdout, sys.stderr
    out, error = (Output(_opened(stream)) for stream in before)
    if 1 in closed:
        out.error = OSError(errno.EBADF, os.strerror(errno.EBADF))
    sys.stdout, sys.stderr = out, error  # type: ignore[assignment]
    try:
        yield out
    finally:
        sys.stdout, sys.stderr = before


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _opened(stream: Any) -> Any:
    """A standard stream, or one to nowhere in its place, in which every letter can be written."""
    codecs.register_error("becl", _in_other_letters)
    if stream is None:
        stream = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if (reconfigure := getattr(stream, "reconfigure", None)) is not None:
        reconfigure(errors="becl")
    return stream


def _in_other_letters(error: UnicodeError) -> tuple[str, int]:
    """Letters that a terminal does not have in those that every terminal has."""
    assert isinstance(error, UnicodeEncodeError)
    return "".join(map(_in_ascii, error.object[error.start : error.end])), error.end


def _in_ascii(letter: str) -> str:
    plain = unicodedata.normalize("NFKD", letter).encode("ascii", "ignore").decode()
    return IN_ASCII.get(letter) or plain or letter.encode("ascii", "backslashreplace").decode()
