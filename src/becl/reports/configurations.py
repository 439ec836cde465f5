"""Runs with the same options, merged over folders, seeds and tasks into configurations that have a name."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from becl.errors import UserError
from becl.reports.folders import FinetuningFolder, Json, TaskOutcome
from becl.reports.labels import labels_of
from becl.reports.names import rank, sorted_tasks
from becl.reports.options import options_of


@dataclass
class Configuration:
    """Everything with the same options, of any seed and on any task."""

    method: str
    options: Json
    label: str = ""
    folders: list[FinetuningFolder] = field(default_factory=list)
    outcomes: dict[str, dict[int, TaskOutcome]] = field(default_factory=dict)
    """By task and seed, both in order."""

    def scores(self, task: str) -> Float[np.ndarray, " seeds"]:
        return np.array([outcome.score for outcome in self.outcomes[task].values()])


def merge(folders: Sequence[FinetuningFolder], plugins: Mapping[str, Json]) -> list[Configuration]:
    """Configurations in the order of the paper's table, with what all folders know of them."""
    by_options: dict[str, Configuration] = {}
    for folder in folders:
        options = options_of(folder.config)
        key = json.dumps(options, sort_keys=True)
        one = by_options.setdefault(key, Configuration(folder.config["method"], options))
        one.folders.append(folder)
        for (task, seed), outcome in folder.outcomes.items():
            seeds = one.outcomes.setdefault(task, {})
            if seed in seeds:
                raise UserError(
                    f"{task} seed {seed} of the same configuration is in {seeds[seed].folder} and in {folder.path}: "
                    "leave one out"
                )
            seeds[seed] = outcome
    merged = list(by_options.values())
    for one, label in zip(merged, labels_of([(one.method, one.options) for one in merged], plugins), strict=True):
        one.label = label
        one.outcomes = {task: dict(sorted(one.outcomes[task].items())) for task in sorted_tasks(one.outcomes)}
    return sorted(merged, key=lambda one: (rank(one.method), len(one.label), one.label))


def all_tasks(configurations: Iterable[Configuration]) -> list[str]:
    return sorted_tasks({task for one in configurations for task in one.outcomes})
