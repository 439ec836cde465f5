"""A part of the page: text, tables, pictures, and the rows of CSV files that belong to it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from becl.measure.stats import Interval
from becl.reports.tables import Table

if TYPE_CHECKING:
    import matplotlib.figure

Row = dict[str, Any]


class Picture(NamedTuple):
    name: str
    title: str
    caption: str
    figure: "matplotlib.figure.Figure"


@dataclass
class Section:
    """A part of the page, and the files that belong to it."""

    name: str
    title: str
    text: list[str]
    notes: list[str] = field(default_factory=list)
    """Reasons for caution."""
    pictures: list[Picture] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    data: dict[str, list[Row]] = field(default_factory=dict)
    """CSV files by name."""
    hint: str = ""
    """What one can do with the page."""
    found: str = ""
    """What came out, in a sentence. The first section that has one begins the page with it."""


def outcome_of(sections: Sequence[Section]) -> str:
    """The sentence that a page begins with; empty where nothing can be said."""
    return next((section.found for section in sections if section.found), "")


def name_of(name: str, number: int, count: int) -> str:
    """The name of a file that may be one of several."""
    return name if count == 1 else f"{name}-{number + 1}"


def cautions(rows: Mapping[str, Iterable[Interval]]) -> list[str]:
    """Why not to trust intervals: each reason once, with the rows it is about."""
    about: dict[str, list[str]] = {}
    for label, values in rows.items():
        for warning in dict.fromkeys(value.warning for value in values if value.warning):
            about.setdefault(warning, []).append(label)
    return [
        f"{'All' if len(labels) == len(rows) else '; '.join(labels)}: {warning}" for warning, labels in about.items()
    ]
