"""A method's reward for learners of others: NumPy in, NumPy out.

    curiosity = becl.intrinsic("rnd", env)
    curiosity.fit((obs, action, next_obs))              # one step of training on a batch
    reward = curiosity.reward(obs, action, next_obs)    # one number a transition

Rewards are those of the method in pretraining, where a batch is priced as a whole: many methods compare its rows with
each other.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32

from becl.api.checks import checked
from becl.api.runs import Environment
from becl.envs.external import LENGTH, Layout, Ranges, actions_of, is_external, maker_of
from becl.envs.spec import EnvSpec
from becl.errors import UserError, unknown
from becl.experiments.environments import choose_numbers, parts_of, spec_of
from becl.experiments.pretraining import EXAMPLE, apply_setting, check_run, with_dim, with_width
from becl.experiments.settings import settings_of
from becl.learning.offpolicy import OffPolicy
from becl.objectives import Objective, find_method, name_of
from becl.objectives.extrinsic import Extrinsic
from becl.objectives.protocol import Batch
from becl.objectives.total import named_parts
from becl.skills import NoSkill, SkillSpace
from becl.trust import trust

RANGES = ("environment", "scaled")
"""In which actions may come."""
NEEDED = ("obs", "action", "next_obs")
OPTIONAL = ("skill", "trajectory", "progress")
"""What a batch may say besides, as `becl.Batch` has it."""


class Surroundings(NamedTuple):
    """What must be known of an environment to read its transitions."""

    spec: EnvSpec
    layout: Layout
    low: np.ndarray
    half: np.ndarray
    """Half the range of actions."""
    parts: Mapping[str, slice]
    """Named parts of the observation."""


class Intrinsic:
    """The reward of a method outside becl's own loop. It can be pickled, with all that it has learned."""

    def __init__(self, method: str, objective: Any, env: Surroundings, seen: Sequence[int], actions: str, seed: int):
        self.method, self._objective, self._env, self._seen = method, objective, env, np.array(seen, int)
        self._actions, self._seed, self._calls = actions, seed, 0
        spec = env.spec._replace(obs_dim=len(self._seen))
        self._state = init(objective, jax.random.key(seed), spec)

    def __repr__(self) -> str:
        return f"Intrinsic({self.method}, {len(self._seen)} numbers of an observation, {self._calls} calls)"

    @property
    def skills(self) -> SkillSpace:
        """The space of the method's skills; `NoSkill` for methods that only explore."""
        return self._objective.skills

    def draw(self, count: int = 1) -> Float32[np.ndarray, "count skill"]:
        """Skills from the prior, a row each, to act with and to hand over with the transitions."""
        return np.asarray(self.skills.sample(self._key(), count), np.float32)

    def fit(self, batch: Sequence[Any] | Mapping[str, Any]) -> dict[str, float]:
        """One step of training on a batch: (obs, action, next_obs), with skills behind if the method has some; or a
        mapping or `becl.Batch`, which may also say `trajectory` and `progress`. Gives losses by name."""
        self._state, metrics = fit(self._objective, self._state, self._batch(**named(batch)), self._key())
        return {name: float(value) for name, value in metrics.items()}

    def reward(
        self,
        obs: Any,
        action: Any,
        next_obs: Any,
        skill: Any = None,
        *,
        trajectory: Any = None,
        progress: Any = None,
    ) -> Float32[np.ndarray, " batch"]:
        """The rewards of a batch. Running statistics, where the method has some, take note of it."""
        batch = self._batch(obs, action, next_obs, skill, trajectory, progress)
        self._state, rewards = reward(self._objective, self._state, batch, self._key())
        return np.asarray(rewards, np.float32)

    def _key(self) -> Array:
        """Another one for every call."""
        self._calls += 1
        return jax.random.fold_in(jax.random.key(self._seed), self._calls)

    def _batch(
        self, obs: Any, action: Any, next_obs: Any, skill: Any = None, trajectory: Any = None, progress: Any = None
    ) -> Batch:
        """Checked, flattened and scaled as objectives have it."""
        seen, next_seen = self._vectors("obs", obs), self._vectors("next_obs", next_obs)
        rows = len(seen)
        parts = {"next_obs": next_seen, "action": self._scaled(action), "skill": self._skill(skill, rows)}
        parts["trajectory"] = np.arange(rows) if trajectory is None else np.asarray(trajectory)
        parts["progress"] = np.ones(rows) if progress is None else np.asarray(progress)
        for name, part in parts.items():
            if len(part) != rows or (name in OPTIONAL[1:] and part.ndim != 1):
                raise UserError(f"{name} of shape {part.shape}, but obs has {rows} rows")
        self._check_rows(rows)
        numbers = {name: np.asarray(part, np.float32) for name, part in parts.items() if name != "trajectory"}
        for name, part in {"obs": seen, **numbers}.items():
            if not np.isfinite(part).all():
                raise UserError(f"{name}: row {np.flatnonzero(~np.isfinite(part.reshape(rows, -1)).all(1))[0]} has "
                                "numbers that are not finite")  # fmt: skip
        return Batch(
            obs=jnp.asarray(seen),
            trajectory=jnp.asarray(parts["trajectory"], jnp.int32),
            reward=jnp.zeros(rows),
            **{name: jnp.asarray(part) for name, part in numbers.items()},
        )

    def _check_rows(self, rows: int) -> None:
        """Refuses batches in which there is nothing to compare with."""
        if rows < 2:
            raise UserError(f"a batch of {rows}: rewards compare transitions with each other; hand over many, e.g. 256")
        for prefix, part in named_parts(self._objective):
            if getattr(part, "neighbours", 0) > rows:
                of = f" of {prefix.rstrip('.')}" if prefix else ""
                raise UserError(f"a batch of {rows}: fewer than the {part.neighbours} neighbours{of}")

    def _vectors(self, name: str, obs: Any) -> Float32[np.ndarray, "rows seen"]:
        """Observations as the environment has them, or as vectors already, as what the objective sees of them."""
        layout = self._env.layout
        if isinstance(obs, Mapping | tuple):
            vectors = layout.batch(obs, len(np.asarray(first_leaf(obs))))
        else:
            vectors = np.asarray(obs, np.float32)
            vectors = vectors.reshape(len(vectors), -1) if vectors.ndim > 1 else vectors
        if vectors.ndim != 2 or vectors.shape[1] != layout.size:
            raise UserError(
                f"{name} of shape {vectors.shape}: rows of {layout.size} numbers are needed, one a transition"
            )
        return vectors[:, self._seen]

    def _scaled(self, action: Any) -> Float32[np.ndarray, "rows action"]:
        """Actions in [-1, 1], cut off there as the environment does."""
        vectors, count = np.asarray(action, np.float64), len(self._env.low)
        vectors = vectors.reshape(len(vectors), -1) if vectors.ndim > 1 else vectors
        if vectors.ndim != 2 or vectors.shape[1] != count:
            raise UserError(f"action of shape {np.shape(action)}: rows of {count} numbers are needed")
        if self._actions == "environment":
            half = np.where(self._env.half > 0, self._env.half, 1.0)
            vectors = (vectors - self._env.low - self._env.half) / half
        return np.clip(vectors, -1.0, 1.0).astype(np.float32)

    def _skill(self, skill: Any, rows: int) -> Float32[np.ndarray, "rows skill"]:
        space = self.skills
        if isinstance(space, NoSkill):
            if skill is not None and np.size(skill):
                raise UserError(f"skill: {self.method} has no skills; leave it out")
            return np.zeros((rows, 0), np.float32)
        if skill is None:
            raise UserError(f"{self.method} has skills: hand over those that acted, rows of {space.dim} numbers")
        vectors = np.asarray(skill, np.float32)
        if vectors.ndim != 2 or vectors.shape[1] != space.dim:
            raise UserError(f"skill of shape {vectors.shape}: rows of {space.dim} numbers are needed, as draw() gives")
        return vectors


