"""Off-policy learning (URLB's schedule): act, learn from what is stored, simulate, store.

Observations are numbers or, with `vision`, images, in front of which an encoder stands (`seeing.py`).

One seed's step is `act`, then `learn`. Both are pure; `programs.py` compiles them for all seeds together, and
`training.py` has the loop that alternates between them and the environments. To *price* a batch is to compute its
rewards.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray, Shaped

from becl.envs.spec import EnvSpec, Images
from becl.errors import UserError
from becl.learning.choice import ChoosesByState, Prior, SkillChoice
from becl.learning.ddpg import DDPG
from becl.learning.protocols import Learner
from becl.learning.replay import Experience, Replay, ReplayState, Transitions
from becl.learning.seeing import Seeing, Viewed, Vision
from becl.nn.precision import Precision
from becl.objectives.particles import init_scale, update_scale
from becl.objectives.protocol import Batch, Metrics, Objective, fit_in_turn, priced
from becl.objectives.total import fitted_loss
from becl.specs import added

Data = Array | np.ndarray
Keys = Key[Array, " updates"]


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

    obs: Shaped[Data, "*seeds_envs_obs"]
    """Observations before the step."""
    next_obs: Shaped[Data, "*seeds_envs_obs"]
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
    vision: Vision | None = added(None)
    """What is seen where observations are images, and through which encoder."""

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
        if self.replay.capacity // self.envs < self.needed:
            raise UserError(f"replay.capacity {self.replay.capacity}: too small for {self.envs} environments")
        if self.vision is not None and self.objective_obs:
            raise UserError("objective_obs: observations are images here, and have no numbers to choose from")

    @property
    def agent(self) -> Learner:
        """The learner, and the encoder in front of it where there is one."""
        if self.vision is None:
            return self.learner
        assert isinstance(self.learner, DDPG)
        return Seeing(self.learner, self.vision)

    @property
    def images(self) -> Images | None:
        """What observations look like where they are images."""
        return None if self.vision is None else self.vision.images

    @property
    def obs(self) -> jax.ShapeDtypeStruct:
        """Shape and type of an observation."""
        if self.images is None:
            return jax.ShapeDtypeStruct((self.env.obs_dim,), jnp.float32)
        return jax.ShapeDtypeStruct(self.images.shape, self.images.kind)

    @property
    def needed(self) -> int:
        """Rows that the replay must have at least: of images, a whole stack and the frame after the last step too."""
        return self.replay.nstep + (0 if self.vision is None else self.vision.stack)

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
        rows = self.replay.nstep if self.vision is None else self.replay.nstep + 1
        enough = step >= self.random_steps and step // self.envs >= rows
        return enough and step % self.steps_per_update == 0

    def init(self, key: PRNGKeyArray) -> tuple[RunState, Activity]:
        keys = jax.random.split(key, 4)
        skills = self.objective.skills
        state = RunState(
            keys[0],
            self.agent.init(keys[1], self.env, skills),
            self.objective.init(keys[2], self.seen),
            self.replay.init(self.env, skills, self.envs, self.images),
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
        obs: Shaped[Array, "envs *obs"],
        began: Bool[Array, " envs"],
        number: Int[Array, ""],
    ) -> Activity:
        """Skills and actions for the `number`-th step of all environments; `began` marks new episodes."""
        skill_key, action_key = jax.random.split(jax.random.fold_in(key, 2 * number))
        drawn = began if self.skill_interval is None else began | (before.since + 1 >= self.skill_interval)
        fresh = self.draw(rule, skill_key, obs, number)
        skill = jnp.where(drawn[:, None], fresh, before.skill)
        since = jnp.where(drawn, 0, before.since + 1)
        random = (number * self.envs < self.random_steps) & (self.warmup == "random")
        return Activity(skill, since, self.agent.act(actor, obs, skill, action_key, random))

    def draw(
        self, rule: Any, key: PRNGKeyArray, obs: Shaped[Array, "envs *obs"], number: Int[Array, ""]
    ) -> Float[Array, "envs skill"]:
        """For each environment the skill that begins with the `number`-th step, should one begin."""
        if isinstance(self.choice, ChoosesByState):
            return self.choice.draw_by_state(rule, key, obs, number)
        return self.choice.draw(rule, key, self.objective.skills, self.envs, number)

    def judged(
        self, actor: Any, rule: Any, obs: Shaped[Array, "envs *obs"], skill: Float[Array, "envs skill"]
    ) -> Float[Array, "envs action"]:
        """Actions to be judged by, of a skill or of those that a rule chooses by the state."""
        if isinstance(self.choice, ChoosesByState):
            skill = self.choice.best_by_state(rule, obs)
        return self.agent.best(actor, obs, skill)

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
        price_keys, learn_keys = jnp.stack(keys[: self.updates]), jnp.stack(keys[self.updates :])
        # All batches of all updates are drawn at once: a few large gathers instead of many small ones.
        drawn = self.replay.draw(state.replay, sample_key, self.updates * self.fits_per_update * self.batch)
        shape = (self.updates, self.fits_per_update, self.batch)
        if self.vision is None:
            batches = jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), self.replay.cut(state.replay, *drawn))
            learner, pricing, metrics = self.side_by_side(state, batches, price_keys, learn_keys)
            replay = self.replay
        else:
            places = (drawn[0].reshape(shape), drawn[1].reshape(shape))
            learner, pricing, metrics = self.in_turn(state, places, price_keys, learn_keys)
            replay = Viewed(self.replay, learner.encoder)
        rule = self.choice.learn(state.skill, rule_key, replay, state.replay, number)
        state = state._replace(learner=learner, objective=pricing.objective, skill=rule, scale=pricing.scale)
        return state, metrics[0] | metrics[1]

    def side_by_side(
        self, state: RunState, drawn: Transitions, price_keys: Keys, learn_keys: Keys
    ) -> tuple[Any, Pricing, tuple[Metrics, Metrics]]:
        """All updates of a step. What is rewarded does not depend on what is learned from it. So while the learner is
        at one update, the objective may be at the next: side by side where the device can."""

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
        return learner, pricing, metrics

    def in_turn(
        self,
        state: RunState,
        places: tuple[Int[Array, "updates fits batch"], Int[Array, "updates fits batch"]],
        price_keys: Keys,
        learn_keys: Keys,
    ) -> tuple[Any, Pricing, tuple[Metrics, Metrics]]:
        """All updates of a step on images: one after another, as both losses may train the encoder. Only places are
        drawn before; images are gathered where they are needed."""
        agent = self.agent

        def body(carry: tuple[Any, Pricing], step: tuple[Any, PRNGKeyArray, PRNGKeyArray]):
            places, price_key, learn_key = step
            learner, pricing, priced, fitted = self.price_images(*carry, price_key, state.replay, places)
            learner, learned = agent.update(learner, priced, learn_key)
            return (learner, pricing), (fitted, learned)

        carry = (agent.begin(state.learner), Pricing(state.objective, state.scale))
        (learner, pricing), metrics = jax.lax.scan(body, carry, (places, price_keys, learn_keys))
        return agent.end(learner), pricing, jax.tree.map(lambda many: many.mean(0), metrics)

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
        objective, reward = priced(self.objective, objective, self.to_batch(learner, last), reward_key)
        scale, rewarded, metrics = self.rewarded(scale, last, reward, fitted)
        return Pricing(objective, scale), rewarded, metrics

    def price_images(
        self,
        learner: Any,
        pricing: Pricing,
        key: PRNGKeyArray,
        replay: ReplayState,
        places: tuple[Int[Array, "fits batch"], Int[Array, "fits batch"]],
    ) -> tuple[Any, Pricing, Transitions, Metrics]:
        """The same on images, gathered from these places of the replay: takes the encoder along."""
        agent, (objective, scale) = self.agent, pricing
        assert isinstance(agent, Seeing)
        *fit_keys, reward_key = jax.random.split(key, self.fits_per_update + 1)
        looked = features = fitted = None
        for number, fit_key in enumerate(fit_keys):
            start, column = (part[number] for part in places)
            images = agent.shifted(self.replay.cut(replay, start, column), jax.random.fold_in(fit_key, 1))
            learner, looked = agent.looked(learner, images)
            left, before = self.fits_per_update - number, objective

            def fit(seen: Transitions, before: Any = before, key: PRNGKeyArray = fit_key, left: int = left):
                state, metrics = fit_in_turn(self.objective, before, self.as_batch(seen), key, left)
                return fitted_loss(self.objective, metrics), (state, metrics)

            learner, features, (objective, fitted) = agent.fit(learner, looked, fit)
        assert looked is not None
        assert features is not None
        assert fitted is not None
        objective, reward = priced(self.objective, objective, self.as_batch(features), reward_key)
        scale, rewarded, metrics = self.rewarded(scale, agent.handed_over(looked, features), reward, fitted)
        return learner, Pricing(objective, scale), rewarded, metrics

    def rewarded(
        self, scale: Any, batch: Transitions, reward: Float[Array, "batch *targets"], fitted: Metrics
    ) -> tuple[Any, Transitions, Metrics]:
        """A batch with the rewards that the learner sees, the statistics of rewards, and metrics."""
        metrics = {f"objective_{name}": value for name, value in fitted.items()}
        metrics |= {"reward": mean_of(reward), "extrinsic": batch.reward.mean()}
        scale, resized = self.resize(scale, reward)
        if self.reward_scale != 1 or self.reward_normalise != "none":
            metrics["learner_reward"] = mean_of(resized)
        return scale, batch._replace(reward=resized), metrics

    def resize(self, scale: Any, reward: Float[Array, "batch *targets"]) -> tuple[Any, Float[Array, "batch *targets"]]:
        """Rewards of the size that the learner should see, and the running statistics with these rewards in them."""
        if self.reward_normalise == "std":
            scale = update_scale(scale, reward)
            reward = reward / jnp.maximum(jnp.sqrt(scale.variance), 1e-8)  # All rewards may be equal.
        return scale, self.reward_scale * reward

    def diagnose(self, state: RunState, number: Int[Array, ""]) -> Metrics:
        """Diagnoses the learner's networks on a batch from the replay, before the `number`-th step."""
        key = jax.random.fold_in(jax.random.fold_in(state.key, number), 0)
        batch = self.replay.sample(state.replay, key, self.batch)
        return self.agent.diagnose(state.learner, batch)

    def seen_of(self, obs: Float[Array, "*batch all"]) -> Float[Array, "*batch seen"]:
        """The numbers of an observation that the objective sees."""
        return obs[..., np.array(self.objective_obs)] if self.objective_obs else obs

    def to_batch(self, learner: Any, transitions: Transitions) -> Batch:
        """Transitions as the objective sees them."""
        obs, next_obs = (self.agent.view(learner, obs) for obs in (transitions.obs, transitions.next_obs))
        return self.as_batch(transitions._replace(obs=obs, next_obs=next_obs))

    def as_batch(self, transitions: Transitions) -> Batch:
        """Transitions whose observations are as networks get them."""
        interval = self.skill_interval or self.env.episode_length

        def seen(obs: Float[Array, "batch all"]) -> Float[Array, "batch seen"]:
            return self.seen_of(obs)

        return Batch(
            obs=seen(transitions.obs),
            action=transitions.action,
            next_obs=seen(transitions.next_obs),
            skill=transitions.skill,
            trajectory=transitions.trajectory,
            progress=jnp.minimum(transitions.since / interval, 1.0),
            reward=transitions.reward,
        )


def mean_of(reward: Float[Array, "batch *targets"]) -> Float[Array, ""]:
    """The mean over a batch, and over several targets together."""
    return reward.sum() / len(reward) if reward.ndim > 1 else reward.mean()


def strongly_typed(x: Array) -> Array:
    """The same array with a strong type. A weak type, which gives way to other types, would be strong after the first
    update, and everything would be compiled a second time for that."""
    return jax.lax.convert_element_type(x, x.dtype) if getattr(x, "weak_type", False) else x
