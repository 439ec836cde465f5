"""A controller over frozen skills (the paper's future work): every few steps it picks the skill that acts.

The skills are the actions of a task whose steps are stretches of one skill, so the loop stays the same; the learner is
double deep Q-learning (van Hasselt et al. 2016). With r the mean reward of a stretch,

    y = r + d · Q̄(s', argmax_z Q(s', z)),      loss = mean (Q(s, z) − y)²
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

    def init(self, key: PRNGKeyArray, env: EnvSpec, skills: SkillSpace) -> ControllerState:
        del skills
        values = self.network.init(key, env.obs_dim, env.action_dim)
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
        values = actor(obs)
        return jax.nn.one_hot(jnp.argmax(values, -1), values.shape[-1])

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
        goal = reward + batch.discount * jnp.sum(following * state.target(batch.next_obs), -1)

        def loss_fn(values: MLP):
            q = jnp.sum(batch.action * values(batch.obs), -1)
            return jnp.square(q - goal).mean(), q.mean()

        (loss, q), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.actor)
        values, opt = self.optimizer.update(state.actor, grads, state.opt)
        target = follow(state.target, values, self.target_rate)
        return ControllerState(values, target, opt), {"critic_loss": loss, "q": q, "goal": goal.mean()}

    def diagnose(self, state: ControllerState, batch: Transitions) -> Metrics:
        """Reports nothing: the networks start anew with every task."""
        del state, batch
        return {}


class Stretches:
    """Environments in which an action is a discrete skill, and a step is a stretch of that skill by frozen policies.

    The reward of a stretch is the sum of its rewards. If an episode ends within a stretch, the stretch ends there, and
    the environment continues with the skill, without counting, until the others have finished their stretch.
    """

    def __init__(self, envs: Any, learner: DDPG, actors: Any, count: int, interval: int):
        """`actors` have a leading axis; they share the environments equally. There are `count` skills."""
        length = envs.spec.episode_length
        if length % interval:
            raise UserError(f"episodes of {length} steps cannot be cut into stretches of {interval}")
        self.envs, self.num_envs, self.interval = envs, envs.num_envs, interval
        self.spec = EnvSpec(envs.spec.obs_dim, count, length // interval)
        self._actors = actors
        self._lanes = len(jax.tree.leaves(actors)[0])
        self._act = jax.jit(jax.vmap(learner.best))

    def reset(self) -> np.ndarray:
        self._obs = self.envs.reset()
        return self._obs

    def restart(self) -> np.ndarray:
        self._obs = getattr(self.envs, "restart", self.envs.reset)()
        return self._obs

    def step(self, action: np.ndarray) -> Step:
        skill = np.asarray(action, np.float32).reshape(self._lanes, -1, action.shape[-1])
        total = np.zeros(self.num_envs)
        over, ended = np.zeros((2, self.num_envs), bool)
        led_to = np.zeros_like(self._obs)
        for _ in range(self.interval):
            obs = self._obs.reshape(*skill.shape[:2], -1)
            motion = np.asarray(self._act(self._actors, obs, skill)).reshape(self.num_envs, -1)
            step = self.envs.step(motion)
            total += np.where(over, 0.0, step.reward)
            led_to = np.where(over[:, None], led_to, step.next_obs)
            if step.terminated.size:
                ended |= step.terminated & ~over
            over |= step.truncated
            self._obs = step.obs
        return Step(self._obs, total, over, led_to, ended)

    def get_state(self) -> tuple[Any, np.ndarray]:
        return self.envs.get_state(), self._obs

    def set_state(self, state: tuple[Any, np.ndarray]) -> None:
        inner, self._obs = state
        self.envs.set_state(inner)

    def close(self) -> None:
        self.envs.close()
