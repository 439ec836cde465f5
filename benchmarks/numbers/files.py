"""Reading files under results/, and writing Markdown."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def read(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def last_rows(path: Path) -> list[dict[str, str]]:
    """Those of the last step of metrics.csv."""
    rows = read(path)
    return [row for row in rows if row["step"] == rows[-1]["step"]]


def every(rows: Sequence[Mapping[str, str]], column: str, shape: str) -> str:
    """The numbers of all seeds, separated by commas."""
    return ", ".join(f"{float(row[column]):{shape}}" if row.get(column) else "–" for row in rows)


def copied(name: str) -> str:
    """A CSV file as it is."""
    with (RESULTS / name).open(newline="") as file:
        head, *rows = csv.reader(file)
    return markdown(head, rows)
