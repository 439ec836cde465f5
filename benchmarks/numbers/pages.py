"""Finds the places for numbers in README and docs, and fills them."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.numbers import finetuning, maze, pretraining, report, speed, transfer
from benchmarks.numbers.files import ROOT, copied

BLOCK = re.compile(r"(<!-- numbers: ([^\n]+?) -->\n).*?(<!-- end of numbers -->)", re.DOTALL)
NUMBER = re.compile(r"(<!-- number: ([^\n]+?) -->)[^\n]*?(<!-- end -->)")

TABLES: dict[str, Callable[..., str]] = {
    "file": copied,
    "readme-transfer-quadruped": transfer.readme,
    "transfer-quadruped-scores": lambda: transfer.scores("quadruped"),
    "transfer-quadruped-diagnostics": lambda: transfer.diagnostics("quadruped"),
    "transfer-quadruped-values": lambda: transfer.values("quadruped"),
    "transfer-quadruped-commands": lambda: transfer.commands("quadruped"),
    "finetuning-walker": finetuning.walker,
    "finetuning-walker-in-short": finetuning.walker_in_short,
    "finetuning-rates": speed.finetuning_rates,
    "rates": speed.method_rates,
    "rates-on-robots": speed.robot_rates,
    "rates-overview": speed.overview,
    "grouping": speed.grouping,
    "maze": maze.study,
    "maze-cycle": maze.cycle,
    "maze-search": maze.search,
    "maze-figure4": maze.figure_4,
    "metra-square": maze.metra_square,
    "metra-study": maze.metra_study,
    "precision": pretraining.precision,
    "envs-small": pretraining.envs_small,
    "envs-full": pretraining.envs_full,
    "skills": pretraining.skills,
    "skills-in-short": pretraining.skills_in_short,
}
NUMBERS: dict[str, Callable[..., str]] = {
    "rate": speed.rate,
    "speedup": speed.speedup,
    "minutes": speed.minutes,
    "noted": speed.noted,
    "run-rate": speed.run_rate,
    "run-rate-with-compiling": speed.run_rate_with_compiling,
    "run-time": speed.run_time,
    "maze-run-seconds": maze.run_seconds,
    "maze-mean": maze.mean,
    "maze-spread": maze.spread,
    "walker-means": finetuning.walker_means,
    "walker-published": finetuning.walker_published,
}


def written(words: str, known: dict[str, Callable[..., str]]) -> str:
    """What stands in a place, by the words of its comment."""
    name, *arguments = words.split()
    if name not in known:
        raise SystemExit(f"numbers: unknown name {name!r}; known: {', '.join(known)}")
    try:
        return known[name](*arguments)
    except (KeyError, ValueError, TypeError, OSError) as error:
        raise SystemExit(f"numbers: {words}: {type(error).__name__}: {error}") from error


def renewed(text: str) -> str:
    """A page with every number made anew."""
    text = BLOCK.sub(lambda match: f"{match[1]}{written(match[2], TABLES)}\n{match[3]}", text)
    return NUMBER.sub(lambda match: f"{match[1]}{written(match[2], NUMBERS)}{match[3]}", text)


def without_numbers(text: str) -> str:
    """A page less what is made from files: what somebody typed."""
    return NUMBER.sub("", BLOCK.sub("", text))


def pages() -> list[Path]:
    """Those that have numbers of this kind."""
    every = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path for path in every if BLOCK.search(text := path.read_text()) or NUMBER.search(text)]


def main(args: Sequence[str] = ()) -> int:
    stale = []
    for path in pages():
        text = path.read_text()
        if (new := renewed(text)) != text:
            stale.append(path.relative_to(ROOT))
            if "--check" not in args:
                path.write_text(new)
    if report.text() != (ROOT / report.PAGE).read_text():
        stale.append(report.PAGE)
        if "--check" not in args:
            report.write()
    for path in stale:
        print(f"{path}: {'does not agree with results/; make numbers' if '--check' in args else 'written anew'}")
    return 1 if stale and "--check" in args else 0
