"""Tables of the documentation that are made from files under results/, so that no number is typed by hand.

A page marks the place of a table with two comments, `<!-- numbers: NAME -->` and `<!-- end of numbers -->`.

    python -m benchmarks.numbers           writes every table anew (`make numbers`)
    python -m benchmarks.numbers --check   fails where a page and its files disagree, as a test does
"""

import csv
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from becl.measure import stats
from becl.measure.published import EXPERT
from becl.reports.runs import collect

ROOT = Path(__file__).parent.parent
TRANSFER = ROOT / "results" / "transfer"
BLOCK = re.compile(r"(<!-- numbers: ([\w-]+) -->\n).*?(<!-- end of numbers -->)", re.DOTALL)


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


# --- Transfer: results/transfer/ROBOT/VARIANT/{pretrain,finetune} -----------------------------------------------------


class Variant(NamedTuple):
    """A way to pretrain, and what becomes of it."""

    name: str
    label: str
    options: str
    """Of `becl pretrain`, as they are typed today."""


VARIANTS = (
    Variant(
        "becl-mean-paper",
        "the paper's formula (`mean`, `paper`); the default until 2026-11-16",
        "--method becl-paper --set positive=mean state=next_obs fits_per_update=3 replay.balanced=false",
    ),
    Variant("becl-released-x33", "the released formula, its reward times 33", "--set reward_scale=33"),
    Variant("becl-released", "the released formula: the default `becl` since", ""),
)
TASKS = {"quadruped": ("stand", "walk", "run", "jump"), "walker": ("flip", "run", "stand", "walk")}
TASKS |= {"jaco": ("reach_bottom_left", "reach_bottom_right", "reach_top_left", "reach_top_right")}


def kept(robot: str) -> list[Variant]:
    """Variants that were run on a robot, in their order."""
    return [one for one in VARIANTS if (TRANSFER / robot / one.name / "finetune").exists()]


def final_scores(robot: str, variant: Variant) -> dict[str, np.ndarray]:
    """Final returns by task, one a seed."""
    (configuration,) = collect([TRANSFER / robot / variant.name / "finetune"]).configurations
    return {task: configuration.scores(task) for task in configuration.outcomes}


def transfer_scores(robot: str) -> str:
    """Returns of every variant on every task."""
    tasks = [task.replace("reach_", "").replace("_", " ") for task in TASKS[robot]]
    return markdown(["", *tasks, "mean"], score_rows(robot, every_seed=True))


def score_rows(robot: str, every_seed: bool) -> list[list[str]]:
    """A row a variant: mean ± standard error of each task, and the mean of return over the expert's."""
    rows = []
    for variant in kept(robot):
        scores = final_scores(robot, variant)
        cells = []
        for task in TASKS[robot]:
            found = scores[f"{robot}_{task}"]
            error = found.std(ddof=1) / len(found) ** 0.5
            seeds = f" ({', '.join(f'{one:.0f}' for one in found)})" if every_seed else ""
            cells.append(f"{found.mean():.0f} ± {error:.0f}{seeds}")
        mean = stats.interval(stats.normalise(scores, EXPERT), stats.mean)
        rows.append([variant.label, *cells, f"**{mean.value:.2f}** [{mean.low:.2f}, {mean.high:.2f}]"])
    return rows


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def last_rows(path: Path) -> list[dict[str, str]]:
    """Those of the last step of metrics.csv."""
    rows = read(path)
    return [row for row in rows if row["step"] == rows[-1]["step"]]


def both(rows: Sequence[Mapping[str, str]], column: str) -> str:
    """The numbers of all seeds."""
    return ", ".join(f"{float(row[column]):.2g}" if row.get(column) else "–" for row in rows)


DIAGNOSTICS = {
    "reward": "reward that the learner sees",
    "cells": "cells visited",
    "saturation": "actions beyond 0.99",
    "before_tanh": "deviation before tanh",
    "actor_dormant": "policy's dormant units",
    "critic_dormant": "critic's dormant units",
    "actor_rank": "rank of the policy's features",
    "actor_gradient": "policy's gradient",
    "actor_idle": "weights with a gradient below ε",
}


