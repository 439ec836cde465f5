"""Tables of docs/transfer.md: results/transfer/ROBOT/VARIANT/{pretrain,finetune}."""

from typing import NamedTuple

import numpy as np

from becl.measure import stats
from becl.measure.published import EXPERT
from becl.reports.runs import collect
from benchmarks.numbers.files import RESULTS, every, last_rows, markdown, read_json

TRANSFER = RESULTS / "transfer"


class Variant(NamedTuple):
    """A way to pretrain."""

    name: str
    """Of its folder."""
    short: str
    label: str
    options: str
    """Of `becl pretrain`, as they are typed today."""


VARIANTS = (
    Variant(
        "becl-mean-paper",
        "as printed",
        "the formula as printed, the default until 2026-11-16",
        "--method becl-paper --set positive=mean state=next_obs fits_per_update=3 replay.balanced=false",
    ),
    Variant(
        "becl-released-x33",
        "released × 33",
        "the released formula, reward × 33",
        "--set reward_scale=33",
    ),
    Variant("becl-released", "released", "the released formula, today's default", ""),
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


def scores(robot: str) -> str:
    """Returns of every variant on every task."""
    tasks = [task.replace("reach_", "").replace("_", " ") for task in TASKS[robot]]
    return markdown(["", *tasks, "mean"], score_rows(robot, every_seed=True))


def score_rows(robot: str, every_seed: bool) -> list[list[str]]:
    """A row a variant: mean ± standard error of each task, and the mean of return over the expert's."""
    rows = []
    for variant in kept(robot):
        returns = final_scores(robot, variant)
        cells = []
        for task in TASKS[robot]:
            found = returns[f"{robot}_{task}"]
            error = found.std(ddof=1) / len(found) ** 0.5
            seeds = f" ({', '.join(f'{one:.0f}' for one in found)})" if every_seed else ""
            cells.append(f"{found.mean():.0f} ± {error:.0f}{seeds}")
        mean = stats.interval(stats.normalise(returns, EXPERT), stats.mean)
        rows.append([variant.label, *cells, f"**{mean.value:.2f}** [{mean.low:.2f}, {mean.high:.2f}]"])
    return rows


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


def diagnostics(robot: str) -> str:
    """What the networks look like at the end of pretraining, each seed."""
    rows = []
    for column, title in DIAGNOSTICS.items():
        cells = []
        for variant in kept(robot):
            found = last_rows(TRANSFER / robot / variant.name / "pretrain" / "metrics.csv")
            name = "learner_reward" if column == "reward" and "learner_reward" in found[0] else column
            whole = column in ("cells", "actor_rank")
            numbers = (f"{float(row[name]):.0f}" for row in found)
            cells.append(", ".join(numbers) if whole else every(found, name, ".2g"))
        rows.append([title, *cells])
    return markdown(["at the end of pretraining", *(variant.short for variant in kept(robot))], rows)


def values(robot: str) -> str:
    """What the critic expects of a task in the end, and what the replay's rewards are worth."""
    rows = []
    for variant in kept(robot):
        folder = TRANSFER / robot / variant.name / "finetune"
        config = read_json(folder / "config.json")
        replay = config["run"]["replay"]
        steps, gamma = replay["nstep"], replay["gamma"]
        a_step = sum(gamma**k for k in range(steps))  # Rewards are logged as sums of n steps.
        found = last_rows(folder / "metrics.csv")
        cells = []
        for task in TASKS[robot]:
            own = [row for row in found if row["task"] == f"{robot}_{task}"]
            worth = [float(row["reward"]) / a_step / (1 - gamma) for row in own]
            expected = ", ".join(f"{float(row['q']):.0f}" for row in own)
            cells.append(f"{expected} ({', '.join(f'{one:.0f}' for one in worth)})")
        rows.append([variant.short, *cells])
    return markdown(["critic's value (worth of the replay)", *TASKS[robot]], rows)


def readme() -> str:
    """The quadruped in the README."""
    head = ["quadruped, 1M steps of pretraining, 2 seeds", *TASKS["quadruped"], "mean of return / expert's"]
    return markdown(head, score_rows("quadruped", every_seed=False))


def commands(robot: str) -> str:
    """How to run each variant again."""
    lines = []
    for variant in kept(robot):
        config = read_json(TRANSFER / robot / variant.name / "pretrain" / "config.json")
        seeds, steps = len(config["seeds"]), config["steps"]
        out = f"runs/{robot}-{variant.name}"
        words = ["becl pretrain", robot, f"--steps {steps} --seeds {seeds}", variant.options, f"--out {out}"]
        pretrain = " ".join(word for word in words if word)
        lines.append(f"- {variant.short}: `{pretrain}`, then `becl finetune {out}`")
    return "\n".join(lines)
