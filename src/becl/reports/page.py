"""`becl report`: from folders of runs to tables, figures and one page that can be sent on.

Reads what `becl finetune`, `becl pretrain` and `becl evaluate` left behind and nothing else. Runs of one configuration
are merged whatever folder they lie in; different configurations never are. What cannot be read is left out, and the
page says so. Under --out:

    index.html     the page, with all figures inside
    figures/       the same figures as PNG and SVG
    tables/        what is drawn and tabulated, as CSV
"""

import base64
import datetime
import os
import platform
import shlex
from collections.abc import Mapping, Sequence
from importlib.metadata import version

from becl.errors import UserError
from becl.invocation import COMMAND, own_version
from becl.options import ReportOptions
from becl.reports.configurations import all_tasks
from becl.reports.markdown import to_markdown
from becl.reports.names import domain_of, listed, pretty_method
from becl.reports.runs import Found
from becl.reports.sections.section import Section
from becl.reports.tables import Cell
from becl.runs.folder import to_csv, write_text
from becl.runs.progress import counted
from becl.terminal import console, table
from becl.views.figures.style import save


def write_report(found: Found, sections: Sequence[Section], options: ReportOptions) -> None:
    """All files, the page last."""
    out = options.out
    try:
        (out / "tables").mkdir(exist_ok=True)
        images = {}
        for section in sections:
            for name, rows in section.data.items():
                write_text(out / "tables" / f"{name}.csv", to_csv(rows))
            for picture in section.pictures:
                _, svg = save(picture.figure, out / "figures" / picture.name)
                images[picture.name] = "data:image/svg+xml;base64," + base64.b64encode(svg.read_bytes()).decode()
        write_text(out / "index.html", render(found, sections, images, options))
        if options.markdown is not None:
            places = os.path.relpath(out / "figures", options.markdown.parent)
            origin = f"Made by `{command_text(options)}`."
            write_text(options.markdown, to_markdown(page_title(found), sections, found.warnings, places, origin))
    except OSError as error:
        raise UserError(f"cannot write in {out}: {error.strerror}") from None


def render(found: Found, sections: Sequence[Section], images: Mapping[str, str], options: ReportOptions) -> str:
    """The page: one file, nothing in it comes from a network."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("becl"), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    configurations = found.configurations
    versions = {"becl": own_version() or "not installed", "python": platform.python_version()}
    versions |= {name: version(name) for name in ("numpy", "matplotlib")}
    facts = {
        "method": len({one.method for one in configurations}),
        "configuration": len(configurations),
        "task": len(all_tasks(configurations)),
        "run": sum(len(seeds) for one in configurations for seeds in one.outcomes.values()),
        "pretraining folder": len(found.pretrainings),
        "maze study folder": len(found.studies),
    }
    return environment.get_template("report.html").render(
        title=page_title(found),
        sections=sections,
        images=images,
        warnings=found.warnings,
        facts={name: count for name, count in facts.items() if count},
        left_out=len(found.left_out),
        command=command_text(options),
        date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        versions=versions,
    )


def command_text(options: ReportOptions) -> str:
    return COMMAND.get() or shlex.join(["becl", "report", *map(str, options.runs), "--out", str(options.out)])


def page_title(found: Found) -> str:
    pretrained = [one.config for one in found.pretrainings]
    methods = [one.method for one in found.configurations] or [config["method"] for config in pretrained]
    names = list(dict.fromkeys(map(pretty_method, methods)))
    tasks = all_tasks(found.configurations)
    places = listed(list(dict.fromkeys([*map(domain_of, tasks), *(config["env"] for config in pretrained)])))
    if found.studies and not methods:
        return f"Maze study: {', '.join(listed(list(one.summary)) for one in found.studies)}"
    who = ", ".join(names) if len(names) <= 4 else f"{len(names)} methods"
    return f"{who} on {counted(len(tasks), 'task')} of {places}" if tasks else f"{who} on {places}"


MOST_ON_TERMINAL = 6  # Columns beside each other.
ON_TERMINAL = {"tasks": 10_000, "aggregates": 3}  # Tables, and how many of their columns.
CAUTION = "help"  # The section whose reasons for caution are said on the terminal too.


def print_summary(found: Found, sections: Sequence[Section]) -> None:
    """The two main tables, and every reason for caution, on the terminal."""
    from rich.markup import escape

    def text(cell: Cell) -> str:
        return f"[bold]{escape(cell.text)}[/bold]" if cell.bold else escape(cell.text)

    terminal = console()
    for one in (one for section in sections for one in section.tables if one.name in ON_TERMINAL):
        last = min(len(one.head), 1 + ON_TERMINAL[one.name])
        for first in range(1, last, MOST_ON_TERMINAL):
            columns = [0, *range(first, min(first + MOST_ON_TERMINAL, last))]
            rows = [[text(row[column]) for column in columns] for row in one.rows]
            terminal.print(table(one.caption, [escape(one.head[column].text) for column in columns], rows))
    for note in (note for section in sections if section.name == CAUTION for note in section.notes):
        terminal.print(f"caution: {escape(note)}")
    for warning in found.warnings:
        terminal.print(f"warning: {escape(warning)}")
    for one in found.left_out:
        terminal.print(f"left out: {escape(one.what)}: {escape(one.why)}")
