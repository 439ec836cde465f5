"""How the `becl` program is stopped: Ctrl-C, or a request to end, is never lost and never a traceback.

Python raises KeyboardInterrupt at whatever it is doing. While a module is imported that can end in half a module or in
a crash, so it waits until then. And code of others can swallow it: a destructor, a comparison called from C, an
`except:`. So it is raised again until somebody has `heard` it. A second signal ends the process at once, also while
the main thread is in compiled code.

Only the program does this. Python code that imports becl keeps its own handlers.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

STOPPED = 130
"""Exit code, as shells have it."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)
LOOK = 0.1  # Seconds until a signal that was swallowed, or has to wait, is raised again.
_HAS_TIMER = hasattr(signal, "setitimer")  # Not on Windows.

_waiting = False
"""A signal came, and nobody has heard it."""


def heard() -> bool:
    """Whether a signal came that nobody has heard; now it is, and is not raised again.

    Whoever catches KeyboardInterrupt and goes on calls this.
    """
    global _waiting
    before, _waiting = _waiting, False
    if before and _HAS_TIMER:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return before


@contextlib.contextmanager
def answered() -> Iterator[None]:
    """Signals of this process raise KeyboardInterrupt until it is heard, inside; afterwards they end the process.

    There is no moment between the two in which a signal would be a traceback.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # A shell has background jobs of a script ignore Ctrl-C.
    mine = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    hook, sys.unraisablehook = sys.unraisablehook, _quietly(sys.unraisablehook)
    with _counted():
        for number in mine:
            signal.signal(number, _raise)
        try:
            yield
        finally:
            for number in mine:
                signal.signal(number, signal.SIG_DFL)
            heard()
            sys.unraisablehook = hook


def _raise(number: int, frame: FrameType | None) -> None:
    """The handler."""
    global _waiting
    del number
    _waiting = True
    _look_later()
    if not _importing(frame):
        raise KeyboardInterrupt


def _look(number: int, frame: FrameType | None) -> None:
    """Raises it again, unless it is on its way."""
    del number
    if not _waiting:
        return
    _look_later()
    if not _importing(frame) and not _on_its_way(sys.exception()):
        raise KeyboardInterrupt


def _look_later() -> None:
    if _HAS_TIMER:
        signal.signal(signal.SIGALRM, _look)
        signal.setitimer(signal.ITIMER_REAL, LOOK)


def _importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _on_its_way(error: BaseException | None) -> bool:
    """Whether an interrupt is being cleaned up after, perhaps as the cause of another error."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__context__
    return False


def _quietly(hook: Any) -> Any:
    """Python's words about errors that nobody can catch, as in destructors; it is raised again elsewhere."""

    def tell(about: Any) -> None:
        if not issubclass(about.exc_type, KeyboardInterrupt):
            hook(about)

    return tell


@contextlib.contextmanager
def _counted() -> Iterator[None]:
    """Has a thread hear of every signal as it comes, inside, whatever the main thread does."""
    theirs, ours = os.pipe()
    os.set_blocking(ours, False)
    before = signal.set_wakeup_fd(ours, warn_on_full_buffer=False)
    # A process that is forked from this one would write into the same pipe.
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_as_before)
    threading.Thread(target=_count, args=(theirs,), daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(ours)


def _count(pipe: int) -> None:
    signals = 0
    while signals < 2:
        if not (numbers := os.read(pipe, 64)):
            os.close(pipe)
            return
        signals += sum(number in SIGNALS for number in numbers)
    with contextlib.suppress(OSError):
        os.write(2, b"\nbecl: stopped at once\n")
    os._exit(STOPPED)


def _as_before() -> None:
    with contextlib.suppress(ValueError):
        signal.set_wakeup_fd(-1)
        for number, handler in zip(SIGNALS, (signal.default_int_handler, signal.SIG_DFL), strict=True):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, handler)
