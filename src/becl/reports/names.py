"""What methods, tasks and numbers are called in a report, and the order they come in."""

import re
from collections.abc import Iterable, Sequence

from becl.measure.published import EXPERT

# In the order of the paper's table.
NAMES = {
    "ddpg": "DDPG",
    "icm": "ICM",
    "disagreement": "Disagreement",
    "rnd": "RND",
    "apt": "APT",
    "proto": "ProtoRL",
    "smm": "SMM",
    "diayn": "DIAYN",
    "aps": "APS",
    "dads": "DADS",
    "cic": "CIC",
    "becl": "BeCL",
    "amped": "AMPED",
    "moss": "MOSS",
    "exdm": "ExDM",
    "metra": "METRA",
    "csd": "CSD",
    "lsd": "LSD",
    "csf": "CSF",
}

ROBOTS = tuple(dict.fromkeys(task.partition("_")[0] for task in EXPERT))


def pretty_method(method: str) -> str:
    if "+" in method:
        return " + ".join(map(pretty_method, method.split("+")))
    family, dash, rest = method.partition("-")
    return NAMES.get(family, family) + dash + rest


def pretty_task(task: str) -> str:
    """Walker run; names of others' environments stay as they are."""
    return task if ":" in task else task.replace("_reach_", " ").replace("_", " ").capitalize()


def domain_of(env: str) -> str:
    """The robot of a task, or of itself; a maze is its own."""
    robot = env.partition("_")[0]
    return robot if robot in ROBOTS else env


def sorted_tasks(tasks: Iterable[str]) -> list[str]:
    """URLB's order, then any others by name."""
    return sorted(tasks, key=lambda task: (place_in(task, tuple(EXPERT)), task))


def rank(method: str) -> tuple[int, str]:
    return place_in(re.split(r"[-+]", method)[0], tuple(NAMES)), method


def place_in(name: str, order: Sequence[str]) -> int:
    """Where a name is, behind the others if it is not there."""
    return order.index(name) if name in order else len(order)


def short_number(number: int) -> str:
    """100k for 100,000."""
    for unit, letter in ((1_000_000, "M"), (1_000, "k")):
        if number >= unit and number % (unit // 10) == 0:
            return f"{number / unit:g}{letter}"
    return str(number)


def listed(names: Sequence[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
