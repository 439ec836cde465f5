"""Runs finetuning: what a session does with it, and what the command prints."""

import contextlib
import functools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from becl.envs.external import is_external
from becl.experiments import memory
from becl.experiments.encoder_weights import keep_weights
from becl.experiments.environments import check_here, make_envs, make_unseen, seen_line
from becl.experiments.finetuning import Finetuning, lane_keys
from becl.experiments.judge import Judge
from becl.experiments.lanes import MakeEnvironments, environments_of
from becl.experiments.policies import save_policies
from becl.experiments.scores import Scores, final_scores, print_scores, read_scores
from becl.experiments.snapshots import smaller_steps
from becl.experiments.transfer import load_learners, prepared
from becl.experiments.verdicts import finetuning_lines
from becl.learning.controller import Controller, Stretches
from becl.learning.offpolicy import RunState
from becl.learning.protocols import Restorable
from becl.learning.seeing import behind_camera
from becl.measure.coverage import Coverage
from becl.measure.skills import skills_of
from becl.options import FinetuneOptions
from becl.runs.callbacks import Callback
from becl.runs.folder import six_digits, to_csv
from becl.runs.log import lane_name
from becl.runs.progress import Progress, clock, counted, say
from becl.runs.recording import Restored
from becl.runs.session import Kept, Session, run_command
from becl.runs.sums import write_checked

CHECKPOINT_EVERY = FinetuneOptions.checkpoint_every
# Evaluation has other starts than training, and the final score yet others, which are the same for every method.
EVALUATION_SEED = 2**32
FINAL_SEED = 2**33
FOREIGN_AT_ONCE = 10  # Copies per lane of an external environment, in which the final episodes are played.


class Finetuner:
    """Finetuning as a session runs it: a judge evaluates beside the training, and at the end."""

    coverage: Coverage | None = None
    begun, spent = 0, 0.0

    def __init__(self, finetuning: Finetuning, out: Path, make: MakeEnvironments = make_envs):
        self.finetuning, self.out = finetuning, out
        self._make: Callable[..., Restorable] = make
        self.run, self.keys = finetuning.run, lane_keys(finetuning)
        self.labels: list[dict[str, Any]] = [lane.label for lane in finetuning.lanes]
        self.steps, self.unit, self.log_every = finetuning.steps, finetuning.unit, finetuning.eval_every
        self.result: dict[str, Any] = {"lanes": len(self.labels)}
        self._pretrained = load_learners(finetuning) if finetuning.snapshot is not None else None
        self._scores = Scores(finetuning, out)
        self._due = finetuning.eval_every

    def config(self) -> dict[str, Any]:
        return self.finetuning.config()

    def open(self, stack: contextlib.ExitStack) -> Restorable:
        if self.finetuning.skill != "meta":  # A controller's actions are skills.
            check_here(self.finetuning.env, self.run)
        keep_weights(self.run, self.out)
        environments = stack.enter_context(contextlib.closing(self._surroundings(self.run.envs)))
        testing = self._surroundings(self.finetuning.eval_episodes, EVALUATION_SEED)
        self._judge = stack.enter_context(contextlib.closing(Judge(self.finetuning, testing, self.keys)))
        return environments

    def restore(self, session: Session, found: Restored) -> None:
        self._due = int(found.about["due"])
        self._scores.resume(found.about["scores"])
        self._judge.set_state(found.extra, self.out / "checkpoint")

    def prepare(self, state: RunState) -> RunState:
        state = prepared(self.finetuning, state, self._pretrained)
        self._judge.submit(0, state)
        return state

    def note(self) -> str:
        return self._scores.note

    def after_step(self, session: Session) -> None:
        assert session.state is not None
        while self._due <= session.step and self._due < self.steps:
            self._judge.submit(self._due, session.state)
            self._due += self.finetuning.eval_every
        self._collect(session)

    def checkpoint(self, session: Session) -> Kept:
        self._collect(session, wait=True)
        return self._judge.get_state(), {"due": self._due, "scores": self._scores.rows}

    def interrupted(self, session: Session) -> None:
        pass

    def finish(self, session: Session) -> bool:
        finetuning, state = self.finetuning, session.state
        assert state is not None
        if self.steps > 0 and not self._scores.complete:
            self._judge.submit(self.steps, state)
        self._collect(session, wait=True)
        session.bar.note = f"{finetuning.final_episodes} final episodes"
        session.bar.tick()
        at_once = finetuning.final_episodes
        if is_external(finetuning.env):
            at_once = min(at_once, FOREIGN_AT_ONCE)
        finals = final_scores(finetuning, state, self._surroundings(at_once, FINAL_SEED), self.keys, session.stopping)
        if finals is None:
            session.save()
            return False
        session.listeners.final(self.steps, finals)
        write_checked(self.out / "final.csv", to_csv([six_digits(row) for row in finals]))
        save_policies(finetuning, self.out, state)
        return True

    def failure(self, step: int, what: str, lanes: Sequence[int]) -> str:
        names = ", ".join(lane_name(self.labels[i]) for i in lanes)
        return f"{names}: {what} is not a number after {step:,} steps; {smaller_steps(self.run)}"

    def _surroundings(self, each: int, offset: int = 0) -> Restorable:
        """`each` environments per lane; for a controller, environments in which a step is a stretch of one skill."""
        finetuning, make, length = self.finetuning, self._make, self.finetuning.episode_length
        if length is not None:
            make = functools.partial(make, episode_length=length)
        elif self.run.vision is not None and is_external(finetuning.env):
            make = functools.partial(make_unseen, vision=self.run.vision)
        found = behind_camera(environments_of(finetuning.lanes, each, make, offset), self.run.vision)
        if not isinstance(self.run.learner, Controller):
            return found
        assert self._pretrained is not None
        assert finetuning.pretraining is not None
        before = finetuning.pretraining.run
        learner: Any = before.learner
        skills = skills_of(before.objective.skills)
        return Stretches(found, learner, self._pretrained[0].actor, skills, self.run.learner, before.env.obs_dim)

    def _collect(self, session: Session, wait: bool = False) -> None:
        """Writes down the evaluations that are done, or waits for all of them."""
        for step, skills, returns in self._judge.finished(wait):
            session.listeners.score(step, self._scores.add(step, skills, returns))


