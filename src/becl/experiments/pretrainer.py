"""Runs pretraining: what a session does with it, and what the command prints."""

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from becl.envs.external import is_external
from becl.experiments import memory
from becl.experiments.encoder_weights import keep_weights
from becl.experiments.environments import check_here, make_envs, seen_line
from becl.experiments.going_on import continued, seconds_before
from becl.experiments.pretraining import Pretraining, seed_keys
from becl.experiments.snapshots import failure, save_snapshots
from becl.experiments.trial import estimated_rate, time_loop
from becl.experiments.verdicts import pretraining_lines
from becl.learning.offpolicy import RunState
from becl.learning.protocols import Restorable
from becl.measure.coverage import Coverage, grid_of
from becl.options import PretrainOptions
from becl.runs.callbacks import Callback
from becl.runs.progress import Progress, clock, counted, say
from becl.runs.recording import Restored
from becl.runs.session import Kept, Session, run_command
from becl.runs.troubles import Watch

CHECKPOINT_EVERY = PretrainOptions.checkpoint_every


class Pretrainer:
    """Pretraining as a session runs it: coverage is measured, and snapshots are saved along the way."""

    def __init__(self, pretraining: Pretraining, out: Path):
        self.pretraining, self.out = pretraining, out
        self.run, self.keys = pretraining.sized, seed_keys(pretraining.seeds)
        self.labels: list[dict[str, Any]] = [{"seed": seed} for seed in pretraining.seeds]
        self.steps, self.unit, self.log_every = pretraining.steps, pretraining.unit, pretraining.log_every
        self.coverage = None if is_external(pretraining.env) else Coverage(grid_of(pretraining.env), len(self.labels))
        self.result: dict[str, Any] = {} if pretraining.chance is None else {"chance_reward": pretraining.chance}
        self.begun, self.spent = pretraining.begun, seconds_before(out) if pretraining.begun else 0.0
        self._due = [step for step in pretraining.snapshots[:-1] if step > pretraining.begun]
        """Steps of the snapshots to come, except the last, which is taken at the end."""

    def config(self) -> dict[str, Any]:
        return self.pretraining.config()

    def open(self, stack: contextlib.ExitStack) -> Restorable:
        keep_weights(self.run, self.out)
        count = self.run.envs * len(self.labels)
        pretraining = self.pretraining
        check_here(pretraining.env, self.run)
        environments = make_envs(pretraining.env, count, pretraining.seeds, self.run.vision, pretraining.episode_length)
        return stack.enter_context(contextlib.closing(environments))

    def restore(self, session: Session, found: Restored) -> None:
        self._due = [step for step in self._due if step > session.step]

    def prepare(self, state: RunState) -> RunState:
        return continued(self.pretraining, self.out, state) if self.begun else state

    def note(self) -> str:
        return ""

    def after_step(self, session: Session) -> None:
        if self._due and session.step >= self._due[0]:
            self._save(session, self._due.pop(0))

    def checkpoint(self, session: Session) -> Kept:
        return {}, {}

    def interrupted(self, session: Session) -> None:
        self._save(session, session.step)

    def finish(self, session: Session) -> bool:
        self._save(session, self.steps)
        return True

    def failure(self, step: int, what: str, lanes: Sequence[int]) -> str:
        return failure(self.pretraining, self.out, step, what, lanes)

    def _save(self, session: Session, step: int) -> None:
        assert session.state is not None
        save_snapshots(self.pretraining, self.out, session.state, step)


def pretrain(
    pretraining: Pretraining,
    out: Path,
    bar: Progress | None = None,
    checkpoint_every: int = CHECKPOINT_EVERY,
    say: Callable[[str], None] = lambda line: None,
    callbacks: Sequence[Callback] = (),
) -> bool:
    """Trains in an opened folder, from its last checkpoint on; returns True when finished, False when interrupted."""
    experiment, callbacks = Pretrainer(pretraining, out), [Watch(say), *callbacks]
    return Session(experiment, out, checkpoint_every, bar, say, callbacks).run()


def check_memory(pretraining: Pretraining) -> str:
    """A line that says how much memory a run needs, and one that says what is seen of images that are somebody else's;
    refuses a run that cannot fit."""
    line = memory.check_memory(pretraining.sized, len(pretraining.seeds), "seeds")
    return "\n".join(filter(None, (line, seen_line(pretraining.env, pretraining.run.vision))))


def describe(pretraining: Pretraining) -> Iterator[str]:
    """Yields the lines of a dry run."""
    yield json.dumps(pretraining.config(), indent=1)
    yield "memory: " + check_memory(pretraining)
    on_cpu = jax.default_backend() == "cpu"
    rate = estimated_rate(pretraining) if on_cpu else time_loop(pretraining)
    total = pretraining.steps * len(pretraining.seeds) / rate
    how = "estimated from the arithmetic of an update" if on_cpu else "timed here"
    yield f"time: about {clock(total)} at {shown(rate)} environment steps/s ({how}, compiling not counted)"


def shown(rate: float) -> str:
    """A rate, also one of less than a step per second."""
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"


def run_pretraining(
    pretraining: Pretraining,
    out: Path,
    needs: str,
    checkpoint_every: int = CHECKPOINT_EVERY,
    callbacks: Sequence[Callback] = (),
    raises: bool = False,
    verdict: bool = True,
) -> int:
    """Runs the command: says what it does and what memory it `needs`, trains, and returns an exit code.

    A run that cannot continue is an exit code too or, with `raises`, the error. The `verdict` in the end says what was
    learned and what to type next.
    """
    seeds, steps = counted(len(pretraining.seeds), "seed"), pretraining.steps

    def show(result: dict[str, Any]) -> None:
        speed = f"{result['steps_per_second']:,.0f} steps/s, {clock(result['seconds'])}"
        print(f"{speed} · metrics.csv and snapshots in {out}/")
        if verdict:
            print(*pretraining_lines(pretraining, out), sep="\n")

    return run_command(
        out,
        f"{pretraining.method} on {pretraining.env} · {seeds} × {steps:,} steps · {out}/\nmemory: {needs}",
        steps * len(pretraining.seeds),
        lambda bar: pretrain(pretraining, out, bar, checkpoint_every, say, callbacks),
        show,
        raises,
    )
