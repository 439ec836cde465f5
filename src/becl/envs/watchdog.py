"""Says which environment does not answer: code of others may wait for ever, and a run with it."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NamedTuple

from becl.errors import printable

PATIENCE = 60.0  # Seconds.
PACKAGES = (f"{os.sep}gymnasium{os.sep}", f"{os.sep}becl{os.sep}", f"{os.sep}dm_control{os.sep}")


class Call(NamedTuple):
    """A call that has not returned yet."""

    name: str
    """Of the environment."""
    copies: int
    began: float
    thread: int


_CALLS: dict[int, Call] = {}
_TOLD: set[int] = set()
_THREAD: list[threading.Thread] = []


@contextlib.contextmanager
def watched(name: str, copies: int) -> Iterator[None]:
    """Says so where what is done inside, a step of all copies of an environment, takes very long."""
    if not _THREAD:
        _THREAD.append(threading.Thread(target=_watch, name="becl-watchdog", daemon=True))
        _THREAD[0].start()
    call = Call(name, copies, time.monotonic(), threading.get_ident())
    _CALLS[id(call)] = call
    try:
        yield
    finally:
        del _CALLS[id(call)]
        _TOLD.discard(id(call))


def _watch() -> None:
    while True:
        time.sleep(PATIENCE / 10)
        look(lambda line: print(f"becl: {line}", file=sys.stderr, flush=True))


def look(say: Callable[[str], None], now: float | None = None) -> None:
    """Tells once of each call that takes too long by now."""
    now = time.monotonic() if now is None else now
    for key, call in list(_CALLS.items()):
        if now - call.began > PATIENCE and key not in _TOLD:
            _TOLD.add(key)
            where = place_of(sys._current_frames().get(call.thread), call.copies)
            say(
                printable(f"{call.name} has not answered for {now - call.began:.0f} s{where}; Ctrl-C twice ends this, ")
                + "and a run goes on from its last checkpoint"
            )


def place_of(frame: FrameType | None, copies: int) -> str:
    """Which copy of an environment a thread is in, and where in its code."""
    code, copy = "", ""
    while frame is not None:
        file, function = frame.f_code.co_filename, frame.f_code.co_name
        if not any(package in file for package in PACKAGES):  # The last of these is the environment's own.
            code = f", in {function} ({os.path.basename(file)}, line {frame.f_lineno})"
        if function in ("step", "reset") and file.endswith("sync_vector_env.py"):
            number = frame.f_locals.get("i")
            copy = f", copy {number + 1} of {copies}" if isinstance(number, int) else ""
            break
        frame = frame.f_back
    return copy + (code if copy else "")
