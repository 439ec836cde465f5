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
import urllib.parse
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from becl.errors import UserError, printable
from becl.invocation import COMMAND, own_version
from becl.options import ReportOptions
from becl.reports.configurations import all_tasks
from becl.reports.markdown import to_markdown
from becl.reports.names import domain_of, listed, pretty_method
from becl.reports.runs import Found
from becl.reports.schemes import in_both_schemes
from becl.reports.sections.section import Section, outcome_of
from becl.reports.tables import Cell
from becl.runs.folder import to_csv
from becl.runs.progress import counted
from becl.runs.writing import write_text
from becl.sharing import shared_command, shared_text
from becl.terminal import console, table
from becl.views.figures.style import save


def write_report(found: Found, sections: Sequence[Section], options: ReportOptions) -> None:
    """All files, the page last."""
    out, private = options.out, private_folders(options)
    try:
        (out / "tables").mkdir(exist_ok=True)
        images = {}
        for section in sections:
            for name, rows in section.data.items():
                write_text(out / "tables" / f"{name}.csv", shared_text(printable(to_csv(rows)), private))
            for picture in section.pictures:
                _, svg = save(picture.figure, out / "figures" / picture.name)
                drawn = in_both_schemes(svg.read_text(encoding="utf-8")).encode()
                images[picture.name] = "data:image/svg+xml;base64," + base64.b64encode(drawn).decode()
        write_text(out / "index.html", render(found, sections, images, options))
        if options.markdown is not None:
            write_text(options.markdown, markdown(found, sections, options, options.markdown))
    except OSError as error:
        raise UserError(f"cannot write in {out}: {error.strerror}") from None


def markdown(found: Found, sections: Sequence[Section], options: ReportOptions, place: Path) -> str:
    """The page as Markdown that lies at `place`."""
    figures = os.path.relpath(options.out / "figures", place.parent)
    origin = f"Made by `{command_text(options)}`."
    page = to_markdown(page_title(found), sections, found.warnings, figures, origin)
    return shared_text(printable(page), private_folders(options))


def render(found: Found, sections: Sequence[Section], images: Mapping[str, str], options: ReportOptions) -> str:
    """The page: one file, nothing in it comes from a network."""
    import jinja2
    import markupsafe

    private = private_folders(options)

    def text(value: Any) -> Any:
        return shared_text(printable(value), private) if type(value) is str else value  # Not what is HTML already.

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("becl"), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined, finalize=text,
    )  # fmt: skip
    environment.filters["seen_from_page"] = lambda link: seen_from(link, options.out)
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
        outcome=outcome_of(sections),
        sections=sections,
        images={name: markupsafe.Markup(data) for name, data in images.items()},
        warnings=found.warnings,
        facts={name: count for name, count in facts.items() if count},
        left_out=len(found.left_out),
        command=command_text(options),
        date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        versions=versions,
    )


def private_folders(options: ReportOptions) -> list[Path]:
    """Where the runs and the page lie, which is nobody else's business."""
    return [place.absolute().parent for place in (*options.runs, options.out)]


def seen_from(link: str, out: Path) -> str:
    """A link; one to a file on this machine leads there from the page's folder."""
    if not link.startswith("file:"):
        return link
    path = Path(urllib.parse.unquote(urllib.parse.urlsplit(link).path))
    return urllib.parse.quote(os.path.relpath(path, out.resolve()))


def command_text(options: ReportOptions) -> str:
    command = COMMAND.get() or shlex.join(["becl", "report", *map(str, options.runs), "--out", str(options.out)])
    return str(shared_command(command))


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
    from rich.text import Text

    def text(cell: Cell) -> Text:
        return Text(printable(cell.text), "bold" if cell.bold else "")

    def say(line: str) -> None:
        terminal.print(printable(line), markup=False)

    terminal = console()
    if outcome := outcome_of(sections):
        say(outcome)
    for one in (one for section in sections for one in section.tables if one.name in ON_TERMINAL):
        last = min(len(one.head), 1 + ON_TERMINAL[one.name])
        for first in range(1, last, MOST_ON_TERMINAL):
            columns = [0, *range(first, min(first + MOST_ON_TERMINAL, last))]
            rows = [[text(row[column]) for column in columns] for row in one.rows]
            terminal.print(table(one.caption, [one.head[column].text for column in columns], rows))
    for note in (note for section in sections if section.name == CAUTION for note in section.notes):
        say(f"caution: {note}")
    for warning in found.warnings:
        say(f"warning: {warning}")
    for one in found.left_out:
        say(f"left out: {one.what}: {one.why}")
