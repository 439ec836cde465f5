"""Runs as values in Python: what is in their folders, and policies made of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from becl.api.checks import checked, to_path
from becl.api.quiet import printing
from becl.errors import UserError
from becl.experiments.evaluation import choose_seed
from becl.experiments.finetuning import Finetuning
from becl.experiments.pretraining import Pretraining
from becl.experiments.reach import Reached, Towards, check_leads, reach, read_goal, to_goal, towards
from becl.export.find import find_policy, to_skill
from becl.export.policy import Skill
from becl.export.write import export_policy
from becl.options import ReachOptions, fill
from becl.runs.callbacks import Row
from becl.runs.folder import choose_snapshot, kept_snapshots
from becl.runs.result import is_finished
from becl.runs.tables import read_rows
from becl.seeds import to_seeds
from becl.skills import SkillSpace

Place = str | Path
Seeds = int | Sequence[int]
"""How many (5: seeds 0 to 4), or which."""
Environment = Any
"""A name as on the command line, an environment of Gymnasium or dm_env, or a function or class that makes one."""
Which = int | Sequence[float] | None
"""A skill's number, or the numbers of a continuous one; None where there are no skills, or one was learned with."""
Goal = str | Sequence[int | float] | np.ndarray
"""The numbers of an observation, or some of them by place or name: `0:2=3.5,2`. NaN stays as it is."""


@dataclass(frozen=True)
class Run:
    """A pretrained run: seeds of one method, and their skills."""

    folder: Path
    spec: Pretraining
    """All that was asked for."""

    def __repr__(self) -> str:
        seeds = ", ".join(map(str, self.seeds))
        return f"Run({self.method} on {self.env}, seeds {seeds}, {self.spec.steps:,} steps, {str(self.folder)!r})"

    @property
    def env(self) -> str:
        return self.spec.env

    @property
    def method(self) -> str:
        return self.spec.method

    @property
    def seeds(self) -> tuple[int, ...]:
        return self.spec.seeds

    @property
    def skills(self) -> SkillSpace:
        """The space they come from; discrete ones are 0 to `skills.dim` - 1."""
        return self.spec.run.objective.skills

    @property
    def finished(self) -> bool:
        return is_finished(self.folder)

    @property
    def snapshots(self) -> list[int]:
        """Steps after which the networks of all seeds were kept."""
        return sorted(set.intersection(*(set(kept_snapshots(self.folder, seed)) for seed in self.seeds)))

    @property
    def metrics(self) -> list[Row]:
        """Rows of metrics.csv."""
        return read_rows(self.folder / "metrics.csv")

    @checked
    def skill(self, which: Which = None, *, seed: int | None = None, snapshot: int | None = None) -> Skill:
        """The policy of one skill; of the first seed and the last snapshot by default."""
        return to_skill(find_policy(self.folder, to_text(which), seed, snapshot))

    @checked
    def towards(self, goal: Goal, *, seed: int | None = None, snapshot: int | None = None) -> Towards:
        """The policy that leads to a goal by turning its skill at every step; for METRA and its family."""
        check_leads(self.spec)
        seed = choose_seed(self.folder, self.seeds, seed)
        turning = towards(self.spec, self.folder, seed, choose_snapshot(self.folder, [seed], snapshot))
        found = read_goal(goal, self.spec) if isinstance(goal, str) else to_goal(goal, self.spec)
        return Towards(turning, found, self.env)

    @checked
    def reach(
        self,
        goals: str | Sequence[str],
        *,
        within: float | None = None,
        episodes: int = 10,
        steps: int | None = None,
        seeds: Seeds | None = None,
        snapshot: int | None = None,
        out: Place | None = None,
        trust: bool = False,
        quiet: bool = False,
    ) -> Reached:
        """Leads to goals without training and measures how near it comes: `becl reach`, whose options these are."""
        options = fill(
            ReachOptions,
            {
                "run": self.folder,
                "goal": [goals] if isinstance(goals, str) else goals,
                "within": within,
                "episodes": episodes,
                "steps": steps,
                "seeds": None if seeds is None else to_seeds(seeds),
                "snapshot": snapshot,
                "out": out,
                "trust": trust,
            },
        )
        with printing(not quiet):
            return reach(options)

    @checked
    def export(
        self,
        out: Place,
        which: Which = None,
        *,
        seed: int | None = None,
        snapshot: int | None = None,
        force: bool = False,
    ) -> Path:
        """Writes the policy of one skill as .npz, .safetensors or .onnx."""
        export_policy(self.folder, to_path("out", out), to_text(which), seed, snapshot, force=force)
        return Path(out)


@dataclass(frozen=True)
class Finetuned:
    """A finetuned run: policies that have learned tasks, and their scores."""

    folder: Path
    spec: Finetuning
    """All that was asked for."""

    def __repr__(self) -> str:
        seeds = ", ".join(map(str, self.seeds))
        return f"Finetuned({self.method} on {', '.join(self.tasks)}, seeds {seeds}, {str(self.folder)!r})"

    @property
    def method(self) -> str:
        return self.spec.method

    @property
    def tasks(self) -> tuple[str, ...]:
        return self.spec.tasks

    @property
    def seeds(self) -> tuple[int, ...]:
        return self.spec.seeds

    @property
    def finished(self) -> bool:
        return is_finished(self.folder)

    @property
    def scores(self) -> list[Row]:
        """Rows of scores.csv: mean return of each task and seed at every evaluation."""
        return read_rows(self.folder / "scores.csv")

    @property
    def final(self) -> list[Row]:
        """Rows of final.csv: each task's and seed's score, its mean return over many episodes in the end."""
        return read_rows(self.folder / "final.csv")

    @property
    def metrics(self) -> list[Row]:
        """Rows of metrics.csv."""
        return read_rows(self.folder / "metrics.csv")

    @checked
    def policy(self, task: str | None = None, *, seed: int | None = None, which: Which = None) -> Skill:
        """The policy that has learned a task; which skill only where all were tried."""
        return to_skill(find_policy(self.folder, to_text(which), seed, task=task))

    @checked
    def export(
        self, out: Place, task: str | None = None, *, seed: int | None = None, which: Which = None, force: bool = False
    ) -> Path:
        """Writes the policy that has learned a task as .npz, .safetensors or .onnx."""
        export_policy(self.folder, to_path("out", out), to_text(which), seed, task=task, force=force)
        return Path(out)


# --- Helpers ----------------------------------------------------------------------------------------------------------


def to_text(which: Which) -> str | None:
    """A skill as the command line names it."""
    if which is None or isinstance(which, str | int | np.integer):
        return None if which is None else str(which)
    try:
        return ",".join(map(str, which))
    except TypeError:
        raise UserError(f"skill {which!r}: expected its number, or the numbers of a continuous one") from None
