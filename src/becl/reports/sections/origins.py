"""Where the numbers come from: folders, commands and options behind them, and what was left out."""

import json
from collections.abc import Sequence

from becl.reports.configurations import Configuration
from becl.reports.folders import FinetuningFolder, LeftOut, command_of
from becl.reports.names import sorted_tasks
from becl.reports.options import SKILLS, TEMPERATURE, importance
from becl.reports.runs import PROGRAMS, Found
from becl.reports.sections.section import Section
from becl.reports.tables import Cell, Table, ranges
from becl.runs.progress import clock, counted


def origin_section(found: Found) -> Section:
    """For every configuration the folders and commands behind its numbers, and all of its options."""
    head = [Cell(name) for name in ("folder", "tasks", "seeds", "time", "device", "versions", "command")]
    tables = []
    for number, one in enumerate(found.configurations):
        caption = f"{one.label}: {counted(len(one.folders), 'folder')}"
        tables.append(Table(f"runs-{number}", caption, head, list(map(_folder_row, one.folders)), folded=True))
    if found.configurations:
        tables.append(option_table(found.configurations))
    if found.pretrainings:
        head = [Cell(name) for name in ("folder", "method", "environment", "seeds", "command")]
        rows = [
            [
                Cell(str(one.path), code=True), Cell(one.config["method"]), Cell(one.config["env"]),
                Cell(ranges(one.config["seeds"])), Cell(one.command, code=True),
            ]
            for one in found.pretrainings
        ]  # fmt: skip
        tables.append(Table("runs-pretraining", "Pretraining runs", head, rows, folded=True))
    return Section(
        "runs",
        "Where the numbers come from",
        [
            "The commands behind every number. A label is the method's name and whatever tells the configuration from "
            "others of the method; runs of the same configuration are merged over folders, different configurations "
            "never are. tables/scores.csv has the command of every single score."
        ],
        tables=tables,
    )


def _folder_row(folder: FinetuningFolder) -> list[Cell]:
    result = folder.result
    seconds = result.get("seconds")
    timed = isinstance(seconds, int | float)
    return [
        Cell(str(folder.path), code=True),
        Cell(", ".join(sorted_tasks({task for task, _ in folder.outcomes}))),
        Cell(ranges({seed for _, seed in folder.outcomes})),
        Cell(clock(seconds), seconds) if timed else Cell(""),
        Cell(", ".join(str(result[name]) for name in ("device", "machine") if result.get(name))),
        Cell(", ".join(f"{name} {result[name]}" for name in PROGRAMS if result.get(name))),
        Cell(command_of(result), code=True),
    ]


def option_table(configurations: Sequence[Configuration]) -> Table:
    """Every option in which configurations differ; of objectives only where those of one method do.

    Skills and temperature are the exception, which most objectives have. What a run without pretraining lacks with it
    is no difference.
    """
    methods = [one.method for one in configurations]
    rows = []
    for path in sorted({path for one in configurations for path in one.options}, key=importance):
        texts = [json.dumps(one.options[path]) if path in one.options else "" for one in configurations]
        having = [text for text, one in zip(texts, configurations, strict=True) if not has_no_place(one, path)]
        if ".objective." in path and not path.endswith((SKILLS, TEMPERATURE)):
            differ = len(set(zip(methods, texts, strict=True))) > len(set(methods))
        else:
            differ = len(set(having)) > 1
        if differ:
            rows.append([Cell(path, code=True), *map(Cell, texts)])
    head = [Cell("option"), *(Cell(one.label) for one in configurations)]
    return Table("options", "Options in which configurations differ", head, rows, folded=True)


def has_no_place(one: Configuration, path: str) -> bool:
    """Whether a configuration has nothing at all where an option belongs, such as no pretraining."""
    parts = path.split(".")
    above = (".".join(parts[:count]) for count in range(1, len(parts)))
    return any(place in one.options and one.options[place] is None for place in above)


def left_out_section(left_out: Sequence[LeftOut]) -> Section:
    if not left_out:
        return Section("left-out", "What was left out, and why", ["Nothing that was given was left out."])
    rows = [[Cell(one.what, code=True), Cell(one.why)] for one in left_out]
    return Section(
        "left-out",
        "What was left out, and why",
        [],
        tables=[Table("left-out", "Left out", [Cell("what"), Cell("why")], rows)],
        data={"left-out": [one._asdict() for one in left_out]},
    )
