"""One run, from its folder to its result: the same steps whatever is trained, with hooks for what differs.

A session holds a folder (lock, environments, checkpoint, log and listeners), trains from the last checkpoint on, saves
on the way and closes everything however it ends. An `Experiment` says what is trained and does the rest in its own way:
pretraining keeps snapshots, finetuning evaluates and scores.

The paper's maze study is not run by a session. Its cycles run by the dozen in one compiled program, without a host's
environments or a replay between them; a study has one lock and one bar for many small runs in several processes, and a
run that is interrupted just ends. What is the same is shared: the checkpoint's files, `Clock` and `checkpoint_due`.
"""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from becl.envs.pictures import in_numbers
from becl.errors import Failed, UserError
from becl.learning.offpolicy import OffPolicy, RunState
from becl.learning.protocols import Restorable
from becl.learning.training import Diverged, Loop, TrainingStep, train
from becl.measure.coverage import Coverage
from becl.runs.callbacks import Callback, listening
from becl.runs.checkpoint import Checkpoints
from becl.runs.compiling import progress
from becl.runs.failures import explained
from becl.runs.folder import shareable
from becl.runs.lock import locked
from becl.runs.log import Log, log_after
from becl.runs.progress import Progress, interrupts
from becl.runs.provenance import provenance
from becl.runs.recording import NotFinite, Recorder, Restored, fitting
from becl.runs.result import identity, read_result
from becl.runs.sums import write_checked
from becl.signals import STOPPED, heard

Kept = tuple[dict[str, np.ndarray], dict[str, Any]]
"""Arrays and JSON values that a checkpoint keeps for an experiment."""


@runtime_checkable
class Experiment(Protocol):
    """What is trained, and what is done with it in a way of its own. Hooks come in the order they are called in."""

    run: OffPolicy
    keys: jax.Array
    """One of each lane."""
    labels: list[dict[str, Any]]
    """What tells the lanes apart in tables, for example {"seed": 3}."""
    steps: int
    """Steps of the environment, for each lane."""
    unit: int
    """Environment steps in a step of the loop."""
    begun: int
    """Steps that a shorter run has taken whose networks this one goes on from; 0 where it begins at the beginning."""
    spent: float
    """Seconds that the shorter run took."""
    log_every: int
    coverage: Coverage | None
    result: dict[str, Any]
    """What result.json says beside the time."""

    def config(self) -> dict[str, Any]:
        """What config.json holds."""
        ...

    def open(self, stack: contextlib.ExitStack) -> Restorable:
        """Environments to train in; the stack closes them, and whatever else is opened here."""
        ...

    def restore(self, session: "Session", found: Restored) -> None:
        """Goes on from what `checkpoint` gave."""
        ...

    def prepare(self, state: RunState) -> RunState:
        """The state of all lanes before the first step of a run that begins."""
        ...

    def note(self) -> str:
        """What the bar is to show; nothing for the log's own note."""
        ...

    def after_step(self, session: "Session") -> None:
        """A step was taken, and counted."""
        ...

    def checkpoint(self, session: "Session") -> Kept:
        """What a checkpoint needs beside the loop."""
        ...

    def interrupted(self, session: "Session") -> None:
        """The run stops before its last step; its checkpoint is written."""
        ...

    def finish(self, session: "Session") -> bool:
        """Writes what is kept after the last step; False where it was interrupted in that."""
        ...

    def failure(self, step: int, what: str, lanes: Sequence[int]) -> str:
        """The message about lanes whose numbers are none, with advice."""
        ...


class Clock:
    """Seconds that a run has taken, those before a checkpoint too."""

    def __init__(self, spent: float = 0.0):
        self._began = time.perf_counter() - spent

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began


def checkpoint_due(before: int, now: int, every: int, last: int) -> bool:
    """Whether a multiple of `every` was passed; the last step needs no checkpoint."""
    return before // every < now // every and now < last


