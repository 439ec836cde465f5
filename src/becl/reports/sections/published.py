"""Ours beside published numbers, and nothing else: no statistic is made of published numbers."""

from collections.abc import Mapping, Sequence

import numpy as np

from becl.measure import published
from becl.measure.published import EXPERT
from becl.reports import figures
from becl.reports.comparisons import summarise
from becl.reports.configurations import Configuration
from becl.reports.figures import Beside
from becl.reports.names import domain_of, pretty_task
from becl.reports.options import USUAL
from becl.reports.sections.aggregates import Aggregates
from becl.reports.sections.section import Picture, Section
from becl.reports.tables import Cell, Table, interval_cell, or_blank, plus_minus
from becl.runs.progress import counted


def published_section(configurations: Sequence[Configuration], overall: Aggregates) -> Section | None:
    """Ours and what others printed, side by side and nothing else: no statistic is made of published numbers."""
    comparable = [one for one in configurations if at_published_budget(one)]
    returns = [(one, task, theirs) for one in comparable for task, theirs in published_returns(one).items()]
    printed = {source for _, _, theirs in returns for source in theirs}
    sources = [one for one in published.sources() if one.name in printed]
    rows, data = [], []
    for one, task, theirs in returns:
        ours = summarise(one.scores(task))
        cells = [_published_cell(theirs.get(source.name)) for source in sources]
        rows.append([Cell(one.label), Cell(pretty_task(task), task), Cell(plus_minus(ours), ours.mean), *cells])
        data += [
            {
                "label": one.label, "task": task,
                "our_mean": ours.mean, "our_stderr": or_blank(ours.error), "our_seeds": ours.seeds,
                "published_by": row.source, "published_mean": row.value, "published_error": or_blank(row.error),
                "published_seeds": or_blank(row.seeds), "note": row.note,
            }
            for row in theirs.values()
        ]  # fmt: skip
    others = other_published(comparable, overall)
    used = {row["published_by"] for row in data} | {row.source for row, _ in others}
    if not used:
        return None
    tables = []
    if rows:
        head = [Cell("method"), Cell("task"), Cell("ours"), *(Cell(f"published: {one.label}") for one in sources)]
        tables.append(Table("published", "Returns, ours and published", head, rows, folded=True))
    if others:
        head = [Cell(name) for name in ("method", "what", "ours", "published", "by")]
        caption = "Sums and aggregates, ours and published"
        tables.append(Table("published-sums", caption, head, [cells for _, cells in others], folded=True))
    return Section(
        "published",
        "Beside published numbers",
        [
            "Published numbers are of other code and other versions of the simulator, and are means of runs that "
            "nobody can look at. They stand here to be compared with, and are in no other table, aggregate or figure "
            "of this page. All are after two million steps of pretraining and 100,000 of finetuning; runs with another "
            "budget are not shown beside them. The figure has one configuration a method, that nearest its defaults.",
            *(f"{one.label}: {one.citation}. {one.note}." for one in published.sources() if one.name in used),
        ],
        pictures=published_pictures(comparable, sources[0]) if sources else [],
        tables=tables,
        data={"published": data} if data else {},
    )


def at_published_budget(one: Configuration) -> bool:
    """Two million steps of pretraining or none, and 100,000 of finetuning."""
    return one.options["steps"] == USUAL["steps"] and one.options.get("snapshot") in (None, USUAL["snapshot"])


def published_method(method: str) -> str:
    """The name under which a method's numbers are published: variants of it are of the same family."""
    known = {row.method for row in published.rows()}
    return method if method in known else method.partition("-")[0]


def published_returns(one: Configuration) -> dict[str, dict[str, published.Row]]:
    """What others printed of the method on our tasks, by task and source."""
    found: dict[str, dict[str, published.Row]] = {task: {} for task in one.outcomes}
    for row in published.rows(method=published_method(one.method), measure="return"):
        if row.task in found:
            found[row.task][row.source] = row
    return {task: by_source for task, by_source in found.items() if by_source}


def _published_cell(row: published.Row | None) -> Cell:
    if row is None:
        return Cell("–")
    error = "" if row.error is None else f" ± {row.error:g}"
    note = "; ".join(part for part in (counted(row.seeds, "seed") if row.seeds else "", row.note) if part)
    return Cell(f"{row.value:g}{error}", row.value, note)


def published_pictures(comparable: Sequence[Configuration], source: published.Source) -> list[Picture]:
    """One picture, or none where the source has nothing of ours: of each method the first configuration it has."""
    besides: dict[str, Beside] = {}
    drawn = set()
    for one in comparable:
        theirs = {task: rows[source.name] for task, rows in published_returns(one).items() if source.name in rows}
        if theirs and one.method not in drawn:
            besides[one.label] = _beside(one, theirs)
            drawn.add(one.method)
    if not besides:
        return []
    caption = (
        f"Against the {source.label}: a dot a task, on the dashed line where both agree. "
        "Bars: our standard errors and the published ±."
    )
    figure = figures.beside_published(besides)
    return [Picture("published", "Our scores beside published ones", caption, figure)]


def _beside(one: Configuration, theirs: Mapping[str, published.Row]) -> Beside:
    ours = [summarise(one.scores(task)) for task in theirs]
    expert = np.array([EXPERT[task] for task in theirs])
    return Beside(
        np.array([summary.mean for summary in ours]) / expert,
        np.nan_to_num(np.array([summary.error for summary in ours])) / expert,
        np.array([row.value for row in theirs.values()]) / expert,
        np.array([row.error or 0.0 for row in theirs.values()]) / expert,
        tuple(domain_of(task) for task in theirs),
    )


def other_published(comparable: Sequence[Configuration], overall: Aggregates) -> list[tuple[published.Row, list[Cell]]]:
    """Published sums by robot and aggregates over all tasks, beside ours where we have all of the tasks."""
    found = []
    for one in comparable:
        for row in published.rows(method=published_method(one.method)):
            if row.measure == "return":
                continue
            mine = None
            if row.measure == "sum":
                what = f"sum of returns, {row.task}"
                tasks = [task for task in EXPERT if domain_of(task) == row.task]
                if all(task in one.outcomes for task in tasks):
                    mine = Cell(f"{sum(one.scores(task).mean() for task in tasks):.0f}")
            else:
                what = f"{row.measure.replace('_', ' ')}, all tasks"
                if one.label in overall:
                    mine = interval_cell(overall[one.label][row.measure])
            if mine is not None:
                by = Cell(published.source(row.source).label)
                found.append((row, [Cell(one.label), Cell(what), mine, _published_cell(row), by]))
    return found
