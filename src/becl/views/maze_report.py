"""What a maze study shows: a table on the terminal and the paper's figures."""

import csv
import io
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from becl.envs.maze import Geometry
from becl.errors import UserError
from becl.experiments.maze_kinds import KINDS
from becl.experiments.maze_results import finished
from becl.experiments.maze_study import Study, seed_path
from becl.measure.headings import MAZE_HEADINGS
from becl.runs.sums import read_checked, read_checked_text
from becl.terminal import console, table
from becl.views.figures.curves import learning_curves
from becl.views.figures.information import SeedScore, estimates, tradeoff
from becl.views.figures.maze import Panel, demo_figure, panels
from becl.views.figures.style import save

COLUMNS = MAZE_HEADINGS | {"seconds": "seconds"}
# Single runs printed in the paper or measured on the authors' released checkpoints (square_a, 10 skills).
PUBLISHED_ENTROPY = {
    "diayn": 1.379,
    "dads": 1.695,
    "becl-released": 1.744,
    "becl-released-temperature-0.01": 2.069,
    "cic-released": 2.290,
}
MOST_SEEDS = 10  # Side by side in a figure.
AUTHORS_RUN = (2.057, 0.651)  # I(S;Z) and coverage of the run drawn in the paper.


def pretty(label: str) -> str:
    """A run's label as a person would write it: `becl-temperature-0.5` is `BeCL, κ = 0.5`."""
    for name in ("BeCL", "DIAYN", "DADS", "CIC"):
        label = re.sub(rf"^{name.lower()}\b", name, label)
    label = re.sub(r"-temperature-(\S+)$", r", κ = \1", label)
    return re.sub(r"-(\d+)-skills$", r", \1 skills", label)


def print_table(summary: dict[str, dict[str, Any]], study: Study) -> None:
    """One row per run: mean ± standard deviation over seeds."""
    names = [name for name in COLUMNS if any(name in row for row in summary.values())]
    rows = [(label, len(row["seeds"]), *(_cell(row.get(name)) for name in names)) for label, row in summary.items()]
    guessed = sorted({run.objective.skills.dim for run in study.runs.values()})
    by_guessing = ", ".join(f"{1 / count:.2g} with {count} skills" for count in guessed)
    title = f"{study.setting} settings; mean ± std over seeds; guessing has an accuracy of {by_guessing}"
    console().print(table(title, ("run", "seeds", *(COLUMNS[name] for name in names)), rows))


def _cell(value: dict[str, float | None] | None) -> str:
    if value is None:
        return ""
    mean, std = value["mean"], value["std"]
    digits = 0 if mean is not None and abs(mean) >= 20 else 2
    return f"{mean:.{digits}f}" + ("" if std is None else f" ±{std:.{digits}f}")


def plan_text(plan: Geometry) -> str:
    """A floor plan in characters: walls as lines, S the start, # outside."""
    low, high = plan.cells.min(0).tolist(), plan.cells.max(0).tolist()
    start = plan.cells[plan.distance == 0][0]
    columns, rows = range(low[0], high[0] + 1), range(high[1], low[1] - 1, -1)

    def at(grid: np.ndarray, x: int, y: int) -> bool:
        return bool(grid[x - plan.origin[0], y - plan.origin[1]])

    def floor(x: int, y: int) -> str:
        return "S " if (x, y) == tuple(start) else "  " if at(plan.inside, x, y) else "##"

    lines = []
    for y in [*rows, low[1] - 1]:
        lines.append("+" + "+".join("--" if at(plan.wall_above, x, y) else "  " for x in columns) + "+")
        if y >= low[1]:
            edges = ["|" if at(plan.wall_right, x, y) else " " for x in range(low[0] - 1, high[0] + 1)]
            lines.append(edges[0] + "".join(floor(x, y) + edge for x, edge in zip(columns, edges[1:], strict=True)))
    return "\n".join(lines)


