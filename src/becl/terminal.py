"""What is printed on a terminal: tables."""

from collections.abc import Iterable, Sequence
from typing import Any


def console() -> Any:
    from rich.console import Console

    # Tables keep their shape in a pipe or a log.
    return Console(width=None if Console().is_terminal else 120)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], lines: bool = False) -> Any:
    from rich.table import Table

    grid = Table(title=title, show_lines=lines, title_justify="left")
    for name in columns:
        grid.add_column(name)
    for row in rows:
        grid.add_row(*(str(cell) for cell in row))
    return grid
