"""What a maze study shows: a table on the terminal and the paper's figures."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from becl.envs.maze import Geometry
from becl.study import PATHS, Study, finished, seed_path

COLUMNS = {
    "mutual_information": "I(S;Z)",
    "accuracy": "accuracy",
    "coverage": "coverage",
    "coverage_per_skill": "a skill",
    "far": "far skills",
    "geodesic": "distance",
    "particle_entropy": "entropy",
    "mine": "MINE",
    "seconds": "seconds",
}
# Single runs printed in the paper or measured on the authors' released checkpoints (square_a, 10 skills).
PUBLISHED_ENTROPY = {
    "diayn": 1.379,
    "dads": 1.695,
    "becl-released": 1.744,
    "becl-released-temperature-0.01": 2.069,
    "cic-released": 2.290,
}
AUTHORS_RUN = (2.057, 0.651)  # I(S;Z) and coverage of the run drawn in the paper.


def console() -> Any:
    from rich.console import Console

    # Tables keep their shape in a pipe or a log.
    return Console(width=None if Console().is_terminal else 120)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], lines: bool = False) -> Any:
    from rich.table import Table

    made = Table(title=title, show_lines=lines, title_justify="left")
    for name in columns:
        made.add_column(name)
    for row in rows:
        made.add_row(*(str(cell) for cell in row))
    return made


def print_table(summary: dict[str, dict[str, Any]]) -> None:
    """A row a run, mean ± standard deviation over seeds."""
    names = [name for name in COLUMNS if any(name in row for row in summary.values())]
    rows = [(label, len(row["seeds"]), *(_cell(row.get(name)) for name in names)) for label, row in summary.items()]
    console().print(table("mean ± std over seeds", ("run", "seeds", *(COLUMNS[name] for name in names)), rows))


def _cell(value: dict[str, float | None] | None) -> str:
    if value is None:
        return ""
    mean, std = value["mean"], value["std"]
    digits = 0 if mean is not None and abs(mean) >= 20 else 2
    return f"{mean:.{digits}f}" + ("" if std is None else f" ±{std:.{digits}f}")


def plan_text(plan: Geometry) -> str:
    """A floor plan in characters: two a cell, walls between cells not drawn."""
    start = plan.cells[plan.distance == 0][0]
    low, high = plan.cells.min(0), plan.cells.max(0)
    inside = {tuple(cell) for cell in plan.cells}
    rows = []
    for y in range(high[1], low[1] - 1, -1):
        cells = ((x, y) for x in range(low[0], high[0] + 1))
        rows.append("".join("S " if c == tuple(start) else "██" if c not in inside else "· " for c in cells))
    return "\n".join(rows)


def draw(study: Study, out: Path, demo: bool = False) -> list[Path]:
    """The figures of a study from its finished seeds; returns the PNGs."""
    from becl import figures

    results = finished(study, out)
    made = {}
    if demo:
        made["demo"] = figures.demo_figure([_panel(study, out, rows[0]) for rows in results.values()])
    elif study.kind == "temperature":
        made["temperature"] = figures.panels([_typical(study, out, rows) for rows in results.values()], 4)
    elif study.kind == "skills":
        complete = _rectangle(study, results)
        if complete:
            grid = [_typical(study, out, results[label], title="") for row in complete.values() for label in row]
            columns = [label.split("-")[-2] for label in next(iter(complete.values()))]
            made["skills"] = figures.panels(
                grid, len(columns), row_labels=list(complete), column_labels=[f"{n} skills" for n in columns]
            )
    else:
        grid = [_typical(study, out, rows) for rows in results.values()]
        made["comparison"] = figures.panels(grid, min(4, len(grid)))
    seeds = [seed for seed in study.seeds if all(any(r["seed"] == seed for r in rows) for rows in results.values())]
    if not demo and len(seeds) > 1:
        every = [_panel(study, out, row, title="") for rows in results.values() for row in rows if row["seed"] in seeds]
        made["every-seed"] = figures.panels(
            every, len(seeds), row_labels=list(results), column_labels=[f"seed {seed}" for seed in seeds]
        )
    scores = [
        figures.Score(label, row["mutual_information"], row["coverage"])
        for label, rows in results.items()
        for row in rows
    ]
    if not demo:
        run = next(iter(study.runs.values()))
        standard = study.kind != "skills" and run.env.name == "square_a" and run.objective.skills.dim == 10
        made["tradeoff"] = figures.tradeoff(
            scores,
            reference=AUTHORS_RUN if standard else None,
            num_skills=run.objective.skills.dim if study.kind != "skills" else None,
        )
        curves = {label: _curves(out, label, rows) for label, rows in results.items()}
        cycles = next(iter(curves.values()))[0]
        made["learning-curves"] = figures.learning_curves({k: v[1] for k, v in curves.items()}, cycles)
    if study.mine_iterations:
        made["estimates"] = _estimates(study, out, results)
    return [figures.save(figure, out / name)[0] for name, figure in made.items()]


def _estimates(study: Study, out: Path, results: dict[str, list[dict[str, Any]]]) -> Any:
    from becl import figures

    curves = {label: np.stack([_arrays(out, row)["mine"] for row in rows]) for label, rows in results.items()}
    entropies = {label: np.array([row["particle_entropy"] for row in rows]) for label, rows in results.items()}
    iterations = np.arange(1, study.mine_iterations + 1)
    count = next(iter(study.runs.values())).objective.skills.dim
    return figures.estimates(curves, iterations, entropies, count, published=PUBLISHED_ENTROPY)


def _arrays(out: Path, row: dict[str, Any]) -> dict[str, np.ndarray]:
    with np.load(seed_path(out, row["label"], row["seed"], "npz")) as arrays:
        return dict(arrays)


def _panel(study: Study, out: Path, row: dict[str, Any], title: str | None = None) -> Any:
    from becl import figures

    run = study.runs[row["label"]]
    subtitle = f"I(S;Z) {row['mutual_information']:.2f} · coverage {100 * row['coverage']:.0f} % · {row['far']:.0f} far"
    shown = row["label"] if title is None else title
    return figures.Panel(shown, subtitle, _arrays(out, row)["paths"][:, :PATHS], run.env.geometry)


def _typical(study: Study, out: Path, rows: list[dict[str, Any]], title: str | None = None) -> Any:
    """The seed in the middle by I(S;Z): neither the best nor the worst is shown for the method."""
    ordered = sorted(rows, key=lambda row: row["mutual_information"])
    return _panel(study, out, ordered[(len(ordered) - 1) // 2], title)


def _rectangle(study: Study, results: dict[str, Any]) -> dict[str, list[str]]:
    """Labels of the skills study by method, for methods all of whose counts have a finished seed."""
    grid: dict[str, list[str]] = {}
    for label in study.runs:
        grid.setdefault(label.rsplit("-", 2)[0], []).append(label)
    return {method: labels for method, labels in grid.items() if all(label in results for label in labels)}


def _curves(out: Path, label: str, rows: list[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    read = []
    for row in rows:
        with seed_path(out, label, row["seed"], "csv").open() as file:
            read.append([(float(line["cycle"]), float(line["reward"])) for line in csv.DictReader(file)])
    values = np.array(read)
    return values[0, :, 0].astype(int), values[:, :, 1]
