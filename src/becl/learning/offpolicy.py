"""Off-policy learning (URLB's schedule): act, learn from what is stored, simulate, store.

One seed's step is `act`, then `learn`. Both are pure; `programs.py` compiles them for all seeds together, and
`training.py` has the loop that alternates between them and the environments. To *price* a batch is to compute its
rewards.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from becl.envs.spec import EnvSpec
from becl.errors import UserError
from becl.learning.choice import Prior, SkillChoice
from becl.learning.ddpg import DDPG
from becl.learning.protocols import Learner
from becl.learning.replay import Experience, Replay, ReplayState, Transitions
from becl.nn.precision import Precision
from becl.objectives.particles import init_scale, update_scale
from becl.objectives.protocol import Batch, Metrics, Objective, fit_in_turn
from becl.specs import added

Data = Array | np.ndarray


class RunState(NamedTuple):
    """Everything that one seed's learning depends on, except its environments."""

    key: PRNGKeyArray
    learner: Any
    objective: Any
    replay: ReplayState
    skill: Any = ()
    """State of the rule that chooses skills."""
    scale: Any = ()
    """Running statistics of rewards, if they are normalised."""


class Activity(NamedTuple):
    """What every environment is doing: its skill, for how many steps, and the action."""

    skill: Float[Array, "envs skill"]
    since: Int[Array, " envs"]
    action: Float[Array, "envs action"]


class Pricing(NamedTuple):
    """The states that a transition's reward depends on."""

    objective: Any
    scale: Any


class Outcome(NamedTuple):
    """What a step of the environments led to."""

    obs: Float[Data, "*seeds envs obs"]
    """Observations before the step."""
    next_obs: Float[Data, "*seeds envs obs"]
    reward: Float[Data, "*seeds envs"]
    last: Bool[Data, "*seeds envs"]
    terminated: Bool[Data, "*seeds envs"]
    """Whether the episode ended for good, so that nothing follows."""


