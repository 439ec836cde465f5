"""The replay: a ring buffer of steps on the device. n-step transitions are cut from it when they are sampled.

A transition never leads from one episode into the next. How close to an episode's end it may begin depends on the end.
A time limit says nothing about what would have followed, so all n steps must lie before it (URLB's rule). An end for
good (discount 0) is itself something to learn: there, the sum of rewards is shorter, and no value is added to it.

Images are kept frame by frame: see `stacks.py`.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped

from becl.envs.spec import EnvSpec, Images
from becl.learning.stacks import Finals, init_finals, obs_after, obs_at, split_step
from becl.skills import SkillSpace, skill_index
from becl.specs import added

# Starts drawn for each transition; the first that no time limit cuts short is taken. In episodes of 50 steps, all of
# them are cut short once in 10^11 draws, and then the transition is a shorter one.
CANDIDATES = 8
OVERDRAW = 4  # Transitions drawn for each that is kept, if all skills are to have equally many.


class Experience(NamedTuple):
    """One step of all environments, or many of them."""

    obs: Shaped[Array, "*t_envs_obs"]
    """With images, in the replay: the newest frame."""
    action: Float[Array, "*t envs action"]
    reward: Float[Array, "*t envs"]
    """The environment's own reward."""
    discount: Float[Array, "*t envs"]
    """0 where the task ended for good, else 1."""
    next_obs: Shaped[Array, "*t_envs_obs"]
    """With images, in the replay: how many episodes had ended before."""
    skill: Float[Array, "*t envs skill"]
    """The skill that chose the action."""
    since: Int[Array, "*t envs"]
    """Steps since that skill was drawn."""
    last: Bool[Array, "*t envs"]
    """Whether the episode ended with this step, for good or by a time limit."""


class Transitions(NamedTuple):
    """What a learner sees: from `obs` by `action` to `next_obs`, n steps later or where the episode ended for good."""

    obs: Shaped[Array, "batch *obs"]
    action: Float[Array, "batch action"]
    reward: Float[Array, "batch *targets"]
    """Discounted sum over the steps; or what an objective makes of them, of each target where there are several."""
    discount: Float[Array, " batch"]
    """Discount of what follows `next_obs`; 0 after an end for good."""
    next_obs: Shaped[Array, "batch *obs"]
    skill: Float[Array, "batch skill"]
    trajectory: Int[Array, " batch"]
    """Equal numbers mean the same stretch of one skill in one environment."""
    since: Int[Array, " batch"]
    """Steps from the beginning of that stretch to `next_obs`."""


class ReplayState(NamedTuple):
    steps: Experience
    written: Int[Array, ""]
    """Number of steps ever added; the oldest are overwritten."""
    finals: Finals | tuple[()] = ()
    """For images: the frames that episodes ended with."""


@runtime_checkable
class Sampled(Protocol):
    """What one needs of a replay only to sample from it."""

    def sample(self, state: ReplayState, key: PRNGKeyArray, batch: int) -> Transitions: ...


