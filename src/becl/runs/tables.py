"""Tables of a run as rows: numbers as numbers."""

import contextlib
import csv
from pathlib import Path
from typing import Any

from becl.runs.callbacks import Row
from becl.runs.inside import plain


def read_rows(path: Path) -> list[Row]:
    """Rows of a table with numbers as numbers; none where it is not there yet."""
    if not path.exists():
        return []
    with open(path, opener=plain) as file:
        return [{name: number(value) for name, value in row.items()} for row in csv.DictReader(file)]


def number(text: str) -> Any:
    """Text as a whole number, a number, or as it is; an empty one is no number."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return float("nan") if text == "" else text
