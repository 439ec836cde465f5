"""Tables of a run as rows: numbers as numbers."""

import contextlib
import csv
import io
from pathlib import Path
from typing import Any

from becl.runs.callbacks import Row
from becl.runs.sums import read_checked_text


def read_rows(path: Path) -> list[Row]:
    """Rows of a table with numbers as numbers; none where it is not there yet."""
    if not path.exists():
        return []
    rows = csv.DictReader(io.StringIO(read_checked_text(path)))
    return [{name: number(value) for name, value in row.items()} for row in rows]


def number(text: str) -> Any:
    """Text as a whole number, a number, or as it is; an empty one is no number."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return float("nan") if text == "" else text
