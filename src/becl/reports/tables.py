"""Tables of a report: cells with what they show and what they are sorted by, and numbers as cells."""

import itertools
import math
from collections.abc import Collection
from typing import NamedTuple

from becl.measure.stats import Interval
from becl.measure.verdicts import plain, with_error
from becl.reports.comparisons import Summary


class Cell(NamedTuple):
    """What a table shows in one place, and what it is sorted by."""

    text: str
    value: float | str | None = None
    note: str = ""
    """Shown when pointed at."""
    bold: bool = False
    link: str = ""
    code: bool = False


class Table(NamedTuple):
    name: str
    caption: str
    head: list[Cell]
    rows: list[list[Cell]]
    folded: bool = False
    """Whether a click is needed to see it."""


def plus_minus(summary: Summary) -> str:
    return with_error(summary.mean, summary.error)


def interval_cell(interval: Interval, bold: bool = False) -> Cell:
    value, low, high = (plain(f"{number:.3f}") for number in interval[:3])
    bounds = f" [{low}, {high}]" if math.isfinite(interval.low) else ""
    return Cell(f"{value}{bounds}", interval.value, interval.warning, bold)


def or_blank(number: int | float | None) -> int | float | str:
    """For a CSV: nothing where there is no number."""
    return "" if number is None or math.isnan(number) else number


def ranges(numbers: Collection[int]) -> str:
    """0–4, 7 for 0, 1, 2, 3, 4, 7."""
    parts = []
    for _, run in itertools.groupby(enumerate(sorted(numbers)), key=lambda item: item[1] - item[0]):
        values = [value for _, value in run]
        parts.append(str(values[0]) if len(values) == 1 else f"{values[0]}–{values[-1]}")
    return ", ".join(parts)
