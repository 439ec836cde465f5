"""A controller over frozen skills (the paper's future work): every few steps it picks the skill that acts.

The skills are the actions of a task whose steps are stretches of one skill, so the loop stays the same; the learner is
double deep Q-learning (van Hasselt et al. 2016). With r the mean reward of a stretch,

    y = r + d · Q̄(s', argmax_z Q(s', z)),      loss = mean (Q(s, z) − y)²

With a cost c of changing the skill (the deliberation cost of Harb et al. 2018), when a skill stops is learned, too: it
acts on until another is worth c more. In both places above, Q of a skill z' after z becomes

    Q_z(s', z') = Q(s', z') − c · [z' ≠ z]
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from becl.envs.simulations import Step
from becl.envs.spec import EnvSpec
from becl.errors import UserError
from becl.learning.ddpg import DDPG
from becl.learning.replay import Transitions
from becl.nn.adam import Adam, AdamState
from becl.nn.networks import MLP, Network, follow
from becl.objectives.protocol import Metrics
from becl.skills import SkillSpace
from becl.specs import added


class ControllerState(NamedTuple):
    actor: MLP
    """Network of the values of all skills."""
    target: MLP
    opt: AdamState


@dataclass(frozen=True)
class Controller:
    interval: int = 50
    """Steps per stretch."""
    epsilon: float = 0.1
    """Probability of picking a random skill while collecting."""
    target_rate: float = 0.01
    network: Network = Network((256, 256))
    optimizer: Adam = Adam(1e-4)
    switch_cost: float = added(0.0)
    """What changing the skill costs, in rewards of a step. Above 0, observations end with the skill that acted before:
    one-hot, or zeros at the start of an episode."""

    def init(self, key: PRNGKeyArray, env: EnvSpec, skills: SkillSpace) -> ControllerState:
        del skills
        values = self.network.init(key, env.obs_dim - self.shown(env.action_dim), env.action_dim)
        return ControllerState(values, values, self.optimizer.init(values))

    def act(
        self,
        actor: MLP,
        obs: Float[Array, "envs obs"],
        skill: Float[Array, "envs skill"],
        key: PRNGKeyArray,
        random: Bool[Array, ""],
    ) -> Float[Array, "envs action"]:
        skill_key, whether_key = jax.random.split(key)
        greedy = self.best(actor, obs, skill)
        count = greedy.shape[-1]
        other = jax.nn.one_hot(jax.random.randint(skill_key, (len(obs),), 0, count), count)
        explore = random | (jax.random.uniform(whether_key, (len(obs), 1)) < self.epsilon)
        return jnp.where(explore, other, greedy)

    def best(
        self, actor: MLP, obs: Float[Array, "envs obs"], skill: Float[Array, "envs skill"]
    ) -> Float[Array, "envs action"]:
        del skill
        values = self.values(actor, obs)
        return jax.nn.one_hot(jnp.argmax(values, -1), values.shape[-1])

    def shown(self, count: int) -> int:
        """How many numbers of an observation say which of so many skills acted before."""
        return count if self.switch_cost else 0

    def values(self, network: MLP, obs: Float[Array, "*batch obs"]) -> Float[Array, "*batch skills"]:
        """Of every skill, less what changing to it costs."""
        if not self.switch_cost:
            return network(obs)
        values = network(self.state_of(network, obs))
        before = obs[..., -values.shape[-1] :]
        return values - self.switch_cost * (before.sum(-1, keepdims=True) - before)

    def state_of(self, network: MLP, obs: Float[Array, "*batch obs"]) -> Float[Array, "*batch state"]:
        """An observation without the skill that acted before."""
        return obs[..., : obs.shape[-1] - self.shown(network.layers[-1].bias.shape[-1])]

    def view(self, state: ControllerState, obs: Float[Array, "*batch obs"]) -> Float[Array, "*batch obs"]:
        del state
        return obs

    def begin(self, state: ControllerState) -> ControllerState:
        return state

    def end(self, state: ControllerState) -> ControllerState:
        return state

    def update(self, state: ControllerState, batch: Transitions, key: PRNGKeyArray) -> tuple[ControllerState, Metrics]:
        del key
        following = self.best(state.actor, batch.next_obs, batch.skill)
        reward = batch.reward / self.interval
        goal = reward + batch.discount * jnp.sum(following * self.values(state.target, batch.next_obs), -1)
        obs = self.state_of(state.actor, batch.obs)

        def loss_fn(values: MLP):
            q = jnp.sum(batch.action * values(obs), -1)
            return jnp.square(q - goal).mean(), q.mean()

        (loss, q), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.actor)
        values, opt = self.optimizer.update(state.actor, grads, state.opt)
        target = follow(state.target, values, self.target_rate)
        metrics = {"critic_loss": loss, "q": q, "goal": goal.mean()}
        if self.switch_cost:
            metrics["switches"] = 1.0 - jnp.sum(following * batch.action, -1).mean()
        return ControllerState(values, target, opt), metrics

    def diagnose(self, state: ControllerState, batch: Transitions) -> Metrics:
        """Reports nothing: the networks start anew with every task."""
        del state, batch
        return {}


def over_stretches(env: EnvSpec, controller: Controller, count: int) -> EnvSpec:
    """An environment whose steps are stretches of one of so many skills."""
    length, interval = env.episode_length, controller.interval
    if interval < 1 or length % interval:
        raise UserError(f"episodes of {length} steps cannot be cut into stretches of {interval}")
    return EnvSpec(env.obs_dim + controller.shown(count), count, length // interval)


class Stretches:
    """Environments in which an action is a discrete skill, and a step is a stretch of that skill by frozen policies.

    The reward of a stretch is the sum of its rewards. If an episode ends within a stretch, the stretch ends there, and
    the environment continues with the skill, without counting, until the others have finished their stretch. Policies
    see the first numbers of an observation, as many as they were pretrained with.
    """

    def __init__(
        self,
        envs: Any,
        learner: DDPG,
        actors: Any,
        skills: Float[np.ndarray, "count dim"],
        controller: Controller,
        seen: int | None = None,
    ):
        """`actors` have a leading axis; they share the environments equally. The action k stands for `skills[k]`, and
        policies see `seen` numbers, all by default."""
        interval, count = controller.interval, len(skills)
        self.envs, self.num_envs, self.interval = envs, envs.num_envs, interval
        self.spec = over_stretches(envs.spec, controller, count)
        self._skills, self._seen, self._shown = np.asarray(skills, np.float32), seen, controller.shown(count)
        self._actors = actors
        self._lanes = len(jax.tree.leaves(actors)[0])
        self._act = jax.jit(jax.vmap(learner.best))

    def reset(self) -> np.ndarray:
        self._obs = self.envs.reset()
        return self._with(self._obs, np.zeros((self.num_envs, self._shown)))

    def restart(self) -> np.ndarray:
        self._obs = getattr(self.envs, "restart", self.envs.reset)()
        return self._with(self._obs, np.zeros((self.num_envs, self._shown)))

    def step(self, action: np.ndarray) -> Step:
        skill = (np.asarray(action, np.float32) @ self._skills).reshape(self._lanes, -1, self._skills.shape[-1])
        total = np.zeros(self.num_envs)
        over, ended = np.zeros((2, self.num_envs), bool)
        led_to = np.zeros_like(self._obs)
        for _ in range(self.interval):
            obs = self._obs.reshape(*skill.shape[:2], -1)[..., : self._seen]
            motion = np.asarray(self._act(self._actors, obs, skill)).reshape(self.num_envs, -1)
            step = self.envs.step(motion)
            total += np.where(over, 0.0, step.reward)
            led_to = np.where(over[:, None], led_to, step.next_obs)
            if step.terminated.size:
                ended |= step.terminated & ~over
            over |= step.truncated
            self._obs = step.obs
        shown = action[:, : self._shown]
        return Step(
            self._with(self._obs, np.where(over[:, None], 0, shown)), total, over, self._with(led_to, shown), ended
        )

    @staticmethod
    def _with(obs: np.ndarray, shown: np.ndarray) -> np.ndarray:
        """Observations, and which skill acted behind them where that is shown."""
        return np.concatenate([obs, shown.astype(obs.dtype)], 1) if shown.shape[1] else obs

    def get_state(self) -> tuple[Any, np.ndarray]:
        return self.envs.get_state(), self._obs

    def set_state(self, state: tuple[Any, np.ndarray]) -> None:
        inner, self._obs = state
        self.envs.set_state(inner)

    def close(self) -> None:
        self.envs.close()
