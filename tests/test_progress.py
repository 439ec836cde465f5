"""What a bar says while programs compile: by a clock of the test's own, and by what JAX tells its listeners."""

import multiprocessing
import threading
import time

import jax.monitoring
import pytest

from becl.experiments import workers
from becl.runs.compiling import COMPILED, LOWERED, TRACED, watch_compiling
from becl.runs.progress import Progress


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "monotonic", made)
    return made


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def bar(clock, lines) -> Progress:
    return Progress(1000, "steps", lines.append, interval=0.25)


def tell(event: str, seconds: float) -> None:
    jax.monitoring.record_event_duration_secs(event, seconds)


def test_compiling_is_said_at_once_and_left_out_of_the_time(bar, clock, lines):
    with watch_compiling(bar):
        clock.now += 2
        tell(TRACED, 2.0)
        clock.now += 1
        tell(LOWERED, 1.0)
        assert lines == ["0 of 1,000 steps (0 %) · compiling"]  # Said before it is compiled, which takes a while.
        clock.now += 57
        tell(COMPILED, 57.0)
        bar.advance(100)
        assert bar.rate == 0.0  # No time has gone by that was work.
        clock.now += 10
        bar.advance(100)
    assert bar.line() == "200 of 1,000 steps (20 %) · 20.0/s · left 0:40"


def test_in_a_log_compiling_is_a_line_now_and_then(clock, lines):
    bar = Progress(1000, "steps", lines.append, interval=15.0)
    with watch_compiling(bar):
        for seconds in (1, 13, 2, 5):
            clock.now += seconds
            tell(LOWERED, 0.5)
            tell(COMPILED, 0.5)
    assert lines == ["0 of 1,000 steps (0 %) · compiling"]


def test_parts_that_were_compiled_before_the_whole_count_once(bar, clock):
    clock.now += 10
    with watch_compiling(bar):
        clock.now += 5
        tell(TRACED, 5.0)  # Of a part,
        clock.now += 3
        tell(TRACED, 8.0)  # and of the whole.
    bar.advance(100)
    assert bar.rate == pytest.approx(10.0)


def test_what_was_compiled_before_the_bar_began_is_not_subtracted(bar, clock):
    clock.now += 4
    with watch_compiling(bar):
        tell(COMPILED, 3600.0)
        clock.now += 10
    bar.advance(50)
    assert bar.rate == pytest.approx(5.0)


def test_a_program_that_compiles_later_says_so_beside_the_rate(bar, clock, lines):
    with watch_compiling(bar):
        clock.now += 20
        bar.advance(200)
        clock.now += 15
        bar.begin_compiling()
        assert lines[-1] == "200 of 1,000 steps (20 %) · 5.7/s · left 2:20 · compiling"
        tell(COMPILED, 15.0)
        assert bar.line() == "200 of 1,000 steps (20 %) · 10.0/s · left 1:20"


def test_other_threads_and_other_events_are_nobodys_business(bar, clock):
    with watch_compiling(bar):
        clock.now += 10
        thread = threading.Thread(target=tell, args=(COMPILED, 8.0))
        thread.start()
        thread.join()
        tell("/jax/something/else", 8.0)
    tell(COMPILED, 8.0)  # Nobody listens any more.
    bar.advance(100)
    assert bar.rate == pytest.approx(10.0)


def test_opening_files_is_not_in_the_rate(bar, clock):
    clock.now += 300
    bar.start()
    clock.now += 10
    bar.advance(100)
    assert bar.line() == "100 of 1,000 steps (10 %) · 10.0/s · left 1:30"


def test_the_first_cycles_of_a_worker_are_compiled(bar, clock, lines):
    pipes = [multiprocessing.Pipe() for _ in range(2)]
    one, other = team = [workers._Worker(None, here) for here, _ in pipes]
    for number, said in ((0, ("cycles", 25)), (0, ("cycles", 25)), (0, ("done", None)), (1, ("cycles", 25))):
        pipes[number][1].send(said)
    waiting = [("becl", 0), ("cic", 0), ("becl", 1)]
    for worker in team:
        workers._give(worker, waiting, team, bar)
    assert bar.line() == "0 of 1,000 steps (0 %) · compiling · becl/0, cic/0"
    clock.now += 30
    workers._hear(one, team, bar)
    assert "compiling" in bar.line()  # The other still does.
    workers._hear(other, team, bar)
    assert bar.line().startswith("50 of 1,000 steps (5 %) · 0.0/s · left ? · becl/0")
    clock.now += 5
    workers._hear(one, team, bar)
    assert bar.line().startswith("75 of 1,000 steps (8 %) · 5.0/s · left 3:05")
    workers._hear(one, team, bar)
    workers._give(one, waiting, team, bar)
    assert one.compiling_since is None  # It has compiled for this method.
    assert "compiling" not in bar.line()
