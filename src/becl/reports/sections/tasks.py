"""Return on each task: the main table, and every score behind it."""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from becl.reports.comparisons import Summary, by_task, leader
from becl.reports.configurations import Configuration
from becl.reports.folders import Final
from becl.reports.names import listed, pretty_task
from becl.reports.sections.section import Row, Section
from becl.reports.tables import Cell, Table, or_blank, plus_minus
from becl.runs.progress import counted


def task_section(configurations: Sequence[Configuration]) -> Section:
    summaries = by_task(configurations)
    head = [Cell("task"), *(Cell(one.label, note=counted(_usual_seeds(one), "seed")) for one in configurations)]
    rows = [
        [
            Cell(pretty_task(task), task, note=task),
            *(_score_cell(one, number, task, row) for number, one in enumerate(configurations)),
        ]
        for task, row in summaries.items()
    ]
    data = [
        {
            "task": task, "label": label, "mean": one.mean, "stderr": or_blank(one.error),
            "seeds": one.seeds, "leader": int(label == leader(row)),
        }
        for task, row in summaries.items()
        for label, one in row.items()
    ]  # fmt: skip
    return Section(
        found=outcome(summaries),
        name="tasks",
        title="Return on each task",
        text=[
            "Mean ± standard error over seeds of the undiscounted return of an episode at the end of finetuning, "
            "with the deterministic policy. The highest mean of a task is "
            "bold where the 95 % interval of its difference to every other lies above 0 (Welch's t).",
            *evaluation_notes(configurations),
        ],
        hint="Point at a number for its seeds, follow it to the commands that made it, and sort by a column with its "
        "arrow.",
        tables=[Table("tasks", "Return after finetuning", head, rows)],
        data={"tasks": data, "scores": score_rows(configurations)},
    )


def outcome(summaries: Mapping[str, Mapping[str, Summary]]) -> str:
    """Which configuration earns most, where that is clear."""
    compared = {task: row for task, row in summaries.items() if len(row) > 1}
    if not compared:
        (task, row), *others = summaries.items()
        ((label, one),) = row.items()
        more = f", and has learned {counted(len(others), 'other task')}" if others else ""
        return f"{label} earns {plus_minus(one)} on {pretty_task(task)}{more}. There is nothing to compare it with."
    clear = {task: label for task, row in compared.items() if (label := leader(row))}
    if len(compared) == 1:
        ((task, row),) = compared.items()
        ranked = sorted(row.items(), key=lambda item: -item[1].mean)
        numbers = listed([f"{label} {plus_minus(one)}" for label, one in ranked])
        who = f"{clear[task]} earns clearly most" if clear else "Nothing earns clearly more than all others"
        return f"{who} on {pretty_task(task)}: {numbers}."
    if not clear:
        return f"On none of {len(compared)} tasks does anything earn clearly more than all others."
    if len(clear) == len(compared) and len({*clear.values()}) == 1:
        return f"{next(iter(clear.values()))} earns clearly most on all {len(compared)} tasks."
    leads = listed([f"{label} on {pretty_task(task)}" for task, label in clear.items()])
    return f"On {len(clear)} of {len(compared)} tasks something earns clearly most: {leads}."


def evaluation_notes(configurations: Sequence[Configuration]) -> Iterator[str]:
    """How scores were measured, and how well: episodes, and the error that their number leaves."""
    every = [outcome for one in configurations for seeds in one.outcomes.values() for outcome in seeds.values()]
    counts = sorted({final.episodes for outcome in every for final in outcome.final.values()})
    if counts:
        errors = [outcome.error for outcome in every if math.isfinite(outcome.error)]
        away = [abs(outcome.score - outcome.curve_score) for outcome in every if outcome.final]
        yield (
            f"A run's score is its mean over {listed([f'{count:,}' for count in counts])} episodes after the last "
            "step, with the same starts for every method. "
            + (f"The error of such an evaluation alone is {np.mean(errors):.0f} on average. " if errors else "")
            + f"The last point of its curve, over fewer episodes, is {np.mean(away):.0f} away from it on average."
        )
    if older := sum(not outcome.final for outcome in every):
        which = "Every run's" if older == len(every) else f"Of {counted(older, 'run')} of {len(every):,} the"
        yield f"{which} score is the last point of the curve: these runs have no final evaluation (final.csv)."


def _usual_seeds(one: Configuration) -> int:
    counts = [len(seeds) for seeds in one.outcomes.values()]
    return max(counts, key=counts.count)


def _score_cell(one: Configuration, number: int, task: str, row: Mapping[str, Summary]) -> Cell:
    """The score of the configuration with this number on the page."""
    if one.label not in row:
        return Cell("–")
    summary = row[one.label]
    text = plus_minus(summary) + (f" (n={summary.seeds})" if summary.seeds != _usual_seeds(one) else "")
    each = ", ".join(
        f"{seed}: {outcome.score:.0f}" + (f" ± {outcome.error:.0f}" if math.isfinite(outcome.error) else "")
        for seed, outcome in one.outcomes[task].items()
    )
    note = f"{one.label}, {task}, seed: return ± error of the evaluation – {each}"
    return Cell(text, summary.mean, note, one.label == leader(row), f"#runs-{number}")


def score_rows(configurations: Sequence[Configuration]) -> list[Row]:
    """One row per score, with the command that made it."""
    return [
        {
            "label": one.label, "method": one.method, "task": task, "seed": seed,
            "skill": curve.skill, "step": int(curve.steps[-1]), "return": outcome.score_of(skill),
            **_final_columns(outcome.final.get(skill)), "curve_return": float(curve.returns[-1]),
            "folder": outcome.folder, "command": outcome.command,
        }
        for one in configurations
        for task, seeds in one.outcomes.items()
        for seed, outcome in seeds.items()
        for skill, curve in outcome.by_skill.items()
    ]  # fmt: skip


def _final_columns(final: Final | None) -> Row:
    return {"episodes": final.episodes if final else "", "evaluation_stderr": or_blank(final.error if final else None)}