class Session:
    """A run while it is trained."""

    def __init__(
        self,
        experiment: Experiment,
        out: Path,
        checkpoint_every: int,
        bar: Progress | None = None,
        say: Callable[[str], None] = lambda line: None,
        callbacks: Sequence[Callback] = (),
    ):
        self.experiment, self.out, self.checkpoint_every = experiment, out, checkpoint_every
        self.bar = bar or Progress(1, "steps", lambda line: None, float("inf"))
        self.say, self._callbacks = say, callbacks
        self.step = 0
        """Environment steps of each lane."""
        self.state: RunState | None = None
        self._loop: Loop | None = None

    def run(self) -> bool:
        """Trains into the folder, which is open, from its last checkpoint on; False where it was interrupted."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(locked(self.out))
            self._open(stack)
            with self._failing():
                finished = self._train() and self.experiment.finish(self)
            if finished:
                self._finish()
        return finished

    def save(self) -> None:
        """Begins to write a checkpoint, of a run that has taken a step."""
        if self._loop is not None:
            arrays, about = self.experiment.checkpoint(self)
            about |= {"seconds": self.clock.seconds}
            self._recorder.save(self.step, self._loop, self._log, arrays, about)

    def _open(self, stack: contextlib.ExitStack) -> None:
        experiment, checkpoint = self.experiment, self.out / "checkpoint"
        self._environments = experiment.open(stack)
        config, run = shareable(experiment.config(), self.out), experiment.run
        self._recorder = Recorder(run, experiment.keys, self._environments, checkpoint, config, self.say)
        stack.callback(self._recorder.close)
        found = self._recorder.find()
        begun, spent = experiment.begun, experiment.spent
        lanes = experiment.labels, run.envs, experiment.log_every, experiment.coverage
        with fitting(checkpoint):
            resume = None if found is None else found.log
            if resume is None and begun:
                resume = log_after(self.out, begun, *lanes)
            self._log = Log(self.out, *lanes, resume, self.say)
            stack.callback(self._log.close)
            if found is not None:
                self._loop, self.state, spent = found.loop, found.loop.state, float(found.about["seconds"])
                self.step = found.loop.number * run.envs * experiment.unit
                if not found.loop.number > 0 or min(self.step, experiment.steps) != found.step:
                    raise UserError(f"{checkpoint}: step {found.step} is not after {found.loop.number} steps of all")
                experiment.restore(self, found)
        self.step = self.step or begun
        if self.step:
            anew = "" if found is not None else " from its snapshots, with an empty replay"
            self.say(f"continues after {self.step:,} steps{anew}")
            self.bar.resume(self.step * len(experiment.labels))
        self.listeners = stack.enter_context(listening(self._callbacks, self.out, config))
        self.stopping = stack.enter_context(interrupts())
        self.clock = Clock(spent)

    def _begin(self, fresh: RunState) -> RunState:
        self.state = self.experiment.prepare(fresh)
        return self.state

    def _train(self) -> bool:
        experiment = self.experiment
        steps, begun = (one // experiment.unit for one in (experiment.steps, experiment.begun))
        self.bar.start()
        for now in train(experiment.run, self._environments, experiment.keys, steps, self._begin, self._loop, begun):
            before = self.step
            self._advance(now)
            stopping = self.listeners.log(self.step, self._log) or self.stopping()
            if stopping or checkpoint_due(before, self.step, self.checkpoint_every, experiment.steps):
                self.save()
            if stopping:
                experiment.interrupted(self)
                return False
        return True

    def _advance(self, now: TrainingStep) -> None:
        """Takes a step of the loop into the log, the bar and the experiment."""
        experiment, advanced = self.experiment, self.experiment.run.envs * self.experiment.unit
        self._loop, self.state = now.loop, now.state
        self.step = min(now.step * experiment.unit, experiment.steps)
        self._log.add(now.metrics, in_numbers(self._environments, now.outcome))
        self.bar.note = experiment.note() or self._log.note
        self.bar.advance(advanced * len(experiment.labels))
        experiment.after_step(self)
        due = self._log.due(self.step) or self.step >= experiment.steps
        if due and (bad := self._log.write(self.step, now.diagnose)):
            raise Failed(experiment.failure(self.step, "a loss", bad))

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Ends a run whose numbers are none with a line that says whose, and what to try."""
        try:
            yield
        except Diverged as error:
            step = error.step * self.experiment.unit
            raise Failed(self.experiment.failure(step, "an action", error.seeds.tolist())) from None
        except NotFinite as error:
            raise Failed(self.experiment.failure(self.step, error.name, error.seeds)) from None

    def _finish(self) -> None:
        """Writes result.json, which says that the run is finished; its checkpoint is not needed any more."""
        experiment, seconds = self.experiment, self.clock.seconds
        rate = experiment.steps * len(experiment.labels) / seconds
        result = {"steps": experiment.steps, **experiment.result, "seconds": round(seconds, 1)}
        result |= {"steps_per_second": round(rate, 1), **identity(self.out), **provenance()}
        write_checked(self.out / "result.json", json.dumps(result, indent=1) + "\n")
        self._recorder.finish()
        self.listeners.finished = True


def run_command(
    out: Path,
    heading: str,
    total: int,
    work: Callable[[Progress], bool],
    show: Callable[[dict[str, Any]], None],
    raises: bool = False,
) -> int:
    """A run as a command: says what it does, works with a bar, shows the result, and gives an exit code.

    `work` is told to stop by Ctrl-C and then gives False. A run that cannot go on is an exit code too, or with `raises`
    the error itself.
    """
    if read_result(out) is not None:
        Checkpoints(out / "checkpoint", {}).clear()  # Of a run that was killed as it ended.
        print(f"already finished: {out}/")
        return 0
    print(heading, flush=True)
    with progress(total, "steps") as bar:
        try:
            with explained(out):
                finished = work(bar)
        except Failed as error:
            if raises:
                raise
            print(f"becl: failed: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            heard()
            finished = False
    if not finished:
        over = read_result(out) is not None  # In the moment when the signal came.
        how = "the run is finished" if over else f"the same command, or becl resume {out}, continues"
        print(f"becl: stopped; {how}", flush=True)
        return STOPPED
    result = read_result(out)
    assert result is not None
    show(result)
    return 0
