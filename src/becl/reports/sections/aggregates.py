"""Aggregates over tasks and runs with their intervals, and performance profiles."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from becl.measure import stats
from becl.measure.stats import Interval
from becl.reports import figures
from becl.reports.comparisons import Comparison
from becl.reports.sections.section import Picture, Section, cautions
from becl.reports.tables import Cell, Table, interval_cell
from becl.views.figures.colors import Styles

Aggregates = Mapping[str, Mapping[str, Interval]]
"""By label and name of the aggregate."""


def fewer(resamples: int) -> int:
    """Resamples of what takes longer than an aggregate."""
    return max(1, resamples // 5)


def aggregate_section(
    main: Comparison, overall: Aggregates, robots: Sequence[Comparison], styles: Styles, resamples: int
) -> Section:
    """All aggregates over the shared tasks; of each robot only the interquartile mean."""
    leader = max(overall, key=lambda label: overall[label]["iqm"].value)
    by_scope = {main.name: overall} | {
        one.name: {label: {"iqm": stats.interval(s, stats.iqm, resamples)} for label, s in one.scores.items()}
        for one in robots
    }
    data = [
        {
            "tasks": one.name, "task_count": len(one.tasks), "label": label, "aggregate": name,
            "value": value.value, "low": value.low, "high": value.high, "warning": value.warning,
        }
        for one in (main, *robots)
        for label, values in by_scope[one.name].items()
        for name, value in values.items()
    ]  # fmt: skip
    figure = figures.aggregates(overall, figures.TITLES, styles)
    caption = f"Over {len(main.tasks)} tasks; black: the value, bar: its 95 % interval."
    pictures = [Picture("aggregates", "Aggregates", caption, figure)]
    if robots:
        pictures.append(robot_picture({one.name: by_scope[one.name] for one in robots}, styles))
    return Section(
        "aggregates",
        "Aggregates",
        [
            f"Scores are returns divided by the expert's, over {len(main.tasks)} tasks: {', '.join(main.tasks)}. "
            "IQM is the mean of the middle half of all runs, the optimality gap what runs lack of the expert on "
            "average (less is better), the median that of the tasks' means. In brackets 95 % intervals of a bootstrap "
            f"over runs, stratified by task ({resamples:,} resamples). Bold: an interval beyond those of all others.",
            f"The last column is the probability that a run of {leader}, which leads by IQM, is better than one of the "
            f"row's on the same task, averaged over tasks ({fewer(resamples):,} resamples).",
        ],
        notes=cautions({label: values.values() for label, values in overall.items()}),
        pictures=pictures,
        tables=[aggregate_table(main, overall, leader, fewer(resamples))],
        data={"aggregates": data},
    )


def aggregate_table(main: Comparison, overall: Aggregates, leader: str, resamples: int) -> Table:
    titles = {name: title.rstrip(" ↑↓") for name, title in figures.TITLES.items()}
    best = {name: clear_best({label: values[name] for label, values in overall.items()}, name) for name in titles}
    rows = []
    for label, values in overall.items():
        scores = main.scores[label]
        cells = [Cell(label), *(interval_cell(values[name], best[name] == label) for name in titles)]
        if label == leader:
            cells.append(Cell("–"))
        else:
            cells.append(interval_cell(stats.improvement_interval(main.scores[leader], scores, resamples)))
        count = sum(map(len, scores.values()))
        rows.append([*cells, Cell(str(count), count)])
    head = [Cell("method"), *map(Cell, titles.values()), Cell("P(leader is better)"), Cell("runs")]
    return Table("aggregates", "Aggregates with 95 % intervals", head, rows)


def clear_best(row: Mapping[str, Interval], name: str) -> str | None:
    """The label whose interval lies beyond all others'."""
    better = {
        label: (-one.high, -one.low) if name == "optimality_gap" else (one.low, one.high) for label, one in row.items()
    }
    first, *others = sorted(better, key=lambda label: -better[label][0])
    return first if others and all(better[first][0] > better[other][1] for other in others) else None


def robot_picture(robots: Mapping[str, Aggregates], styles: Styles) -> Picture:
    by_label = {
        label: {robot: rows[label]["iqm"] for robot, rows in robots.items() if label in rows} for label in styles
    }
    return Picture(
        "robots",
        "IQM of each robot",
        "Interquartile mean over the tasks of one robot, with its 95 % interval.",
        figures.aggregates(
            {label: values for label, values in by_label.items() if values},
            {robot: f"{robot}, IQM" for robot in robots},
            styles,
        ),
    )


PROFILE_POINTS = 121


def profile_section(compared: Comparison, styles: Styles, resamples: int) -> Section:
    top = max(1.0, *(float(scores.max()) for tasks in compared.scores.values() for scores in tasks.values()))
    thresholds = np.linspace(0, math.ceil(10 * top) / 10, PROFILE_POINTS)
    curves = {label: stats.profile_band(scores, thresholds, resamples) for label, scores in compared.scores.items()}
    data = [
        {"label": label, "score": float(score), "part": float(part), "low": float(low), "high": float(high)}
        for label, curve in curves.items()
        for score, part, low, high in zip(curve.thresholds, curve.value, curve.low, curve.high, strict=True)
    ]
    caption = f"Over {len(compared.tasks)} tasks."
    return Section(
        "profiles",
        "Performance profiles",
        [
            "Which part of a method's runs has a score above τ, every task weighing the same. A curve above another "
            "everywhere is better whatever is asked for; the area under a curve is the mean score. Bands are 95 % "
            f"intervals at each τ ({resamples:,} resamples)."
        ],
        pictures=[Picture("profiles", "Performance profiles", caption, figures.profiles(curves, styles))],
        data={"profiles": data},
    )
