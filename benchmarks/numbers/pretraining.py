"""Pretraining on the walker: results/pretrain."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from benchmarks.numbers.files import RESULTS, every, markdown, read
from benchmarks.numbers.speed import run_rate, run_rate_with_compiling

PRETRAIN = RESULTS / "pretrain"


def rewards(folder: str, begin: int, end: int) -> str:
    """Mean reward of the rows after a step up to another, seed by seed."""
    rows = [row for row in read(PRETRAIN / folder / "metrics.csv") if begin < near(row["step"]) <= end]
    seeds = sorted({row["seed"] for row in rows}, key=int)
    return ", ".join(f"{np.mean([float(row['reward']) for row in rows if row['seed'] == seed]):.3f}" for seed in seeds)


def near(step: str) -> int:
    """Rows come with the first step of all environments that is not before the one asked for."""
    return round(int(step), -3)


def cells_at(folder: str, step: int) -> str:
    """Cells visited up to a step, seed by seed."""
    rows = [row for row in read(PRETRAIN / folder / "metrics.csv") if near(row["step"]) == step]
    return ", ".join(f"{float(row['cells']):,.0f}" for row in rows)


def compared(
    columns: Mapping[str, str], stretches: Sequence[int], cells: Mapping[str, int], rate: tuple[str, Sequence[str]]
) -> str:
    """Rewards over stretches of steps, cells visited and rates of several runs, side by side."""
    rows = [
        [f"{begin:,} to {end:,}", *(rewards(folder, begin, end) for folder in columns.values())]
        for begin, end in pairwise(stretches)
    ]
    rows += [[title, *(cells_at(folder, step) for folder in columns.values())] for title, step in cells.items()]
    rows.append([rate[0], *rate[1]])
    return markdown(["steps", *columns], rows)


def precision() -> str:
    runs = {"bf16": "precision/bf16", "float32": "precision/float32"}
    rate = ("steps/s of all three", [run_rate(f"pretrain/{folder}") for folder in runs.values()])
    return compared(runs, (10_000, 30_000, 60_000, 90_000, 120_000), {"cells visited in 120,000": 120_000}, rate)


ENVS = (10_000, 50_000, 100_000, 150_000, 200_000)


def envs_small() -> str:
    runs = {"`--envs 1`": "envs/small-1", "`--envs 32`": "envs/small-32"}
    rate = ("steps/s of all three", [run_rate_with_compiling(f"pretrain/{folder}") for folder in runs.values()])
    return compared(runs, ENVS, {"cells visited": 200_000}, rate)


def envs_full() -> str:
    runs = {"`--envs 1`": "envs/full-1", "`--envs 32`": "precision/bf16"}
    rate = (
        "steps/s of all three, with start and compiling",
        [run_rate_with_compiling(f"pretrain/{folder}") for folder in runs.values()],
    )
    cells = {"cells visited in 10,000": 10_000, "in 100,000": 100_000, "in 200,000": 200_000}
    return compared(runs, ENVS, cells, rate)


# --- What skills do ---------------------------------------------------------------------------------------------------

EVALUATED = "walker-evaluation/snapshots-and-variants.csv"


def evaluated(run: str, step: str) -> list[dict[str, str]]:
    """Rows of `becl evaluate` for a run and snapshot, one a seed; the robot that never acts has one row."""
    return [row for row in read(PRETRAIN / EVALUATED) if (row["run"], row["step"]) == (run, step)]


def listed() -> list[tuple[str, str]]:
    """Runs and snapshots in the order of the file."""
    return list(dict.fromkeys((row["run"], row["step"]) for row in read(PRETRAIN / EVALUATED)))


ROWS = {
    "no action": "no action",
    "untrained": "untrained",
    "becl mean (short run)": "`mean` †",
    "becl released (short run)": "`released` †",
    "becl random (short run)": "`random` †",
    "becl first (short run)": "`first` †",
    "becl": "BeCL",
    "diayn": "DIAYN",
}
WIDE = {
    "stand, best": ("stand_best", ".0f"),
    "stand, mean": ("stand_mean", ".0f"),
    "run, best": ("run_best", ".0f"),
    "cells": ("cells", ",.0f"),
    "I(S;Z) (chance)": ("mutual_information", ".2f"),
    "accuracy": ("knn_accuracy", ".2f"),
    "distance, m": ("distance", ".2f"),
    "joint speed": ("joint_speed", ".2f"),
    "still": ("still", ".2f"),
}


def steps_named(step: str) -> str:
    count = int(step)
    return f"{count / 1e6:g}M" if count >= 1e6 else f"{count / 1000:.0f}k" if count else "0"


def skills() -> str:
    """What the skills of every snapshot and variant do."""
    rows = []
    for run, step in listed():
        if run in ROWS:
            found = evaluated(run, step)
            rows.append([ROWS[run], steps_named(step), *(wide(found, *shape) for shape in WIDE.values())])
    found = ten_episodes()
    rows.append(["BeCL, ten episodes", "2M", *(wide(found, *shape) for shape in WIDE.values())])
    return markdown(["", "steps", *WIDE], rows)


def wide(rows: Sequence[Mapping[str, str]], column: str, shape: str) -> str:
    if column != "mutual_information":
        return every(rows, column, shape)
    pairs = ((float(row[column]), float(row["chance_information"])) for row in rows)
    return ", ".join(f"{abs(one):.2f} ({abs(chance):.2f})" for one, chance in pairs)


def ten_episodes() -> list[dict[str, str]]:
    """The evaluation of the last snapshot with ten episodes, with the returns it needs from a file of their own."""
    folder = PRETRAIN / "walker-becl" / "evaluation"
    rows = read(folder / "skills-2000000.csv")
    returns = read(folder / "zero-shot-2000000.csv")
    for row in rows:
        for task in ("stand", "run"):
            found = [
                float(one["return"]) for one in returns if (one["seed"], one["task"]) == (row["seed"], f"walker_{task}")
            ]
            row |= {f"{task}_best": str(max(found)), f"{task}_mean": str(np.mean(found))}
    return rows


SHORT = {
    ("no action", "0"): "no action at all",
    ("untrained", "0"): "untrained networks",
    ("becl", "100000"): "BeCL, 100,000 steps",
    ("becl", "500000"): "BeCL, 500,000",
    ("becl", "2000000"): "BeCL, 2 million",
    ("diayn", "500000"): "DIAYN, 500,000",
}


def skills_in_short() -> str:
    """How well skills are told apart, whether they move, and what the best one earns."""
    rows = []
    for key, label in SHORT.items():
        found = evaluated(*key)
        moves = (every(found, column, ".2f") for column in ("knn_accuracy", "joint_speed", "still", "distance"))
        best = " / ".join(every(found, f"{task}_best", ".0f") for task in ("stand", "run", "flip"))
        rows.append([label, *moves, best])
    head = [
        "skill recognised from a state (1/16 by guessing)",
        "joint speed, rad/s",
        "still¹",
        "distance, m",
        "best skill on stand / run / flip",
    ]
    return markdown(["", *head], rows)
