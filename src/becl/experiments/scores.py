"""Scores of finetuning: the results of evaluations, as rows of scores.csv and final.csv, and in short."""

import contextlib
import csv
import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from becl.experiments.finetuning import Finetuning
from becl.experiments.judge import Judge
from becl.learning.offpolicy import RunState
from becl.learning.protocols import Restorable
from becl.runs.folder import six_digits, to_csv
from becl.runs.log import readable
from becl.runs.progress import counted
from becl.runs.sums import read_checked_text, write_checked
from becl.skills import OneHot
from becl.terminal import console, table


def score_rows(
    finetuning: Finetuning, step: int, skills: np.ndarray, returns: Float[np.ndarray, "lanes episodes"]
) -> list[dict[str, Any]]:
    """The rows of an evaluation, one per lane; `stderr` is the error of the evaluation itself."""
    named = isinstance(finetuning.run.objective.skills, OneHot) and finetuning.skill not in ("resampled", "selector")
    return [
        {
            "task": lane.task,
            "seed": lane.seed,
            "skill": int(np.argmax(skill)) if named else "",
            "step": step,
            "return": float(row.mean()),
            "stderr": float(row.std(ddof=1) / len(row) ** 0.5) if len(row) > 1 else float("nan"),
        }
        for lane, skill, row in zip(finetuning.lanes, skills, returns, strict=True)
    ]


class Scores:
    """The rows of scores.csv, one per evaluation and lane."""

    def __init__(self, finetuning: Finetuning, out: Path):
        self._finetuning, self._path = finetuning, out / "scores.csv"
        self.rows: list[dict[str, Any]] = []

    def add(self, step: int, skills: np.ndarray, returns: Float[np.ndarray, "lanes episodes"]) -> list[dict[str, Any]]:
        """Adds the rows of an evaluation, writes the file, and returns the new rows."""
        newest = score_rows(self._finetuning, step, skills, returns)
        self.rows += [six_digits(row) for row in newest]
        write_checked(self._path, to_csv(self.rows))
        return newest

    def resume(self, rows: list[dict[str, Any]]) -> None:
        """Continues after these rows; later ones are dropped."""
        self.rows = list(rows)
        if rows:
            write_checked(self._path, to_csv(rows))

    @property
    def complete(self) -> bool:
        """Whether the last step was evaluated."""
        return bool(self.rows) and int(self.rows[-1]["step"]) == self._finetuning.steps

    @property
    def last(self) -> dict[str, list[float]]:
        """Returns of the last evaluation by task."""
        newest = self.rows[-len(self._finetuning.lanes) :]
        return {task: [float(r["return"]) for r in newest if r["task"] == task] for task in self._finetuning.tasks}

    @property
    def note(self) -> str:
        """The last evaluation, in a few words."""
        newest = self.last.items()
        return ", ".join(f"{task} {readable(float(np.mean(returns)))}" for task, returns in newest if returns)


def final_scores(
    finetuning: Finetuning, state: RunState, environments: Restorable, keys: jax.Array, interrupted: Callable[[], bool]
) -> list[dict[str, Any]] | None:
    """The rows of final.csv: each lane's mean return over many episodes, from the same starts whatever the method. None
    if it was interrupted."""
    with contextlib.closing(Judge(finetuning, environments, keys, jax.devices()[0])) as judge:
        at_once = environments.num_envs // len(finetuning.lanes)
        for _ in range(-(-finetuning.final_episodes // at_once)):
            judge.submit(finetuning.steps, state)
        while not judge.idle:
            if interrupted():
                return None
            time.sleep(0.02)
        rounds = list(judge.finished())
    returns = np.concatenate([returns for _, _, returns in rounds], 1)[:, : finetuning.final_episodes]
    rows = score_rows(finetuning, finetuning.steps, rounds[0][1], returns)
    return [row | {"episodes": finetuning.final_episodes} for row in rows]


def read_scores(out: Path, name: str = "scores.csv") -> list[dict[str, str]]:
    """Reads the rows of the evaluations along the way or, with `final.csv`, of the final one."""
    return list(csv.DictReader(io.StringIO(read_checked_text(out / name))))


def print_scores(finetuning: Finetuning, out: Path) -> None:
    """Prints the final scores: mean and standard error over seeds and skills."""
    rows = read_scores(out, "final.csv")
    lines = []
    for task in finetuning.tasks:
        found = np.array([float(row["return"]) for row in rows if row["task"] == task])
        error = readable(float(found.std(ddof=1)) / len(found) ** 0.5) if len(found) > 1 else ""
        mean, least, most = (readable(float(value)) for value in (found.mean(), found.min(), found.max()))
        lines.append((task, mean, error, least, most, len(found)))
    columns = ("task", "return", "standard error", "lowest", "highest", "runs")
    title = (
        f"{finetuning.method} after {finetuning.steps:,} steps, {counted(finetuning.final_episodes, 'episode')} each"
    )
    console().print(table(title, columns, lines))
