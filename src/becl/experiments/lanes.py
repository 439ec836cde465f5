"""Lanes, each a task, a seed and perhaps a skill: they are finetuned together, with their environments side by side."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from becl.envs.simulations import Step
from becl.learning.protocols import Restorable

MakeEnvironments = Callable[[str, int, Sequence[int]], Restorable]
"""Makes environments from a name and their number, shared equally by seeds."""


class Lane(NamedTuple):
    task: str
    seed: int
    skill: int | None = None
    """The lane's skill, if skills are tried side by side."""

    @property
    def label(self) -> dict[str, Any]:
        return {"task": self.task, "seed": self.seed} | ({} if self.skill is None else {"skill": self.skill})


class Together:
    """Environments of several kinds, joined one after another into one batch."""

    def __init__(self, parts: Sequence[Restorable]):
        self.parts, self.spec = parts, parts[0].spec
        self.num_envs = sum(part.num_envs for part in parts)
        self._ends = np.cumsum([part.num_envs for part in parts])[:-1]

    def reset(self) -> np.ndarray:
        return np.concatenate([part.reset() for part in self.parts])

    def step(self, action: np.ndarray) -> Step:
        steps = [part.step(own) for part, own in zip(self.parts, np.split(action, self._ends), strict=True)]
        ended = [step.truncated & (step.terminated if step.terminated.size else False) for step in steps]
        obs, reward, truncated, next_obs, _ = zip(*steps, strict=True)
        return Step(*map(np.concatenate, (obs, reward, truncated, next_obs, ended)))

    def restart(self) -> np.ndarray:
        return np.concatenate([begin_again(part) for part in self.parts])

    @property
    def resumable(self) -> bool:
        return all(getattr(part, "resumable", True) for part in self.parts)

    def get_state(self) -> list[Any]:
        return [part.get_state() for part in self.parts]

    def set_state(self, state: list[Any]) -> None:
        for part, own in zip(self.parts, state, strict=True):
            part.set_state(own)

    def close(self) -> None:
        for part in self.parts:
            part.close()


def begin_again(environments: Restorable) -> np.ndarray:
    """Starts new episodes, or the first ones again if environments cannot restart."""
    return getattr(environments, "restart", environments.reset)()


def environments_of(lanes: Sequence[Lane], each: int, make: MakeEnvironments, offset: int = 0) -> Restorable:
    """`each` environments per lane, in the order of lanes."""
    tasks = list(dict.fromkeys(lane.task for lane in lanes))
    parts = []
    for task in tasks:
        seeds = [lane.seed + offset for lane in lanes if lane.task == task]
        parts.append(make(task, each * len(seeds), seeds))
    return Together(parts)