@dataclass(frozen=True)
class OffPolicy:
    """One run of DDPG with any objective."""

    env: EnvSpec
    objective: Objective
    learner: Learner = DDPG()
    replay: Replay = Replay()
    envs: int = 32
    """Environments per seed; 1 is the published schedule."""
    batch: int = 1024
    fits_per_update: int = 1
    """Batches that the objective is fitted to before each update of the learner, which sees the last of them."""
    skill_interval: int | None = 50
    """Steps after which an environment's skill is drawn anew, counted from the last draw; a new episode draws one, too.
    None: only new episodes do."""
    random_steps: int = 4000
    """Steps with uniformly random actions, and without updates, at the beginning."""
    warmup: Literal["random", "policy"] = "random"
    """How actions are chosen in these steps: at random, or by the policy as it is (if it was trained before)."""
    steps_per_update: int = 2
    update_repeats: int = 1
    """How many updates take the place of one."""
    choice: SkillChoice = Prior()
    """The rule for which skill acts."""
    objective_obs: tuple[int, ...] = ()
    """Indices of the numbers of an observation that the objective sees, such as a position; empty: all of them."""
    precision: Precision = "auto"
    """Precision of matrix products; see `becl.nn.precision`."""
    reward_scale: float = added(1.0)
    """The objective's reward is multiplied by this before the learner sees it. This matters: Adam's steps do not shrink
    with the reward, so a small reward leaves the policy less certain (docs/transfer.md)."""
    reward_normalise: Literal["none", "std"] = added("none")
    """`std` first divides rewards by their running standard deviation."""

    def __post_init__(self) -> None:
        if self.envs < 1 or self.steps_per_update < 1:
            raise UserError(f"envs {self.envs}, steps_per_update {self.steps_per_update}: at least 1 is needed")
        if self.envs % self.steps_per_update and self.steps_per_update % self.envs:
            raise UserError(
                f"envs {self.envs}: with an update every {self.steps_per_update} steps, a multiple or a divisor of "
                f"{self.steps_per_update} is needed"
            )
        if other := [number for number in self.objective_obs if not 0 <= number < self.env.obs_dim]:
            raise UserError(f"objective_obs {other[0]}: an observation has numbers 0 to {self.env.obs_dim - 1}")
        if self.replay.capacity // self.envs < self.replay.nstep:
            raise UserError(f"replay.capacity {self.replay.capacity}: too small for {self.envs} environments")

    @property
    def seen(self) -> EnvSpec:
        """The environment as the objective sees it."""
        return self.env._replace(obs_dim=len(self.objective_obs)) if self.objective_obs else self.env

    @property
    def updates(self) -> int:
        """Updates per step of all environments, in steps that have any."""
        return max(1, self.envs // self.steps_per_update) * self.update_repeats

    def learns_at(self, step: int) -> bool:
        """Whether there are updates before the next step of the environments, when this many steps have been taken."""
        enough = step >= self.random_steps and step // self.envs >= self.replay.nstep
        return enough and step % self.steps_per_update == 0

    def init(self, key: PRNGKeyArray) -> tuple[RunState, Activity]:
        keys = jax.random.split(key, 4)
        skills = self.objective.skills
        state = RunState(
            keys[0],
            self.learner.init(keys[1], self.env, skills),
            self.objective.init(keys[2], self.seen),
            self.replay.init(self.env, skills, self.envs),
            self.choice.init(keys[3], self.env, skills),
            () if self.reward_normalise == "none" else init_scale(),
        )
        nothing = Activity(
            jnp.zeros((self.envs, skills.dim)),
            jnp.zeros(self.envs, jnp.int32),
            jnp.zeros((self.envs, self.env.action_dim)),
        )
        return jax.tree.map(strongly_typed, state), nothing

    def act(
        self,
        key: PRNGKeyArray,
        actor: Any,
        rule: Any,
        before: Activity,
        obs: Float[Array, "envs obs"],
        began: Bool[Array, " envs"],
        number: Int[Array, ""],
    ) -> Activity:
        """Skills and actions for the `number`-th step of all environments; `began` marks new episodes."""
        skill_key, action_key = jax.random.split(jax.random.fold_in(key, 2 * number))
        drawn = began if self.skill_interval is None else began | (before.since + 1 >= self.skill_interval)
        fresh = self.choice.draw(rule, skill_key, self.objective.skills, self.envs, number)
        skill = jnp.where(drawn[:, None], fresh, before.skill)
        since = jnp.where(drawn, 0, before.since + 1)
        random = (number * self.envs < self.random_steps) & (self.warmup == "random")
        return Activity(skill, since, self.learner.act(actor, obs, skill, action_key, random))

    def store(self, replay: ReplayState, rule: Any, choice: Activity, outcome: Outcome) -> tuple[ReplayState, Any]:
        """Stores a step of all environments, and shows it to the rule that chooses skills."""
        step = Experience(
            obs=jnp.asarray(outcome.obs),
            action=choice.action,
            reward=jnp.asarray(outcome.reward),
            discount=1.0 - jnp.asarray(outcome.terminated),
            next_obs=jnp.asarray(outcome.next_obs),
            skill=choice.skill,
            since=choice.since,
            last=jnp.asarray(outcome.last),
        )
        return self.replay.add(replay, step), self.choice.watch(rule, step)

    def learn(self, state: RunState, number: Int[Array, ""]) -> tuple[RunState, Metrics]:
        """The updates before the `number`-th step of all environments; metrics are their means."""
        key = jax.random.fold_in(state.key, 2 * number + 1)
        sample_key, *keys, rule_key = jax.random.split(key, 2 + 2 * self.updates)
        # All batches of all updates are drawn at once: a few large gathers instead of many small ones.
        drawn = self.replay.sample(state.replay, sample_key, self.updates * self.fits_per_update * self.batch)
        shape = (self.updates, self.fits_per_update, self.batch)
        drawn = jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), drawn)
        price_keys, learn_keys = jnp.stack(keys[: self.updates]), jnp.stack(keys[self.updates :])

        # Rewards do not depend on what the learner makes of them. So while the learner is at one update, the objective
        # may be at the next: side by side if the device can do that.
        def body(carry: tuple[Any, Pricing, Transitions], step: tuple[PRNGKeyArray, PRNGKeyArray, Transitions]):
            learner, pricing, priced = carry
            learn_key, price_key, batches = step
            pricing, following, fitted = self.price(state.learner, pricing, price_key, batches)
            learner, learned = self.learner.update(learner, priced, learn_key)
            return (learner, pricing, following), (fitted, learned)

        first, rest = (jax.tree.map(lambda x, part=part: x[part], (price_keys, drawn)) for part in (0, slice(1, None)))
        pricing, priced, fitted = self.price(state.learner, Pricing(state.objective, state.scale), *first)
        carry = (self.learner.begin(state.learner), pricing, priced)
        (learner, pricing, priced), metrics = jax.lax.scan(body, carry, (learn_keys[:-1], *rest))
        learner, learned = self.learner.update(learner, priced, learn_keys[-1])
        learner = self.learner.end(learner)
        metrics = jax.tree.map(lambda many, one: (many.sum(0) + one) / self.updates, metrics, (fitted, learned))
        rule = self.choice.learn(state.skill, rule_key, self.replay, state.replay, number)
        state = state._replace(learner=learner, objective=pricing.objective, skill=rule, scale=pricing.scale)
        return state, metrics[0] | metrics[1]

    def price(
        self, learner: Any, pricing: Pricing, key: PRNGKeyArray, batches: Transitions
    ) -> tuple[Pricing, Transitions, Metrics]:
        """Fits the representation to each of the batches, and computes the rewards of the last batch with it."""
        objective, scale = pricing
        *fit_keys, reward_key = jax.random.split(key, self.fits_per_update + 1)
        fitted, last = {}, batches
        for number, fit_key in enumerate(fit_keys):
            last = jax.tree.map(lambda x, number=number: x[number], batches)
            left = self.fits_per_update - number
            objective, fitted = fit_in_turn(self.objective, objective, self.to_batch(learner, last), fit_key, left)
        objective, reward = self.objective.reward(objective, self.to_batch(learner, last), reward_key)
        metrics = {f"objective_{name}": value for name, value in fitted.items()}
        metrics |= {"reward": reward.mean(), "extrinsic": last.reward.mean()}
        scale, resized = self.resize(scale, reward)
        if self.reward_scale != 1 or self.reward_normalise != "none":
            metrics["learner_reward"] = resized.mean()
        return Pricing(objective, scale), last._replace(reward=resized), metrics

    def resize(self, scale: Any, reward: Float[Array, " batch"]) -> tuple[Any, Float[Array, " batch"]]:
        """Rewards of the size that the learner should see, and the running statistics with these rewards in them."""
        if self.reward_normalise == "std":
            scale = update_scale(scale, reward)
            reward = reward / jnp.maximum(jnp.sqrt(scale.variance), 1e-8)  # All rewards may be equal.
        return scale, self.reward_scale * reward

    def diagnose(self, state: RunState, number: Int[Array, ""]) -> Metrics:
        """Diagnoses the learner's networks on a batch from the replay, before the `number`-th step."""
        key = jax.random.fold_in(jax.random.fold_in(state.key, number), 0)
        batch = self.replay.sample(state.replay, key, self.batch)
        return self.learner.diagnose(state.learner, batch)

    def to_batch(self, learner: Any, transitions: Transitions) -> Batch:
        """Transitions as the objective sees them."""
        interval = self.skill_interval or self.env.episode_length

        def seen(obs: Float[Array, "batch all"]) -> Float[Array, "batch seen"]:
            obs = self.learner.view(learner, obs)
            return obs[:, np.array(self.objective_obs)] if self.objective_obs else obs

        return Batch(
            obs=seen(transitions.obs),
            action=transitions.action,
            next_obs=seen(transitions.next_obs),
            skill=transitions.skill,
            trajectory=transitions.trajectory,
            progress=jnp.minimum(transitions.since / interval, 1.0),
            reward=transitions.reward,
        )


def strongly_typed(x: Array) -> Array:
    """The same array with a strong type. A weak type, which gives way to other types, would be strong after the first
    update, and everything would be compiled a second time for that."""
    return jax.lax.convert_element_type(x, x.dtype) if getattr(x, "weak_type", False) else x
