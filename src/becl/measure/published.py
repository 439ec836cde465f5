"""Numbers that others published on state-based URLB, to be shown beside ours and never mixed with them.

All were measured after two million steps of pretraining and 100,000 of finetuning. They come from other
code, other versions of the simulator, and runs of which only means are known, so no aggregate of our runs
includes one. `EXPERT` is what returns are divided by.
"""

import csv
import functools
import importlib.resources
from typing import Literal, NamedTuple, cast

from becl.errors import UserError, unknown

Measure = Literal["return", "sum", "mean", "iqm", "optimality_gap"]

# Returns of DDPG after two million steps, from URLB's authors (rll-research/url_benchmark, issue 1).
EXPERT: dict[str, float] = {
    "walker_stand": 984.0,
    "walker_walk": 971.0,
    "walker_run": 796.0,
    "walker_flip": 799.0,
    "quadruped_stand": 920.0,
    "quadruped_walk": 866.0,
    "quadruped_run": 888.0,
    "quadruped_jump": 888.0,
    "jaco_reach_top_left": 191.0,
    "jaco_reach_top_right": 223.0,
    "jaco_reach_bottom_left": 193.0,
    "jaco_reach_bottom_right": 203.0,
}


class Source(NamedTuple):
    """Who published some numbers, and what to know about all of them."""

    name: str
    label: str  # A few words, for a column of a table.
    citation: str
    note: str


class Row(NamedTuple):
    """One published number.

    `task` is a task for a return, a robot for the sum of the returns of its four tasks, and "all"
    for an aggregate of expert-normalised scores over the twelve tasks.
    """

    source: str
    method: str  # Named as in `becl.objectives.METHODS`, if it is there.
    task: str
    measure: Measure
    value: float
    error: float | None  # The number after ±, if any.
    seeds: int | None  # Runs per task, if known.
    note: str


_SOURCES = (
    Source(
        "becl-2023",
        "BeCL paper",
        "Yang et al.: Behavior Contrastive Learning for Unsupervised Skill Discovery, ICML 2023",
        "Appendix table and text of the experiments; it does not say whether ± is a standard deviation or error",
    ),
    Source(
        "becl-issue-4",
        "rerun of the released BeCL",
        "github.com/Rooshy-yang/BeCL, issue 4, 2025",
        "An independent user's rerun of the released code with seeds 0 to 11",
    ),
    Source(
        "amped-2025",
        "AMPED paper",
        "Cho et al.: AMPED: Adaptive Multi-objective Projection for balancing Exploration and skill Diversification, "
        "arXiv 2506.05980, 2025",
        "Sums over the four tasks of a robot; the methods it compares with were rerun by its authors",
    ),
    Source(
        "moss-2022",
        "MOSS paper",
        "Zhao et al.: A Mixture of Surprises for Unsupervised Reinforcement Learning, NeurIPS 2022",
        "One of the jaco tasks is missing here",
    ),
    Source(
        "euclid-2023",
        "EUCLID paper",
        "Yuan et al.: EUCLID: Towards Efficient Unsupervised Reinforcement Learning with Multi-choice Dynamics Model, "
        "ICLR 2023",
        "Model-based",
    ),
)


def sources() -> tuple[Source, ...]:
    """All sources, the paper first."""
    return _SOURCES


def source(name: str) -> Source:
    for candidate in _SOURCES:
        if candidate.name == name:
            return candidate
    raise unknown("source", name, [candidate.name for candidate in _SOURCES])


def rows(
    source: str | None = None, method: str | None = None, task: str | None = None, measure: Measure | None = None
) -> tuple[Row, ...]:
    """Published numbers; only those of a source, method, task or measure if one is given."""
    wanted = {"source": source, "method": method, "task": task, "measure": measure}
    given = {field: value for field, value in wanted.items() if value is not None}
    return tuple(row for row in _load() if all(getattr(row, field) == value for field, value in given.items()))


def methods(name: str) -> tuple[str, ...]:
    """The methods that a source has numbers for, in its order."""
    return tuple(dict.fromkeys(row.method for row in rows(source=source(name).name)))


def table(name: str) -> dict[str, dict[str, Row]]:
    """The returns that a source gives, by method and task; empty if it gives only sums or aggregates."""
    result: dict[str, dict[str, Row]] = {}
    for row in rows(source=source(name).name, measure="return"):
        result.setdefault(row.method, {})[row.task] = row
    return result


def normalised(name: str, method: str) -> dict[str, float]:
    """A method's mean returns according to a source, divided by the expert's, by task."""
    by_method = table(name)
    if not by_method:
        raise UserError(f"{name} gives no returns by task; see published.rows({name!r})")
    if method not in by_method:
        raise unknown(f"method of {name}", method, by_method)
    return {task: row.value / EXPERT[task] for task, row in by_method[method].items()}


@functools.cache
def _load() -> tuple[Row, ...]:
    text = importlib.resources.files("becl").joinpath("data", "published.csv").read_text(encoding="utf-8")
    return tuple(
        Row(
            source=entry["source"],
            method=entry["method"],
            task=entry["task"],
            measure=cast(Measure, entry["measure"]),
            value=float(entry["value"]),
            error=float(entry["error"]) if entry["error"] else None,
            seeds=int(entry["seeds"]) if entry["seeds"] else None,
            note=entry["note"],
        )
        for entry in csv.DictReader(text.splitlines())
    )
