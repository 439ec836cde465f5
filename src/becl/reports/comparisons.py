"""Which configurations are compared on what: means by task, shared tasks, choices of the skill, ablations."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from becl.measure.published import EXPERT
from becl.reports.configurations import Configuration, all_tasks
from becl.reports.folders import LeftOut
from becl.reports.labels import numbered, phrase
from becl.reports.names import domain_of, listed
from becl.reports.options import without

TAIL_POINTS = 10_000  # Of an integral that is right to four digits.


class Summary(NamedTuple):
    """Scores of a configuration on a task, over seeds."""

    mean: float
    error: float
    """Standard error; not a number with one seed."""
    seeds: int


def summarise(scores: Float[np.ndarray, " seeds"]) -> Summary:
    error = float(scores.std(ddof=1)) / math.sqrt(len(scores)) if len(scores) > 1 else math.nan
    return Summary(float(scores.mean()), error, len(scores))


def by_task(configurations: Sequence[Configuration]) -> dict[str, dict[str, Summary]]:
    """Summaries by task and label."""
    return {
        task: {one.label: summarise(one.scores(task)) for one in configurations if task in one.outcomes}
        for task in all_tasks(configurations)
    }


def leader(row: Mapping[str, Summary]) -> str | None:
    """The label with the highest mean, if that is clearly above every other; None where there is nothing to compare."""
    first, *others = sorted(row, key=lambda label: -row[label].mean)
    return first if others and all(clearly_above(row[first], row[other]) for other in others) else None


def clearly_above(one: Summary, other: Summary) -> bool:
    """Whether the 95 % interval of the difference of two means lies above 0 (Welch's t, two seeds each at least)."""
    first, second = one.error**2, other.error**2
    if math.isnan(first + second) or one.mean <= other.mean:
        return False
    if first + second == 0:
        return True
    freedom = (first + second) ** 2 / (first**2 / (one.seeds - 1) + second**2 / (other.seeds - 1))
    return student_tails((one.mean - other.mean) / math.sqrt(first + second), freedom) < 0.05


def student_tails(t: float, freedom: float) -> float:
    """The probability of a Student's t beyond ±t: with t = √ν tan θ its density is as cos(θ) to the power of ν − 1.
    (SciPy has it, too, and takes as long to import as a small report to write.)"""
    angles = (np.arange(TAIL_POINTS) + 0.5) * math.pi / 2 / TAIL_POINTS
    density = np.cos(angles) ** (freedom - 1)
    return float(density[angles > math.atan(t / math.sqrt(freedom))].sum() / density.sum())


class Comparison(NamedTuple):
    """Configurations that share some tasks, and their scores: returns over the expert's."""

    name: str
    tasks: tuple[str, ...]
    scores: dict[str, dict[str, Float[np.ndarray, " seeds"]]]
    """By label and task."""


def comparisons(configurations: Sequence[Configuration]) -> list[Comparison]:
    """The tasks that most configurations share, then each robot's where that is something else."""
    known = [task for task in all_tasks(configurations) if task in EXPERT]
    robots = dict.fromkeys(map(domain_of, known))
    scopes = {"all tasks": known} | {robot: [task for task in known if domain_of(task) == robot] for robot in robots}
    found: list[Comparison] = []
    for name, allowed in scopes.items():
        shared = shared_tasks([set(one.outcomes) & set(allowed) for one in configurations])
        tasks = tuple(task for task in known if task in shared)
        if not tasks or any(tasks == other.tasks for other in found):
            continue
        scores = {
            one.label: {task: one.scores(task) / EXPERT[task] for task in tasks}
            for one in configurations
            if shared <= set(one.outcomes)
        }
        found.append(Comparison(name, tasks, scores))
    return found


def shared_tasks(sets: Sequence[set[str]]) -> set[str]:
    """The set of tasks with the most (configuration, task) pairs among configurations that have all of it."""

    def pairs(tasks: set[str]) -> tuple[int, int]:
        having = sum(tasks <= other for other in sets)
        return len(tasks) * having, having

    return max(sets, key=pairs, default=set())


def not_compared(configurations: Sequence[Configuration]) -> list[LeftOut]:
    """Tasks without an expert, and configurations without an aggregate over the shared tasks."""
    left_out = [
        LeftOut(task, "no expert's score is known: not in scores and aggregates")
        for task in all_tasks(configurations)
        if task not in EXPERT
    ]
    compared = comparisons(configurations)
    tasks = compared[0].tasks if compared else ()
    for one in configurations if compared else ():
        if missing := [task for task in tasks if task not in one.outcomes]:
            why = f"not in the aggregates over {len(tasks)} tasks: no runs on {listed(missing)}"
            left_out.append(LeftOut(one.label, why))
        elif other := [task for task in one.outcomes if task in EXPERT and task not in tasks]:
            left_out.append(LeftOut(one.label, f"aggregates are without {listed(other)}, which others lack"))
    return left_out


def groups_but(configurations: Sequence[Configuration], ignored: Sequence[str]) -> list[list[Configuration]]:
    """Configurations that differ only in options at or below the ignored paths."""
    groups: dict[str, list[Configuration]] = {}
    for one in configurations:
        groups.setdefault(json.dumps(without(one.options, ignored), sort_keys=True), []).append(one)
    return [group for group in groups.values() if len(group) > 1]


def skill_choices(configurations: Sequence[Configuration]) -> list[dict[str, Configuration]]:
    """Groups of the same pretrained skills, by how finetuning chose among them."""
    choices = []
    for group in groups_but(configurations, ("skill", "transfer", "run")):
        if len({one.options["skill"] for one in group}) > 1:
            transfers = len({one.options.get("transfer") for one in group}) > 1
            names = [one.options["skill"] + (f", {one.options.get('transfer')}" if transfers else "") for one in group]
            if len({*names}) < len(names):  # Something else differs too, which labels tell.
                names = [one.label for one in group]
            choices.append(dict(zip(names, group, strict=True)))
    return choices


class Ablation(NamedTuple):
    """Configurations by the value of the one option in which they differ."""

    label: str
    by_value: dict[float, Configuration]


def ablations(configurations: Sequence[Configuration], option: str) -> list[Ablation]:
    """Groups that differ in an option of pretraining's objective, and in what follows from it."""
    path = f"pretraining.{option}"
    having = [one for one in configurations if isinstance(one.options.get(path), int | float)]
    follows = ("run.objective", "run.learner.critic_dim", "pretraining.run.learner.critic_dim")
    labels, groups = [], []
    for group in groups_but(having, (path, *follows)):
        by_value = {float(one.options[path]): one for one in group}
        if len(by_value) == len(group):
            base = min(group, key=lambda one: len(one.label))
            word = phrase(path, base.options[path])
            labels.append(", ".join(part for part in base.label.split(", ") if part != word))
            groups.append(by_value)
    return [Ablation(label, by_value) for label, by_value in zip(numbered(labels), groups, strict=True)]
