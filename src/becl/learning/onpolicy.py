"""The on-policy loop: collect, fit the objective, collect again, compute rewards, update the policy.

A cycle plays `episodes` episodes for the representation and as many again for the policy, rewarded by the
representation just trained. Everything is a pure function of the run's key; `vmap` over keys trains seeds together.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from becl.envs.maze import Maze
from becl.learning.beta import GammaNoise, beta_params, beta_variate, gamma_noise
from becl.learning.ppo import PPO, PPOState, Rollout, policy_input
from becl.objectives.protocol import Batch, Metrics, Objective


class TrainState(NamedTuple):
    key: PRNGKeyArray
    cycle: Int[Array, ""]
    learner: PPOState
    objective: Any


@dataclass(frozen=True)
class OnPolicy:
    """One run of skill discovery with PPO."""

    env: Maze
    objective: Objective
    learner: PPO = PPO()
    episodes: int = 50
    """Episodes in a collection."""
    fit_epochs: int = 4
    fit_minibatches: int = 10
    balanced: bool = True
    """Whether skills are spread over a collection as evenly as possible, rather than drawn independently."""

    def init(self, key: PRNGKeyArray) -> TrainState:
        run_key, learner_key, objective_key = jax.random.split(key, 3)
        return TrainState(
            run_key,
            jnp.zeros((), jnp.int32),
            self.learner.init(learner_key, self.env.spec, self.objective.skills),
            self.objective.init(objective_key, self.env.spec),
        )

    def update(self, state: TrainState) -> tuple[TrainState, Metrics]:
        """One cycle."""
        keys = jax.random.split(jax.random.fold_in(state.key, state.cycle), 5)
        seen = self.collect(state.learner, keys[0])
        objective, fit_metrics = self.fit(state.objective, to_batch(seen), keys[1])
        rollout = self.collect(state.learner, keys[2])
        objective, reward = self.objective.reward(objective, to_batch(rollout), keys[3])
        time, episodes = rollout.obs.shape[:2]
        learner, metrics = self.learner.update(state.learner, rollout, reward.reshape(episodes, time).T, keys[4])
        metrics = metrics | {f"objective_{name}": value for name, value in fit_metrics.items()}
        return TrainState(state.key, state.cycle + 1, learner, objective), metrics

    def run(self, state: TrainState, cycles: int) -> tuple[TrainState, Metrics]:
        """Several cycles; each metric gets an axis of cycles."""
        return jax.lax.scan(lambda state, _: self.update(state), state, None, cycles)

    def fit(self, state: Any, batch: Batch, key: PRNGKeyArray) -> tuple[Any, Metrics]:
        size = len(batch.progress)
        usable = size - size % self.fit_minibatches

        def epoch(state, key):
            order_key, step_key = jax.random.split(key)
            order = jax.random.permutation(order_key, size)[:usable]
            batches = jax.tree.map(lambda x: x[order].reshape(self.fit_minibatches, -1, *x.shape[1:]), batch)
            keys = jax.random.split(step_key, self.fit_minibatches)
            return jax.lax.scan(lambda s, x: self.objective.fit(s, *x), state, (batches, keys))

        state, metrics = jax.lax.scan(epoch, state, jax.random.split(key, self.fit_epochs))
        return state, jax.tree.map(jnp.mean, metrics)

    def collect(self, learner: PPOState, key: PRNGKeyArray) -> Rollout:
        skill_key, key = jax.random.split(key)
        draw = self.objective.skills.spread if self.balanced else self.objective.skills.sample
        return self.rollout(learner, draw(skill_key, self.episodes), key)

    def rollout(
        self,
        learner: PPOState,
        skill: Float[Array, "episodes skill"],
        key: PRNGKeyArray,
        start: Float[Array, "2"] | None = None,
    ) -> Rollout:
        """Plays one stochastic episode for each skill, from the start distribution or from one position."""
        episodes = len(skill)
        start_key, policy_key, env_key = jax.random.split(key, 3)
        steps, action_dim = self.env.episode_length, self.env.spec.action_dim
        state = self.env.reset(start_key, episodes)
        if start is not None:
            state = state._replace(position=jnp.broadcast_to(start, state.position.shape))
        noise = (
            gamma_noise(policy_key, steps, 2, episodes, action_dim),
            self.env.noise(env_key, steps, episodes),
        )

        def step(state, noise: tuple[GammaNoise, Array]):
            policy_noise, env_noise = noise
            obs = state.position
            params = beta_params(learner.networks.policy, policy_input(obs, skill))
            sample = beta_variate(params, policy_noise)
            return self.env.step(state, 2 * sample - 1, env_noise), (obs, sample)

        state, (obs, sample) = jax.lax.scan(step, state, noise)
        return Rollout(obs, skill, sample, state.position)

    def paths(
        self, learner: PPOState, key: PRNGKeyArray, per_skill: int, start: Float[Array, "2"]
    ) -> Float[Array, "skills episodes time 2"]:
        """Stochastic trajectories of every skill from one start, for pictures and metrics."""
        count = self.objective.skills.dim
        skill = jnp.repeat(jnp.eye(count), per_skill, axis=0)
        rollout = self.rollout(learner, skill, key, start)
        positions = jnp.concatenate([rollout.obs, rollout.last_obs[None]])
        return positions.transpose(1, 0, 2).reshape(count, per_skill, -1, 2)


def to_batch(rollout: Rollout) -> Batch:
    """Transitions as the objective sees them, episode after episode; each episode is a trajectory of its own."""
    time, episodes = rollout.obs.shape[:2]

    def rows(x):
        return x.swapaxes(0, 1).reshape(time * episodes, -1)

    progress = jnp.tile(jnp.arange(1, time + 1) / time, episodes)
    return Batch(
        obs=rows(rollout.obs),
        action=2 * rows(rollout.sample) - 1,
        next_obs=rows(rollout.next_obs),
        skill=jnp.repeat(rollout.skill, time, axis=0),
        trajectory=jnp.repeat(jnp.arange(episodes), time),
        progress=progress,
        reward=jnp.zeros(time * episodes),
    )
