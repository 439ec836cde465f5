"""Rates and times: results/speed, and what runs say of their own."""

import re
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.numbers.files import RESULTS, markdown, read, read_json

SPEED = RESULTS / "speed"
STEPS = 2_000_000
"""Of the published pretraining."""
NAMES = {
    "becl-mean-paper": "BeCL as printed, the default until 2026-11-16",
    "becl-released": "`becl` (today's default)",
}


class Rate(NamedTuple):
    """A row that `benchmarks.pretrain` printed."""

    update: int
    """Microseconds for an update of a seed."""
    steps: int
    """Environment steps per second, of all seeds together."""
    compiling: int
    """Seconds."""


ROW = re.compile(
    r"^\| (?P<method>[\w-]+) \| \w+ \| (?P<seeds>\d+) \| (?P<numbers>[-\d,]+ \| [-\d,]+ \| [-\d,]+) \|$", re.M
)


@cache
def rates(robot: str) -> dict[tuple[str, int], Rate]:
    """By method and number of seeds, in the order of the file."""
    rows = ROW.finditer((SPEED / f"h200-{robot}.md").read_text())
    return {
        (row["method"], int(row["seeds"])): Rate(*(int(one.replace(",", "")) for one in row["numbers"].split(" | ")))
        for row in rows
    }


def rate(method: str, seeds: str, robot: str = "walker") -> str:
    """Environment steps per second."""
    return f"{rates(robot)[method, int(seeds)].steps:,}"


def speedup(method: str, seeds: str) -> str:
    """How many times the rate of the released program."""
    return f"{rates('walker')[method, int(seeds)].steps / float(noted('released-walker')):.0f}"


def minutes(method: str, seeds: str, together: str | None = None) -> str:
    """Of the published pretraining, for as many seeds, at the rate of those trained together."""
    steps_per_second = rates("walker")[method, int(together or seeds)].steps
    return f"{int(seeds) * STEPS / steps_per_second / 60:.0f}"


def noted(name: str) -> str:
    """A number that a program printed and somebody wrote down, with its circumstances."""
    (row,) = (row for row in read(SPEED / "noted.csv") if row["name"] == name)
    return row["value"]


def method_rates(*methods: str) -> str:
    """Update and rate on the walker, for one seed and eight."""
    found = rates("walker")
    listed = methods or tuple(dict.fromkeys(method for method, _ in found))
    return rate_table("method", [(NAMES.get(name, f"`{name}`"), found[name, 1], found[name, 8]) for name in listed])


def robot_rates(method: str) -> str:
    """The same of one method on each robot."""
    found = {robot: rates(robot) for robot in ("walker", "quadruped", "jaco")}
    return rate_table("robot", [(robot, of[method, 1], of[method, 8]) for robot, of in found.items()])


def rate_table(first: str, rows: Sequence[tuple[str, Rate, Rate]]) -> str:
    head = [first, "µs per update, one seed", "steps/s", "µs per update and seed, eight seeds", "steps/s"]
    return markdown(
        head,
        [[name, f"{one.update}", f"{one.steps:,}", f"{eight.update}", f"{eight.steps:,}"] for name, one, eight in rows],
    )


def overview() -> str:
    """Pretraining on the walker in a few rows."""
    found = rates("walker")
    others = [method for method in dict.fromkeys(name for name, _ in found) if not method.startswith("becl")]
    between = [sorted(found[method, seeds].steps for method in others) for seeds in (1, 8)]
    rows = [
        ["released PyTorch code", noted("released-walker"), ""],
        *([NAMES[name], rate(name, "1"), rate(name, "8")] for name in ("becl-released", "becl-mean-paper")),
        ["the other methods", *(f"{low:,} to {high:,}" for low, *_, high in between)],
    ]
    return markdown(["environment steps per second, all seeds", "one seed", "eight seeds together"], rows)


# --- What runs say of their own ---------------------------------------------------------------------------------------

FINETUNED = (
    ("groups/walker-becl-alone", "one task, one seed"),
    ("urlb/walker-becl", "four tasks, two seeds"),
    ("urlb/walker-ddpg", "four tasks, eight seeds, DDPG from scratch"),
)


def intervals(folder: Path) -> list[float]:
    """Steps per second of each log interval but the first, which compiles."""
    by_step = {int(row["step"]): float(row["steps_per_second"]) for row in read(folder / "metrics.csv")}
    return [by_step[step] for step in sorted(by_step)][1:]


def after_compiling(folder: Path) -> float:
    """Steps per second of all of them together: each lasts as long as its steps take."""
    by_step = {int(row["step"]): float(row["steps_per_second"]) for row in read(folder / "metrics.csv")}
    steps = sorted(by_step)
    seconds = sum((after - before) / by_step[after] for before, after in pairwise(steps))
    return (steps[-1] - steps[0]) / seconds


def finetuning_rates() -> str:
    rows = []
    for folder, label in FINETUNED:
        result = read_json(RESULTS / folder / "result.json")
        found = f"{after_compiling(RESULTS / folder):,.0f} ({median(intervals(RESULTS / folder)):,.0f})"
        rows.append([label, f"{result['lanes']}", found, clock(result["seconds"])])
    return markdown(["", "lanes", "steps/s", "time"], rows)


def run_rate(folder: str) -> str:
    """Steps per second of a run after compiling."""
    return f"{after_compiling(RESULTS / folder):,.0f}"


def run_rate_with_compiling(folder: str) -> str:
    """Steps per second of a run from its start to its end."""
    return f"{read_json(RESULTS / folder / 'result.json')['steps_per_second']:,.0f}"


def run_time(folder: str) -> str:
    return clock(read_json(RESULTS / folder / "result.json")["seconds"])


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


GROUPED = (
    ("BeCL finetuned, 4 tasks × 2 seeds × 100,000 steps", "urlb/walker-becl", "groups/walker-becl-alone", 8),
    ("DDPG, 4 tasks × 8 seeds × 100,000 steps", "urlb/walker-ddpg", "groups/walker-becl-alone", 32),
)


def grouping() -> str:
    """Jobs together against one after another, as far as both were run."""
    rows = []
    for label, together, alone, count in GROUPED:
        seconds = [read_json(RESULTS / folder / "result.json")["seconds"] for folder in (together, alone)]
        one = f"{count} × {seconds[1]:.1f} s = {count * seconds[1]:,.0f} s (by one run, of BeCL)"
        rows.append([label, f"{seconds[0]:.0f} s, {run_rate(together)} steps/s", f"{one}, {run_rate(alone)} steps/s"])
    single = sorted((RESULTS / "groups" / "sweep-one-by-one").iterdir())
    total = sum(read_json(folder / "result.json")["seconds"] for folder in single)
    each = sorted(after_compiling(folder) for folder in single)
    grouped = RESULTS / "groups" / "sweep-grouped"
    rows.append(
        [
            "DDPG, 2 tasks × 2 seeds × 40,000 steps, `becl sweep` without Ray (all four were run)",
            f"{read_json(grouped / 'result.json')['seconds']:.0f} s, {after_compiling(grouped):,.0f} steps/s",
            f"{total:.0f} s, {each[0]:,.0f} to {each[-1]:,.0f} steps/s",
        ]
    )
    return markdown(["runs", "grouped", "one by one"], rows)