def transfer_diagnostics(robot: str) -> str:
    """What the networks look like at the end of pretraining, each seed."""
    rows = []
    for column, title in DIAGNOSTICS.items():
        cells = []
        for variant in kept(robot):
            found = last_rows(TRANSFER / robot / variant.name / "pretrain" / "metrics.csv")
            name = "learner_reward" if column == "reward" and "learner_reward" in found[0] else column
            whole = column in ("cells", "actor_rank")
            numbers = (f"{float(row[name]):.0f}" for row in found)
            cells.append(", ".join(numbers) if whole else both(found, name))
        rows.append([title, *cells])
    return markdown(["at the end of pretraining", *(short(variant) for variant in kept(robot))], rows)


def transfer_values(robot: str) -> str:
    """What the critic expects of a task in the end, and what the replay's rewards are worth."""
    rows = []
    for variant in kept(robot):
        folder = TRANSFER / robot / variant.name / "finetune"
        config = json.loads((folder / "config.json").read_text())
        replay = config["run"]["replay"]
        steps, gamma = replay["nstep"], replay["gamma"]
        a_step = sum(gamma**k for k in range(steps))  # Rewards are logged as sums of n steps.
        found = last_rows(folder / "metrics.csv")
        cells = []
        for task in TASKS[robot]:
            own = [row for row in found if row["task"] == f"{robot}_{task}"]
            worth = [float(row["reward"]) / a_step / (1 - gamma) for row in own]
            values = ", ".join(f"{float(row['q']):.0f}" for row in own)
            cells.append(f"{values} ({', '.join(f'{one:.0f}' for one in worth)})")
        rows.append([short(variant), *cells])
    return markdown(["critic's value (worth of the replay)", *TASKS[robot]], rows)


def short(variant: Variant) -> str:
    return variant.name.removeprefix("becl-").replace("-", ", ")


def transfer_commands(robot: str) -> str:
    """How to run each variant again."""
    lines = []
    for variant in kept(robot):
        config = json.loads((TRANSFER / robot / variant.name / "pretrain" / "config.json").read_text())
        seeds, steps = len(config["seeds"]), config["steps"]
        out = f"runs/{robot}-{variant.name}"
        words = ["becl pretrain", robot, f"--steps {steps} --seeds {seeds}", variant.options, f"--out {out}"]
        pretrain = " ".join(word for word in words if word)
        lines.append(f"- {short(variant)}: `{pretrain}`, then `becl finetune {out}`")
    return "\n".join(lines)


TABLES: dict[str, Callable[[], str]] = {
    "readme-transfer-quadruped": lambda: markdown(
        ["quadruped, 1M steps of pretraining, 2 seeds", *TASKS["quadruped"], "mean of return / expert's"],
        score_rows("quadruped", every_seed=False),
    ),
    "transfer-quadruped-scores": lambda: transfer_scores("quadruped"),
    "transfer-quadruped-diagnostics": lambda: transfer_diagnostics("quadruped"),
    "transfer-quadruped-values": lambda: transfer_values("quadruped"),
    "transfer-quadruped-commands": lambda: transfer_commands("quadruped"),
}


def renewed(text: str) -> str:
    """A page with every table made anew."""

    def fill(match: re.Match) -> str:
        if match[2] not in TABLES:
            raise SystemExit(f"numbers: unknown table {match[2]!r}; known: {', '.join(TABLES)}")
        return f"{match[1]}{TABLES[match[2]]()}\n{match[3]}"

    return BLOCK.sub(fill, text)


def pages() -> list[Path]:
    """Those that have tables of this kind."""
    every = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path for path in every if BLOCK.search(path.read_text())]


def main(args: Sequence[str] = ()) -> int:
    stale: list[Any] = []
    for path in pages():
        text = path.read_text()
        if (new := renewed(text)) != text:
            stale.append(path.relative_to(ROOT))
            if "--check" not in args:
                path.write_text(new)
    for path in stale:
        print(f"{path}: {'does not agree with results/; make numbers' if '--check' in args else 'written anew'}")
    return 1 if stale and "--check" in args else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
