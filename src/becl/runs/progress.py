"""What long work shows while it runs: how much is done, how fast, and the time left."""

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

from becl.signals import SIGNALS, heard


@contextlib.contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed, or the process asked to end, for loops that stop where it suits them; a second time
    stops at once. What nobody has looked at until the end is KeyboardInterrupt there."""
    pressed = seen = False

    def handle(number: int, frame: object) -> None:
        nonlocal pressed
        del number, frame
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    def look() -> bool:
        nonlocal seen
        seen = seen or pressed
        return pressed

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.signal(number, handle) for number in SIGNALS}
    pressed = heard() or pressed
    try:
        yield look
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if pressed and not seen:
        raise KeyboardInterrupt


class Progress:
    """A live line on a terminal, else a plain line now and then."""

    def __init__(self, total: int, unit: str, write: Callable[[str], None], interval: float):
        self.total, self.unit, self.write, self.interval = total, unit, write, interval
        self.done = self.before = 0
        self.note = ""
        """Shown after the time left."""
        self.running: list[str] = []
        self.compiling = False
        """Whether programs are being compiled now."""
        self.began = self.last = time.monotonic()
        self._left_out: list[tuple[float, float]] = []
        """When programs were compiled, from and to; none of these overlap."""
        self._shares = 0.0
        """Seconds in which others compiled, divided by how many there are."""

    def resume(self, done: int) -> None:
        """Counts what was done before, but not into the rate."""
        self.done += done
        self.before += done

    def start(self) -> None:
        """The work begins now: what came before, such as opening files and environments, is not in the rate."""
        self.began = time.monotonic()
        self._left_out.clear()

    def begin(self, label: str, seed: int) -> None:
        self.running.append(f"{label}/{seed}")
        self.tick()

    def end(self, label: str, seed: int) -> None:
        with contextlib.suppress(ValueError):
            self.running.remove(f"{label}/{seed}")

    def advance(self, amount: int, seeds: int = 1) -> None:
        self.done += amount * seeds
        self.compiling = False
        self.tick()

    def begin_compiling(self) -> None:
        """Says so at once on a live line: it may take a minute, in which nothing else is said."""
        self.compiling = True
        self.say() if self.live else self.tick()

    def end_compiling(self) -> None:
        """Takes the word off a live line, which would else stay while the program runs."""
        self.compiling = False
        if self.live:
            self.say()

    def leave_out(self, seconds: float) -> None:
        """Does not count the time until now in the rate: it was compiled. Some of it may be left out already, because
        what is compiled has parts that were before."""
        now = time.monotonic()
        start = max(now - seconds, self.began)
        while self._left_out and self._left_out[-1][0] >= start:
            self._left_out.pop()
        if self._left_out:
            start = max(start, self._left_out[-1][1])
        self._left_out.append((start, now))

    def leave_out_share(self, seconds: float, workers: int) -> None:
        """Does not count the time that one of several workers has compiled."""
        self._shares += seconds / workers

    def tick(self) -> None:
        if time.monotonic() - self.last >= self.interval:
            self.say()

    @property
    def live(self) -> bool:
        """Whether a line takes the place of the one before."""
        return self.interval < 1

    def say(self) -> None:
        self.last = time.monotonic()
        self.write(self.line())

    @property
    def rate(self) -> float:
        """Since this process goes on with it, without the time in which it compiled."""
        compiled = self._shares + sum(end - start for start, end in self._left_out)
        elapsed = time.monotonic() - self.began - compiled
        return (self.done - self.before) / elapsed if elapsed > 0 else 0.0

    def line(self) -> str:
        rate = self.rate
        left = max(self.total - self.done, 0) / rate if rate else float("inf")
        running = ", ".join(self.running[:4]) + (", …" if len(self.running) > 4 else "")
        done = f"{self.done:,} of {self.total:,} {self.unit} ({100 * self.done / self.total:.0f} %)"
        speed = (f"{rate:.1f}/s" if rate < 100 else f"{rate:,.0f}/s", f"left {clock(left)}")
        if self.compiling:
            speed = (*speed, "compiling") if rate else ("compiling",)
        return " · ".join(part for part in (done, *speed, self.note, running) if part)


def counted(count: int, noun: str) -> str:
    """1 seed, 2 seeds."""
    return f"{count:,} {noun}{'s' if count != 1 else ''}"


def clock(seconds: float) -> str:
    if seconds == float("inf"):
        return "?"
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


@contextlib.contextmanager
def progress(total: int, unit: str) -> Iterator[Progress]:
    """Progress on standard error."""
    with contextlib.ExitStack() as stack:
        if not sys.stderr.isatty():
            bar = Progress(total, unit, lambda line: print(line, file=sys.stderr, flush=True), 15.0)
        else:
            from rich.console import Console
            from rich.live import Live

            live = stack.enter_context(Live(console=Console(stderr=True), refresh_per_second=4, transient=True))
            bar = Progress(total, unit, lambda line: live.update(line), 0.25)
        if _watch is not None:
            _watch(bar)
        yield bar


_watch: Callable[[Progress], None] | None = None


@contextlib.contextmanager
def watching(watch: Callable[[Progress], None]) -> Iterator[None]:
    """Has somebody told of the progress of whatever begins meanwhile in this process."""
    global _watch
    before, _watch = _watch, watch
    try:
        yield
    finally:
        _watch = before


def say(line: str) -> None:
    """Something worth knowing while a run goes on."""
    print(f"becl: {line}", file=sys.stderr, flush=True)
