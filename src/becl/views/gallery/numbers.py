"""What is written beside each skill of a gallery: how far it goes, how much it covers, what it would earn."""

import csv
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from becl.measure.skills import per_skill, rollout, zero_shot
from becl.runs.sums import read_checked_text
from becl.views.poses import Look, policy_of

WIDTH = 26  # Letters of a label's line: less than a square in the back row is wide.
EPISODES = 3  # Of every skill, where `becl evaluate` has not measured yet.


class Numbers(NamedTuple):
    """Numbers about one skill; means over episodes."""

    distance: float | None
    """From start to end: metres, in a maze cells."""
    cells: int | None
    """Cells of the grid that coverage is counted on."""
    returns: dict[str, float]
    """By task, without any training."""


def numbers_of(look: Look, advance: Callable[[int], None] | None = None) -> list[Numbers]:
    """Numbers from `becl evaluate` if it has looked at these skills, else measured now; `advance` reports how far."""
    return kept(look) or measured(look, advance)


def kept(look: Look) -> list[Numbers] | None:
    folder = look.folder / "evaluation"
    try:
        about = json.loads(read_checked_text(folder / f"result-{look.snapshot}.json"))
        if look.seed not in about["seeds"] or not set(look.names) <= set(about["skills"]):
            return None
        tables = [folder / f"{name}-{look.snapshot}.csv" for name in ("per-skill", "zero-shot")]
        rows = [list(csv.DictReader(read_checked_text(path).splitlines())) if path.exists() else [] for path in tables]
        own = [[row for row in table if int(row["seed"]) == look.seed] for table in rows]
        return gathered(look.names, *own)
    except (OSError, ValueError, KeyError, TypeError):  # None, or none that can be read.
        return None


def measured(look: Look, advance: Callable[[int], None] | None = None) -> list[Numbers]:
    vision, length = look.pretraining.run.vision, look.pretraining.episode_length
    done = rollout(
        policy_of(look), look.env, look.vectors, EPISODES, episode_length=length, advance=advance, vision=vision
    )
    return gathered(look.names, per_skill(done, look.env, look.names), zero_shot(done, look.names))


def gathered(names: Sequence[int], per_skill: Iterable[Any], zero_shot: Iterable[Any]) -> list[Numbers]:
    moved = {int(row["skill"]): row for row in per_skill}
    earned: dict[int, dict[str, float]] = {name: {} for name in names}
    for row in zero_shot:
        if int(row["skill"]) in earned:
            earned[int(row["skill"])][row["task"]] = float(row["return"])
    return [
        Numbers(
            float(moved[name]["distance"]) if moved[name].get("distance") not in (None, "") else None,
            int(moved[name]["cells"]) if moved[name].get("cells") not in (None, "") else None,
            earned[name],
        )
        for name in names
    ]


def label(name: int, numbers: Numbers | None, unit: str) -> str:
    """A few words to stand at a figure."""
    if numbers is None:
        return f"skill {name}"
    moved = [] if numbers.distance is None else [f"{numbers.distance:.2g} {unit}"]
    moved += [] if numbers.cells is None else [f"{numbers.cells} bins"]
    earned = [f"{short_task(task)} {value:.0f}" for task, value in numbers.returns.items()]
    lines = [" · ".join([f"skill {name}", *moved])]
    for words in earned:
        fits = len(lines) > 1 and len(lines[-1]) + len(words) + 3 <= WIDTH
        lines[-1 if fits else len(lines) :] = [f"{lines[-1]} · {words}" if fits else words]
    return "\n".join(lines)


def table(look: Look, numbers: Sequence[Numbers], unit: str) -> tuple[list[str], list[list[str]]]:
    """Head and rows of all numbers."""
    tasks = list(numbers[0].returns)
    head = ["skill", f"distance ({unit})", "bins covered", *(short_task(task) for task in tasks)]
    rows = [
        [
            str(name),
            "–" if one.distance is None else f"{one.distance:.2f}",
            "–" if one.cells is None else str(one.cells),
            *(f"{one.returns[task]:.0f}" for task in tasks),
        ]
        for name, one in zip(look.names, numbers, strict=True)
    ]
    return head, rows


def short_task(task: str) -> str:
    """A task without its domain; somebody else's environment has one, its return."""
    return "return" if ":" in task else task.partition("_")[2].removeprefix("reach_").replace("_", " ")
