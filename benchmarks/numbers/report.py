"""docs/results.md, and the page in docs/report-walker: what `becl report` says of the walker's runs."""

import contextlib
import shlex
from pathlib import Path

from becl.commands.cli import main
from becl.invocation import COMMAND
from becl.options import ReportOptions
from becl.reports.contents import build
from becl.reports.page import markdown
from becl.reports.runs import collect
from benchmarks.numbers.files import ROOT

PAGE = Path("docs/results.md")
OPTIONS = ReportOptions(
    (Path("results/urlb"), *(Path(f"results/pretrain/walker-{method}") for method in ("becl", "diayn", "rnd"))),
    out=Path("docs/report-walker"),
    markdown=PAGE,
)
WORDS = ["report", *map(str, OPTIONS.runs), "--out", str(OPTIONS.out), "--markdown", str(PAGE)]


def text() -> str:
    """What the command would write into the page today; figures are not drawn."""
    with contextlib.chdir(ROOT):
        token = COMMAND.set(shlex.join(["becl", *WORDS]))
        try:
            found = collect(OPTIONS.runs)
            return markdown(found, build(found, OPTIONS.resamples), OPTIONS, PAGE)
        finally:
            COMMAND.reset(token)


def write() -> None:
    with contextlib.chdir(ROOT):
        main(WORDS)