@checked
def intrinsic(
    method: str | Objective,
    env: Environment,
    *,
    skills: int | None = None,
    hidden: int | None = None,
    objective_obs: str | Sequence[int] | None = None,
    set: Sequence[str] | Mapping[str, Any] = (),
    actions: str = "environment",
    seed: int = 0,
) -> Intrinsic:
    """A method's reward for a learner of your own, from `becl.Batch`es or plain NumPy arrays.

    `env` is a name as in `pretrain`, or anything with spaces: an environment, a vector of them, a function that makes
    one. `skills`, `hidden`, `objective_obs` and `set` are as in `pretrain`. `actions` says in which range they come:
    the environment's own, or "scaled" to [-1, 1], as the replay buffer of Stable-Baselines3 keeps them.
    """
    if actions not in RANGES:
        raise unknown("range of actions", actions, RANGES)
    found = surroundings(env)
    name = method if isinstance(method, str) else name_of(method)
    objective: Any = find_method(name).objective if isinstance(method, str) else method
    if any(isinstance(part, Extrinsic) for _, part in named_parts(objective)):
        raise UserError(f"{name}: ddpg rewards what the task does; name methods that need no task")
    if skills is not None:
        objective = dataclasses.replace(objective, skills=with_dim(name, objective.skills, skills))
    run = OffPolicy(found.spec, objective)
    run = run if hidden is None else with_width(run, hidden)
    for setting in settings_of(set, EXAMPLE):
        before = run
        run = apply_setting(run, name, setting)
        if dataclasses.replace(run, objective=before.objective) != before:
            raise UserError(f"set {setting}: only options of {name} itself, which `becl methods {name}` lists")
    check_run(run)
    count = found.spec.obs_dim
    seen = range(count) if objective_obs is None else choose_numbers(objective_obs, found.parts, count, "objective_obs")
    return Intrinsic(name, run.objective, found, seen, actions, seed)