def draw(study: Study, out: Path, demo: bool = False) -> list[Path]:
    """The figures of a study from its finished seeds; returns the PNGs."""
    results = finished(study, out)
    figures = {}
    if demo:
        figures["demo"] = demo_figure([_panel(study, out, rows[0]) for rows in results.values()])
    elif KINDS[study.kind].varied == "temperature":
        figures["temperature"] = panels([_typical(study, out, rows) for rows in results.values()], min(4, len(results)))
    elif KINDS[study.kind].varied == "skills":
        complete = _rectangle(study, results)
        if complete:
            grid = [_typical(study, out, results[label], title="") for row in complete.values() for label in row]
            columns = [label.split("-")[-2] for label in next(iter(complete.values()))]
            figures["skills"] = panels(
                grid,
                len(columns),
                row_labels=[pretty(name) for name in complete],
                column_labels=[f"{n} skills" for n in columns],
            )
    else:
        grid = [_typical(study, out, rows) for rows in results.values()]
        figures["comparison"] = panels(grid, min(4, len(grid)))
    columns, rows_of = _side_by_side(results)
    if not demo and len(columns) > 1:
        every = [_panel(study, out, row, title="") for rows in rows_of.values() for row in rows]
        figures["every-seed"] = panels(
            every, len(columns), row_labels=[pretty(name) for name in rows_of], column_labels=columns
        )
    scores = [
        SeedScore(pretty(label), row["mutual_information"], row["coverage"])
        for label, rows in results.items()
        for row in rows
    ]
    if not demo:
        run = next(iter(study.runs.values()))
        figures["tradeoff"] = tradeoff(
            scores,
            reference=AUTHORS_RUN if _is_papers(study) else None,
            num_skills=run.objective.skills.dim if KINDS[study.kind].varied != "skills" else None,
        )
        curves = {label: _curves(out, label, rows) for label, rows in results.items()}
        cycles = next(iter(curves.values()))[0]
        figures["learning-curves"] = learning_curves(
            {pretty(label): values for label, (_, values) in curves.items()},
            cycles,
            chances={pretty(label): study.chance(label) for label in curves},
        )
    if study.mine_iterations:
        figures["estimates"] = _estimates(study, out, results)
    return [save(figure, out / name)[0] for name, figure in figures.items()]


def _side_by_side(results: dict[str, list[dict[str, Any]]]) -> tuple[list[str], dict[str, list[dict[str, Any]]]]:
    """Seeds all runs have; where they have too few in common, as many of each run's own as all have."""
    common = sorted(set.intersection(*({row["seed"] for row in rows} for rows in results.values())))[:MOST_SEEDS]
    if len(common) > 1:
        return [f"seed {seed}" for seed in common], {
            label: [row for row in rows if row["seed"] in common] for label, rows in results.items()
        }
    count = min(MOST_SEEDS, *(len(rows) for rows in results.values()))
    return [f"{number + 1}" for number in range(count)], {label: rows[:count] for label, rows in results.items()}


def _is_papers(study: Study) -> bool:
    """Whether published numbers may stand beside a study's: all of them are of ten skills in square_a."""
    return all(run.env.name == "square_a" and run.objective.skills.dim == 10 for run in study.runs.values())


def _estimates(study: Study, out: Path, results: dict[str, list[dict[str, Any]]]) -> Any:
    curves = {pretty(label): np.stack([_arrays(out, row)["mine"] for row in rows]) for label, rows in results.items()}
    entropies = {pretty(label): np.array([row["particle_entropy"] for row in rows]) for label, rows in results.items()}
    # The published runs have the maze study's entropy weight; ours are comparable only if they have it too.
    same = [label for label in PUBLISHED_ENTROPY if label in study.runs and _entropy_weight(study, label) == 0.025]
    published = {pretty(label): PUBLISHED_ENTROPY[label] for label in same}
    iterations = np.arange(1, study.mine_iterations + 1)
    count = next(iter(study.runs.values())).objective.skills.dim
    return estimates(curves, iterations, entropies, count, published=published if _is_papers(study) else None)


def _entropy_weight(study: Study, label: str) -> float:
    return study.runs[label].learner.entropy_weight


def _arrays(out: Path, row: dict[str, Any]) -> dict[str, np.ndarray]:
    path = seed_path(out, row["label"], row["seed"], "npz")
    try:
        with np.load(io.BytesIO(read_checked(path))) as arrays:
            return dict(arrays)
    except UserError as error:
        raise UserError(f"{error}; without {path.with_suffix('.json').name}, this seed is trained again") from None
    except (OSError, EOFError, TypeError, ValueError, zipfile.BadZipFile) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "damaged"
        raise UserError(f"{path}: {why}; remove {path.with_suffix('.json').name} to train this seed again") from None


def _panel(study: Study, out: Path, row: dict[str, Any], title: str | None = None) -> Any:
    run = study.runs[row["label"]]
    numbers = f"I(S;Z) {row['mutual_information']:.2f} · coverage {100 * row['coverage']:.0f} % · {row['far']:.0f} far"
    heading = pretty(row["label"]) if title is None else title
    return Panel(heading, f"seed {row['seed']} · {numbers}", _arrays(out, row)["paths"], run.env.geometry)


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
        path = seed_path(out, label, row["seed"], "csv")
        lines = csv.DictReader(read_checked_text(path).splitlines())
        read.append([(float(line["cycle"]), float(line["reward"])) for line in lines])
    values = np.array(read)
    return values[0, :, 0].astype(int), values[:, :, 1]
