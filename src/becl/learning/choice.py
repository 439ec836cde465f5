"""Rules for which skill acts: in pretraining drawn from the prior; for a task held, swept, or regressed from rewards.

A rule is a frozen dataclass with pure methods over a state of arrays, one state per seed. `draw` gives the skills to
switch to; `watch` sees every step of the environments and `learn` the replay; `best` is the skill that is evaluated.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from becl.envs.spec import EnvSpec
from becl.learning.replay import Experience, ReplayState, Sampled
from becl.nn.networks import MLP, Network
from becl.objectives.aps import regress_skill
from becl.skills import Cube, Modes, OneHot, SkillSpace


@runtime_checkable
class SkillChoice(Protocol):
    def init(self, key: PRNGKeyArray, env: EnvSpec, skills: SkillSpace) -> Any: ...

    def draw(
        self, state: Any, key: PRNGKeyArray, skills: SkillSpace, envs: int, number: Int[Array, ""]
    ) -> Float[Array, "envs skill"]:
        """For each environment, the skill that begins with the `number`-th step, if one begins."""
        ...

    def watch(self, state: Any, step: Experience) -> Any:
        """The state after a step of all environments."""
        ...

    def learn(self, state: Any, key: PRNGKeyArray, replay: Sampled, kept: ReplayState, number: Int[Array, ""]) -> Any:
        """The state after learning from the replay, together with the learner's updates before the `number`-th step."""
        ...

    def best(self, state: Any, key: PRNGKeyArray, skills: SkillSpace) -> Float[Array, " skill"]:
        """The skill that is evaluated; a random draw if the rule has no preference."""
        ...


@runtime_checkable
class ChoosesByState(Protocol):
    """What a rule may add that looks at the state before it chooses: `draw` and `best` are then not asked."""

    def draw_by_state(
        self, state: Any, key: PRNGKeyArray, obs: Float[Array, "envs obs"], number: Int[Array, ""]
    ) -> Float[Array, "envs skill"]: ...

    def best_by_state(self, state: Any, obs: Float[Array, "envs obs"]) -> Float[Array, "envs skill"]: ...


class Unmoved:
    """Base of the rules whose state never changes."""

    def watch(self, state: Any, step: Experience) -> Any:
        del step
        return state

    def learn(self, state: Any, key: PRNGKeyArray, replay: Sampled, kept: ReplayState, number: Int[Array, ""]) -> Any:
        del key, replay, kept, number
        return state


@dataclass(frozen=True)
class Prior(Unmoved):
    """A skill from the prior, drawn anew each time."""

    def init(self, key: PRNGKeyArray, env: EnvSpec, skills: SkillSpace) -> tuple[()]:
        del key, env, skills
        return ()

    def draw(
        self, state: tuple[()], key: PRNGKeyArray, skills: SkillSpace, envs: int, number: Int[Array, ""]
    ) -> Float[Array, "envs skill"]:
        del state, number
        return skills.sample(key, envs)

    def best(self, state: tuple[()], key: PRNGKeyArray, skills: SkillSpace) -> Float[Array, " skill"]:
        del state
        return skills.sample(key, 1)[0]


