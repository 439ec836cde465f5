"""The loop between a run's programs and its environments.

Actions are computed from the parameters before the updates, so that the host simulates a step while the device learns.
With one environment this is the published order to the letter.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Key, Shaped

from becl.envs.simulations import Step
from becl.learning.offpolicy import Activity, Data, OffPolicy, Outcome, RunState
from becl.learning.programs import programs, usable_devices
from becl.learning.protocols import Environments
from becl.objectives.protocol import Metrics


class Loop(NamedTuple):
    """Everything that the rest of a run depends on between two steps, except its environments."""

    number: int
    """How many steps of all environments were taken."""
    state: RunState
    choice: Activity
    obs: Shaped[Data, "seeds envs *obs"]
    began: Bool[np.ndarray, "seeds envs"]
    pending: Outcome
    """The last outcome, which is not stored yet."""


class TrainingStep(NamedTuple):
    """Where a run stands after a step of all environments. Copy what is to be kept: the next step reuses its memory."""

    step: int
    """Steps taken per seed."""
    loop: Loop
    metrics: Metrics | None
    """Metrics of the updates before this step, by seed; None if there were none. May still be being computed."""
    outcome: Step
    diagnose: Callable[[], Metrics]
    """Says whether the learner's networks can still learn, by seed; computed when called."""

    @property
    def state(self) -> RunState:
        return self.loop.state


LARGEST = float(np.finfo(np.float32).max)


class EnvironmentFailed(Exception):
    """An environment raised an error, which is the cause of this one."""


@contextlib.contextmanager
def environment_errors(step: int) -> Iterator[None]:
    """Marks errors raised within as an environment's, to tell them from all others."""
    try:
        yield
    except Exception as error:
        said = str(error).strip().splitlines()
        what = f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
        raise EnvironmentFailed(f"an environment failed after {step:,} steps: {what}") from error


def check_outcome(step: Step) -> None:
    """Raises on NaN, infinity and what float32 cannot hold before they spread to all weights."""
    for name, values in (("an observation", step.next_obs), ("an observation", step.obs), ("a reward", step.reward)):
        if isinstance(values, np.ndarray) and not (fine := np.abs(values) <= LARGEST).all():  # Images are finite.
            place = np.argwhere(~fine)[0].tolist()
            which = f"number {place[1]} of {name}" if values.ndim > 1 else name
            value = values[tuple(place)]
            raise ValueError(f"{which} is {value:g}{', more than float32 can hold' if np.isfinite(value) else ''}")


class Diverged(FloatingPointError):
    """A policy's actions are no longer finite numbers."""

    def __init__(self, step: int, seeds: np.ndarray):
        super().__init__(f"not a number after {step:,} steps")
        self.step, self.seeds = step, seeds


def train(
    run: OffPolicy,
    envs: Environments,
    keys: Key[Array, " seeds"],
    steps: int,
    prepare: Callable[[RunState], RunState] = lambda state: state,
    resume: Loop | None = None,
    begun: int = 0,
) -> Iterator[TrainingStep]:
    """Trains seeds together, one key each, for `steps` steps per seed; yields after every step of all environments.

    `prepare` may change the state of all seeds before the first step. With `resume` the run continues from there; the
    environments must be as they were then. A run that goes on after `begun` steps with an empty replay first fills it.
    """
    seeds = len(keys)
    if envs.num_envs != seeds * run.envs:
        raise ValueError(f"{envs.num_envs} environments for {seeds} seeds of {run.envs}")
    parts = programs(run, usable_devices(seeds))
    empty = -(-begun // run.envs)

    def by_seed(x: Any) -> Any:
        return x.reshape(seeds, run.envs, *x.shape[1:])

    pending: Outcome | None = None
    if resume is None:
        first = empty
        state, choice = parts.init(keys)
        state = prepare(state)
        obs = by_seed(envs.reset())
        began = np.ones((seeds, run.envs), bool)
    else:
        first, state, choice, obs, began, pending = resume
    for number in range(first, -(-steps // run.envs)):
        metrics, before = None, choice
        choice = parts.act(state.key, state.learner.actor, state.skill, before, obs, began, np.int32(number))
        if pending is not None:
            if run.learns_at((number - empty) * run.envs):
                state, metrics = parts.store_and_learn(state, before, pending, np.int32(number))
            else:
                replay, rule = parts.store(state.replay, state.skill, before, pending)
                state = state._replace(replay=replay, skill=rule)
        action = np.asarray(choice.action)
        if not np.isfinite(action).all():
            raise Diverged(number * run.envs, np.flatnonzero(~np.isfinite(action).all((1, 2))))
        with environment_errors(number * run.envs):
            step = envs.step(action.reshape(envs.num_envs, -1))
            check_outcome(step)
        reward = step.reward.astype(np.float32)
        over = step.terminated if step.terminated.size else np.zeros(envs.num_envs, bool)
        pending = Outcome(obs, by_seed(step.next_obs), by_seed(reward), by_seed(step.truncated), by_seed(over))
        obs, began = by_seed(step.obs), by_seed(step.truncated)
        loop = Loop(number + 1, state, choice, obs, began, pending)
        diagnose = functools.partial(parts.diagnose, state, np.int32(number))
        yield TrainingStep((number + 1) * run.envs, loop, metrics, step, diagnose)
