"""A report as Markdown: the same sections, for pages that are kept with the code."""

from collections.abc import Iterator, Sequence

from becl.reports.sections.section import Section, outcome_of
from becl.reports.tables import Cell, Table


def to_markdown(title: str, sections: Sequence[Section], warnings: Sequence[str], figures: str, origin: str) -> str:
    """The page: text, tables, and figures by their place; nothing in it depends on the day but what `origin` says."""
    outcome = outcome_of(sections)
    lines = [f"# {title}", "", *([outcome, ""] if outcome else []), origin]
    for warning in warnings:
        lines += ["", f"> {warning}"]
    for section in sections:
        lines += section_lines(section, figures)
    return "\n".join(lines) + "\n"


def section_lines(section: Section, figures: str) -> Iterator[str]:
    yield from ("", f"## {section.title}")
    for paragraph in section.text:
        yield from ("", paragraph)
    for note in section.notes:
        yield from ("", f"> {note}")
    for picture in section.pictures:
        yield from ("", f"![{picture.title}]({figures}/{picture.name}.png)")
        yield from ("", f"*{picture.title}. {picture.caption}".strip() + "*")
    for table in section.tables:
        yield from ("", f"*{table.caption}*", "")
        yield from table_lines(table)


def table_lines(table: "Table") -> Iterator[str]:
    """Numbers to the right, as on the page."""
    first = table.rows[0] if table.rows else table.head
    yield row_line(table.head)
    yield "|" + "|".join("--:" if isinstance(one.value, int | float) else "---" for one in first) + "|"
    yield from map(row_line, table.rows)


def row_line(cells: Sequence[Cell]) -> str:
    return "| " + " | ".join(map(cell_text, cells)) + " |"


def cell_text(one: Cell) -> str:
    """Without what would end the cell or the row."""
    text = " ".join(one.text.split()).replace("|", "\\|")
    if one.code and text:
        text = f"`{text}`"
    if one.bold:
        text = f"**{text}**"
    return f"[{text}]({one.link})" if one.link.startswith("http") else text  # Others lead to places on the page.