@dataclass(frozen=True)
class Halves(Unmoved):
    """Drawn anew each time, of one mode in the first half of an episode and of the other in the second (MOSS). The
    state is how many steps half an episode has; episodes of all environments begin together."""

    def init(self, key: PRNGKeyArray, env: EnvSpec, skills: SkillSpace) -> Int[Array, ""]:
        del key, skills
        return jnp.array(max(1, env.episode_length // 2))

    def draw(
        self, state: Int[Array, ""], key: PRNGKeyArray, skills: SkillSpace, envs: int, number: Int[Array, ""]
    ) -> Float[Array, "envs skill"]:
        assert isinstance(skills, Modes)
        return skills.of_mode(key, jnp.broadcast_to(number // state % 2, (envs,)))

    def best(self, state: Int[Array, ""], key: PRNGKeyArray, skills: SkillSpace) -> Float[Array, " skill"]:
        del state
        return skills.sample(key, 1)[0]


@dataclass(frozen=True)
class Held(Unmoved):
    """One skill for the whole run: the state is the skill. In the paper it is drawn at random once."""

    def init(self, key: PRNGKeyArray, env: EnvSpec, skills: SkillSpace) -> Float[Array, " skill"]:
        del env
        return skills.sample(key, 1)[0]

    def draw(
        self, state: Float[Array, " skill"], key: PRNGKeyArray, skills: SkillSpace, envs: int, number: Int[Array, ""]
    ) -> Float[Array, "envs skill"]:
        del key, skills, number
        return jnp.broadcast_to(state, (envs, len(state)))

    def best(self, state: Float[Array, " skill"], key: PRNGKeyArray, skills: SkillSpace) -> Float[Array, " skill"]:
        del key, skills
        return state


class Trials(NamedTuple):
    """What each skill that was tried has earned."""

    candidates: Float[Array, "candidates skill"]
    total: Float[Array, " candidates"]
    """Sum of the rewards earned with each."""
    steps: Float[Array, " candidates"]
    """Steps taken with each."""


@dataclass(frozen=True)
class BestFirst:
    """Tries skills in the first steps, then keeps the one with the highest mean reward (the CIC paper's sweep)."""

    steps: int = 4000
    """Steps of the sweep, all environments together."""

    def init(self, key: PRNGKeyArray, env: EnvSpec, skills: SkillSpace) -> Trials:
        del env
        tried = candidates(key, skills)
        return Trials(tried, jnp.zeros(len(tried)), jnp.zeros(len(tried)))

    def draw(
        self, state: Trials, key: PRNGKeyArray, skills: SkillSpace, envs: int, number: Int[Array, ""]
    ) -> Float[Array, "envs skill"]:
        count = len(state.candidates)
        turns = -(-count // envs)
        length = max(1, self.steps // envs // turns)
        turn = jnp.minimum(number // length, turns - 1)
        trying = state.candidates[(turn * envs + jnp.arange(envs)) % count]
        # One step longer than is counted, because skills are drawn before the last step's rewards are known.
        return jnp.where(number * envs < self.steps + envs, trying, self.best(state, key, skills))

    def watch(self, state: Trials, step: Experience) -> Trials:
        acted = jnp.isclose(step.skill[:, None], state.candidates).all(-1)
        going = state.steps.sum() < self.steps
        total = state.total + jnp.where(going, step.reward @ acted, 0.0)
        return state._replace(total=total, steps=state.steps + jnp.where(going, acted.sum(0), 0.0))

    def learn(
        self, state: Trials, key: PRNGKeyArray, replay: Sampled, kept: ReplayState, number: Int[Array, ""]
    ) -> Trials:
        del key, replay, kept, number
        return state

    def best(self, state: Trials, key: PRNGKeyArray, skills: SkillSpace) -> Float[Array, " skill"]:
        del key, skills
        mean = jnp.where(state.steps > 0, state.total / jnp.maximum(state.steps, 1.0), -jnp.inf)
        return state.candidates[jnp.argmax(mean)]


def candidates(key: PRNGKeyArray, skills: SkillSpace, draws: int = 16) -> Float[Array, "candidates skill"]:
    """Skills worth trying: all discrete ones; vectors of equal numbers in [0, 1] in a cube; else a spread of draws."""
    if isinstance(skills, OneHot):
        return jnp.eye(skills.dim)
    if isinstance(skills, Cube):
        return jnp.broadcast_to(jnp.linspace(0, 1, 11)[:, None], (11, skills.dim))
    return skills.spread(key, draws)


class Regression(NamedTuple):
    features: MLP
    skill: Float[Array, " skill"]
    ready: Bool[Array, ""]


@dataclass(frozen=True)
class Regress:
    """APS: the skill whose product with the features of states is nearest to the task's reward, found repeatedly."""

    after: int = 4096
    """Steps, all environments together, before the first regression; until then skills are drawn."""
    every: int = 5
    """Steps, all environments together, between two regressions, or as close to that as updates allow."""
    batch: int = 4096
    by: Literal["released", "least squares"] = "released"
    """See `becl.objectives.aps.regress_skill`."""
    features: Literal["fresh", "pretrained"] = "fresh"
    """A network that nobody trained (the released code forgets to carry it over), or the pretrained one."""
    network: Network = Network()
    """The network of the features."""

    def init(self, key: PRNGKeyArray, env: EnvSpec, skills: SkillSpace) -> Regression:
        features_key, skill_key = jax.random.split(key)
        features = self.network.init(features_key, env.obs_dim, skills.dim)
        return Regression(features, skills.sample(skill_key, 1)[0], jnp.array(False))

    def draw(
        self, state: Regression, key: PRNGKeyArray, skills: SkillSpace, envs: int, number: Int[Array, ""]
    ) -> Float[Array, "envs skill"]:
        del number
        return jnp.where(state.ready, state.skill, skills.sample(key, envs))

    def watch(self, state: Regression, step: Experience) -> Regression:
        del step
        return state

    def learn(
        self, state: Regression, key: PRNGKeyArray, replay: Sampled, kept: ReplayState, number: Int[Array, ""]
    ) -> Regression:
        def regress(state: Regression) -> Regression:
            batch = replay.sample(kept, key, self.batch)
            return state._replace(
                skill=regress_skill(state.features(batch.obs), batch.reward, self.by), ready=jnp.array(True)
            )

        envs = kept.steps.last.shape[1]
        steps = number * envs
        # This runs only where there are updates: with a single environment, before every second step.
        due = (steps > self.after) & (steps % self.every < max(envs, 2))
        return jax.lax.cond(due, regress, lambda state: state, state)

    def best(self, state: Regression, key: PRNGKeyArray, skills: SkillSpace) -> Float[Array, " skill"]:
        del key, skills
        return state.skill