def finetune(
    finetuning: Finetuning,
    out: Path,
    bar: Progress | None = None,
    make: MakeEnvironments = make_envs,
    checkpoint_every: int = CHECKPOINT_EVERY,
    say: Callable[[str], None] = lambda line: None,
    callbacks: Sequence[Callback] = (),
) -> bool:
    """Trains in an opened folder, from its last checkpoint on; returns True when finished, False when interrupted."""
    return Session(Finetuner(finetuning, out, make), out, checkpoint_every, bar, say, callbacks).run()


def check_memory(finetuning: Finetuning) -> str:
    """What a run needs and sees, as in pretraining; refuses a run that cannot fit."""
    line = memory.check_memory(finetuning.run, len(finetuning.lanes), "lanes")
    return "\n".join(filter(None, (line, seen_line(finetuning.env, finetuning.run.vision))))


def describe(finetuning: Finetuning) -> Iterator[str]:
    """Yields the lines of a dry run."""
    yield json.dumps(finetuning.config(), indent=1)
    parts = [counted(len(finetuning.tasks), "task"), counted(len(finetuning.seeds), "seed")]
    parts += [counted(finetuning.run.objective.skills.dim, "skill")] if finetuning.skill == "each" else []
    yield f"{counted(len(finetuning.lanes), 'lane')}: {' × '.join(parts)}"
    yield "memory: " + check_memory(finetuning)


def run_finetuning(
    finetuning: Finetuning,
    out: Path,
    needs: str,
    checkpoint_every: int = CHECKPOINT_EVERY,
    callbacks: Sequence[Callback] = (),
    raises: bool = False,
) -> int:
    """Runs the command: says what it does, trains, and returns an exit code; `raises` as in `run_pretraining`."""
    lanes, steps = len(finetuning.lanes), finetuning.steps
    runs = f"{counted(lanes, 'lane')} × {steps:,} steps"

    def train(bar: Progress) -> bool:
        return finetune(finetuning, out, bar, checkpoint_every=checkpoint_every, say=say, callbacks=callbacks)

    def show(result: dict[str, Any]) -> None:
        print_scores(finetuning, out)
        speed = f"{result['steps_per_second']:,.0f} steps/s, {clock(result['seconds'])}"
        print(f"{speed} · scores.csv and policies in {out}/")
        print(*finetuning_lines(finetuning, read_scores(out), out), sep="\n")

    heading = f"{finetuning.method} on {', '.join(finetuning.tasks)} · {runs} · {out}/\nmemory: {needs}"
    return run_command(out, heading, max(steps * lanes, 1), train, show, raises)