@dataclass(frozen=True)
class Replay:
    capacity: int = 1_000_000
    """Steps kept per seed."""
    nstep: int = 3
    gamma: float = 0.99
    """Discount per step."""
    released_skill: bool = False
    """Whether a transition gets the skill of the step before, as in the released code by mistake."""
    balanced: bool = added(False)
    """Whether every batch has equally many transitions of each skill, as in the paper's Algorithm 1. Needs discrete
    skills."""

    def init(self, env: EnvSpec, skills: SkillSpace, envs: int, images: Images | None = None) -> ReplayState:
        rows = self.capacity // envs
        shape = (rows, envs)
        obs, next_obs = (jnp.zeros((*shape, env.obs_dim)) for _ in range(2))
        if images is not None:
            obs, next_obs = jnp.zeros((*shape, *images.frame), images.kind), jnp.zeros(shape, jnp.int32)
        steps = Experience(
            obs=obs,
            action=jnp.zeros((*shape, env.action_dim)),
            reward=jnp.zeros(shape),
            discount=jnp.zeros(shape),
            next_obs=next_obs,
            skill=jnp.zeros((*shape, skills.dim)),
            since=jnp.zeros(shape, jnp.int32),
            last=jnp.zeros(shape, bool),
        )
        finals = () if images is None else init_finals(env, images, rows, envs)
        return ReplayState(steps, jnp.zeros((), jnp.int32), finals)

    def bytes(self, env: EnvSpec, skills: SkillSpace, envs: int, images: Images | None = None) -> int:
        """Device memory of one seed's buffer."""
        shapes = jax.eval_shape(lambda: self.init(env, skills, envs, images))
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))

    def add(self, state: ReplayState, step: Experience) -> ReplayState:
        """Stores one step of every environment."""
        row, finals = state.written % state.steps.last.shape[0], state.finals
        if isinstance(finals, Finals):
            step, finals = split_step(finals, step)
        steps = jax.tree.map(lambda kept, new: kept.at[row].set(new), state.steps, step)
        return ReplayState(steps, state.written + 1, finals)

    def sample(self, state: ReplayState, key: PRNGKeyArray, batch: int) -> Transitions:
        """Draws n-step transitions, uniformly over starts that no time limit cuts short; needs `nstep` rows or more,
        and one more for images."""
        return self.cut(state, *self.draw(state, key, batch))

    def draw(
        self, state: ReplayState, key: PRNGKeyArray, batch: int
    ) -> tuple[Int[Array, " batch"], Int[Array, " batch"]]:
        """Draws where the transitions of a batch begin: steps and environments."""
        if not self.balanced:
            return self.starts(state, key, batch)
        start, column = self.starts(state, key, OVERDRAW * batch)
        skill = state.steps.skill[start % len(state.steps.skill), column]
        kept = even_rows(skill_index(skill), skill.shape[-1], batch)
        return start[kept], column[kept]

    def starts(
        self, state: ReplayState, key: PRNGKeyArray, batch: int
    ) -> tuple[Int[Array, " batch"], Int[Array, " batch"]]:
        """Draws where transitions begin: steps, counted from the first ever added, and environments."""
        rows, envs = state.steps.last.shape
        filled = jnp.minimum(state.written, rows)
        env_key, start_key = jax.random.split(key)
        column = jax.random.randint(env_key, (CANDIDATES, batch), 0, envs)
        low, high = 0, filled - self.nstep + 1
        if isinstance(state.finals, Finals):
            # Frames before the oldest are gone, and what the newest step led to is kept with the next.
            low, high = jnp.where(state.written > rows, state.finals.stack - 1, 0), high - 1
        offset = jax.random.randint(start_key, (CANDIDATES, batch), low, high)
        start = state.written - filled + offset
        # A start is cut short if the first end within the window, before its last step, is a time limit.
        broken = jnp.zeros(start.shape, bool)
        going = jnp.ones(start.shape, bool)
        for i in range(self.nstep - 1):
            place = (start + i) % rows, column
            ended = state.steps.last[place]
            broken |= going & ended & (state.steps.discount[place] > 0)
            going &= ~ended
        chosen = jnp.argmin(broken, axis=0), jnp.arange(batch)
        return start[chosen], column[chosen]

    def cut(self, state: ReplayState, start: Int[Array, " batch"], column: Int[Array, " batch"]) -> Transitions:
        """The transitions that begin at given steps; shorter than n steps if the episode ends before."""
        steps = state.steps
        rows, envs = steps.last.shape

        def at(field: Array, number: Int[Array, " batch"]) -> Array:
            return field[number % rows, column]

        reward = jnp.zeros(start.shape)
        discount = jnp.ones(start.shape)
        going = jnp.ones(start.shape, bool)
        end = start
        for i in range(self.nstep):
            here = start + i
            reward += jnp.where(going, discount * at(steps.reward, here), 0.0)
            discount = jnp.where(going, discount * self.gamma * at(steps.discount, here), discount)
            end = jnp.where(going, here, end)
            going &= ~at(steps.last, here)
        skill = at(steps.skill, start)
        since = at(steps.since, start)
        if self.released_skill:
            oldest = state.written - jnp.minimum(state.written, rows)
            before = jnp.maximum(start - 1, oldest)
            known = ~at(steps.last, before)[:, None]
            skill = jnp.where(known, at(steps.skill, before), skill)
        if isinstance(state.finals, Finals):
            obs, next_obs = obs_at(steps, state.finals, start, column), obs_after(steps, state.finals, end, column)
        else:
            obs, next_obs = at(steps.obs, start), at(steps.next_obs, end)
        return Transitions(
            obs=obs,
            action=at(steps.action, start),
            reward=reward,
            discount=discount,
            next_obs=next_obs,
            skill=skill,
            trajectory=(start - since) * envs + column,
            since=since + end - start + 1,
        )


def even_rows(skill: Int[Array, " drawn"], count: int, batch: int) -> Int[Array, " batch"]:
    """Picks rows so that each skill has equally many: row i is one of skill i mod `count`.

    A skill that was drawn too seldom repeats its rows; if it was not drawn at all, others stand in for it.
    """
    order = jnp.argsort(skill, stable=True)
    number = jnp.bincount(skill, length=count)
    first = jnp.cumsum(number) - number
    row = jnp.arange(batch)
    wanted = row % count
    found = first[wanted] + (row // count) % jnp.maximum(number[wanted], 1)
    return order[jnp.where(number[wanted] > 0, found, row)]