def surroundings(env: Environment) -> Surroundings:
    """What an environment's transitions look like, from its name or its spaces."""
    from gymnasium.spaces import Box

    if isinstance(env, str):
        trust(env)
        spec = spec_of(env)
        if not is_external(env):
            unit = Box(-1.0, 1.0, (spec.action_dim,))
            found = of_spaces(Box(-np.inf, np.inf, (spec.obs_dim,)), unit, spec.episode_length)
            return found._replace(parts=parts_of(env))
        env = maker_of(env)
    made: Any = env() if callable(env) and not hasattr(env, "action_space") else env
    spaces = [
        getattr(made, f"single_{name}_space", getattr(made, f"{name}_space", None))
        for name in ("observation", "action")
    ]
    if any(space is None for space in spaces):
        raise UserError(f"{type(made).__name__} is no environment: it has no observation_space and action_space")
    limit = getattr(getattr(made, "spec", None), "max_episode_steps", None)
    if made is not env:
        made.close()
    return of_spaces(spaces[0], spaces[1], limit or LENGTH)


def of_spaces(observation: Any, action: Any, episode_length: int) -> Surroundings:
    layout = Layout(observation)
    ranges = actions_of(action)
    if not isinstance(ranges, Ranges):
        raise UserError(f"actions are {type(action).__name__}: only numbers (Box) are supported here")
    parts = {name: place for name, place in layout.parts.items() if name}
    return Surroundings(EnvSpec(layout.size, ranges.size, episode_length), layout, ranges.low, ranges.half, parts)


def named(batch: Sequence[Any] | Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a batch by name."""
    if isinstance(batch, Batch):
        batch = batch._asdict()
    if not isinstance(batch, Mapping):
        if not 3 <= len(batch) <= 4:
            raise UserError(f"a batch of {len(batch)} parts: (obs, action, next_obs), with skills behind, is needed")
        return dict(zip((*NEEDED, "skill"), batch, strict=False))
    given = {name: part for name, part in batch.items() if name != "reward"}  # The task's own.
    for name in given:
        if name not in (*NEEDED, *OPTIONAL):
            raise unknown("part of a batch", name, (*NEEDED, *OPTIONAL))
    if missing := [name for name in NEEDED if name not in given]:
        raise UserError(f"a batch without {missing[0]}: {', '.join(NEEDED)} are needed")
    return given


def first_leaf(obs: Any) -> Any:
    """Any of the arrays that an observation is made of."""
    while isinstance(obs, Mapping | tuple):
        obs = next(iter(obs.values() if isinstance(obs, Mapping) else obs))
    return obs


# Compiled once for every objective and size of batch.


@functools.partial(jax.jit, static_argnums=(0, 2))
def init(objective: Any, key: Array, spec: EnvSpec) -> Any:
    return objective.init(key, spec)


@functools.partial(jax.jit, static_argnums=0)
def fit(objective: Any, state: Any, batch: Batch, key: Array) -> Any:
    return objective.fit(state, batch, key)


@functools.partial(jax.jit, static_argnums=0)
def reward(objective: Any, state: Any, batch: Batch, key: Array) -> Any:
    return objective.reward(state, batch, key)
