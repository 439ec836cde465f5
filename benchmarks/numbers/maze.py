"""Tables of the maze study: results/maze, and METRA beside it: results/plugins."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from becl.measure.headings import MAZE_HEADINGS
from becl.runs.progress import counted
from benchmarks.numbers.files import RESULTS, markdown, read, read_json


def study(name: str) -> str:
    """Mean ± standard deviation over seeds of every configuration of a study."""
    summary = read_json(RESULTS / "maze" / name / "summary.json")
    columns = [column for column in MAZE_HEADINGS if column in next(iter(summary.values()))]
    rows = []
    for label, found in summary.items():
        cells = (measured(found[column]["mean"], found[column]["std"], column) for column in columns)
        rows.append([labelled(label), f"{len(found['seeds'])}", *cells])
    return markdown(["", "seeds", *(MAZE_HEADINGS[column] for column in columns)], rows)


def mean(name: str, label: str, column: str) -> str:
    """One number of a study: the mean over seeds."""
    return spread(name, label, column).partition(" ±")[0]


def spread(name: str, label: str, column: str) -> str:
    """The same with its standard deviation."""
    found = read_json(RESULTS / "maze" / name / "summary.json")[label][column]
    return measured(found["mean"], found["std"], column)


def search() -> str:
    """The candidates for the default of `becl`, every lane."""
    rows = []
    for place in sorted((RESULTS / "maze" / "search").iterdir()):
        config = read_json(place / "config.json")
        ((label, run),) = config["runs"].items()
        formula = "released" if run["objective"]["spec"] == "BeCLReleasedMaze" else "printed, nearest positive"
        setting = [run["objective"]["temperature"], run["objective"]["ramp"], run["learner"]["entropy_weight"]]
        for path in sorted((place / label).glob("seed-*.json")):
            found = read_json(path)
            numbers = [f"{found[name]:.2f}" for name in ("mutual_information", "coverage")]
            words = [formula, *(f"{value:g}" for value in setting), f"{config['cycles']:,}", f"{found['seed']}"]
            rows.append([*words, *numbers, f"{found['far']:.1f}"])
    head = ["formula", "κ", "ramp", "entropy weight", "cycles", "seed", "I(S;Z)", "coverage", "far skills"]
    return markdown(head, sorted(rows, key=lambda row: row[:6]))


TRIPLE = ("mutual_information", "coverage", "far")
FIGURE_4 = {
    "DIAYN": ("diayn", "diayn"),
    "DADS": ("dads", "dads"),
    "CIC with random features": ("cic", "cic-released"),
    "BeCL, κ 0.5, drawn in Figure 4": ("becl", "becl-released"),
    "BeCL as printed": ("becl-paper", "becl-paper"),
}
"""Names in authors.csv, or ours where they have no such run; then runs of the comparison and of Figure 4."""


def figure_4() -> str:
    """Information, coverage and far skills of the authors' runs, with our settings and with theirs."""
    authors = {row["run"]: row for row in read(RESULTS / "maze" / "authors.csv") if row["maze"] == "square_a"}
    studies = [read_json(RESULTS / "maze" / name / "summary.json") for name in ("comparison", "figure4")]
    rows = []
    for name, labels in FIGURE_4.items():
        cells = [triple([float(authors[name][column]) for column in TRIPLE]) if name in authors else ""]
        for study, label in zip(studies, labels, strict=True):
            cells.append(triple([study[label][column]["mean"] for column in TRIPLE]) + f" (`{label}`)")
        rows.append([name, *cells])
    heads = [f"{kind} settings, {seeds_of(study)}" for kind, study in zip(("our", "published"), studies, strict=True)]
    return markdown(["", "authors' run", *heads], rows)


def seeds_of(study: Mapping[str, Any]) -> str:
    """How many seeds the runs of a study have."""
    counts = sorted({len(run["seeds"]) for run in study.values()})
    return counted(counts[0], "seed") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"


def triple(values: Sequence[float]) -> str:
    return " / ".join(f"{value:.{digits}f}" for value, digits in zip(values, (2, 2, 1), strict=True))


def run_seconds(label: str) -> str:
    """Seconds of a run of the comparison, compiling included, mean over seeds."""
    return f"{read_json(RESULTS / 'maze' / 'comparison' / 'summary.json')[label]['seconds']['mean']:.0f}"


def labelled(name: str) -> str:
    _, temperature, value = name.partition("temperature-")
    return f"κ = {value}" if temperature else f"`{name}`"


def measured(mean: float, deviation: float, column: str) -> str:
    digits = 1 if column in ("far", "geodesic") else 2
    return f"{mean:.{digits}f} ± {deviation:.{digits}f}"


def cycle() -> str:
    """Where the time of a cycle goes."""
    rows = []
    parts = ("two collections", "fit", "reward", "PPO update")
    for row in read(RESULTS / "speed" / "maze-cycle.csv"):
        whole = float(row["cycle"])
        shares = [f"{row[part]} ({100 * float(row[part]) / whole:.0f} %)" for part in parts]
        rows.append([row["method"], *shares, row["cycle"], f"{float(row['cycle']) * 2.5:.0f} s"])
    return markdown(["", *parts, "cycle", "2,500 cycles"], rows)


# --- METRA ------------------------------------------------------------------------------------------------------------

METHODS = ("metra", "becl", "diayn")
SQUARE = {
    "distance": "distance, cells",
    "cells_per_skill": "cells per skill",
    "coverage_in_training": "visited in training",
    "speed": "speed",
    "mutual_information": "I(S;Z), nats of 2.77",
    "knn_accuracy": "accuracy",
}
SHAPES = {"cells_per_skill": ".1f", "coverage_in_training": ".0%"}


def bold_highest(values: Sequence[float], cells: Sequence[str]) -> list[str]:
    return [f"**{cell}**" if value == max(values) else cell for value, cell in zip(values, cells, strict=True)]


def metra_square() -> str:
    rows = {row["method"]: row for row in read(RESULTS / "plugins" / "square-skills.csv")}
    columns = []
    for column in SQUARE:
        values = [float(rows[method][column]) for method in METHODS]
        cells = [f"{value:{SHAPES.get(column, '.2f')}}".replace("%", " %") for value in values]
        columns.append(bold_highest(values, cells))
    return markdown(
        ["", *SQUARE.values()], [[f"`{name}`", *cells] for name, *cells in zip(METHODS, *columns, strict=True)]
    )


def metra_study() -> str:
    rows = read(RESULTS / "plugins" / "maze-comparison.csv")
    names = {
        name: title for name, title in MAZE_HEADINGS.items() if name in ("mutual_information", "accuracy", "coverage")
    }
    names |= {"far": "far skills", "geodesic": "distance, cells"}
    columns = []
    for column in names:
        found = [np.array([float(row[column]) for row in rows if row["label"] == method]) for method in METHODS]
        digits = 1 if column == "far" else 2
        cells = [f"{one.mean():.{digits}f} ± {one.std(ddof=1):.{digits}f}" for one in found]
        columns.append(bold_highest([one.mean() for one in found], cells))
    return markdown(
        ["", *names.values()], [[f"`{name}`", *cells] for name, *cells in zip(METHODS, *columns, strict=True)]
    )
