"""PPO with a Beta policy (Schulman et al. 2017; Chou et al. 2017), as the maze study uses it.

Actions live in [-1, 1]: a = 2u − 1 with u ~ Beta(α, β) per dimension, α, β > 1. Advantages are estimated within each
episode, the value of its last state standing for what a longer episode would have brought (a time limit is not an end).
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from becl.envs.spec import EnvSpec
from becl.learning.beta import beta_entropy, beta_log_prob, beta_params
from becl.nn.adam import Adam, AdamState
from becl.nn.networks import MLP, Network
from becl.objectives.protocol import Metrics
from becl.skills import SkillSpace


class Rollout(NamedTuple):
    """Whole episodes side by side, time first."""

    obs: Float[Array, "time episodes obs"]
    skill: Float[Array, "episodes skill"]
    sample: Float[Array, "time episodes action"]  # u, the action before it is mapped to [-1, 1].
    last_obs: Float[Array, "episodes obs"]

    @property
    def next_obs(self) -> Float[Array, "time episodes obs"]:
        return jnp.concatenate([self.obs[1:], self.last_obs[None]])


class ActorCritic(NamedTuple):
    policy: MLP
    value: MLP


class PPOState(NamedTuple):
    networks: ActorCritic
    opt: AdamState


class Samples(NamedTuple):
    """What a minibatch of the update needs, one row per transition."""

    inputs: Float[Array, "n in"]
    sample: Float[Array, "n action"]
    log_prob: Float[Array, " n"]
    advantage: Float[Array, " n"]
    returns: Float[Array, " n"]


@dataclass(frozen=True)
class PPO:
    discount: float = 0.99
    gae_lambda: float = 0.98
    clip: float = 0.2
    """How far the probability ratio may move from 1 before its gradient stops."""
    entropy_weight: float = 0.025
    concatenate: bool = False
    """Whether advantages run on from one episode into the next, as in the released maze code by mistake."""
    epochs: int = 4
    minibatches: int = 10
    network: Network = Network((128, 128), "uniform")
    optimizer: Adam = Adam(3e-4, 1e-3, corrected=False)

    def init(self, key: PRNGKeyArray, env: EnvSpec, skills: SkillSpace) -> PPOState:
        policy_key, value_key = jax.random.split(key)
        in_dim = env.obs_dim + skills.dim
        networks = ActorCritic(
            self.network.init(policy_key, in_dim, 2 * env.action_dim),
            self.network.init(value_key, in_dim, 1),
        )
        return PPOState(networks, self.optimizer.init(networks))

    def update(
        self,
        state: PPOState,
        rollout: Rollout,
        reward: Float[Array, "time episodes"],
        key: PRNGKeyArray,
    ) -> tuple[PPOState, Metrics]:
        """Several epochs of minibatch steps on one collection."""
        experience, metrics = self.prepare(state.networks, rollout, reward)
        size = len(experience.advantage)

        def epoch(state: PPOState, key: PRNGKeyArray):
            order = jax.random.permutation(key, size)[: size - size % self.minibatches]
            batches = jax.tree.map(lambda x: x[order].reshape(self.minibatches, -1, *x.shape[1:]), experience)
            return jax.lax.scan(self._step, state, batches)

        state, losses = jax.lax.scan(epoch, state, jax.random.split(key, self.epochs))
        return state, metrics | jax.tree.map(jnp.mean, losses)

    def prepare(
        self, networks: ActorCritic, rollout: Rollout, reward: Float[Array, "time episodes"]
    ) -> tuple[Samples, Metrics]:
        inputs = policy_input(jnp.concatenate([rollout.obs, rollout.last_obs[None]]), rollout.skill)
        flat = inputs.reshape(-1, inputs.shape[-1])
        values = networks.value(flat).reshape(inputs.shape[:2])
        estimate = concatenated_advantage if self.concatenate else generalized_advantage
        advantage = estimate(reward, values, self.discount, self.gae_lambda)
        returns = advantage + values[:-1]
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        rows = len(flat) - len(rollout.last_obs)
        params = beta_params(networks.policy, flat[:rows])
        sample = rollout.sample.reshape(rows, -1)
        experience = Samples(
            flat[:rows],
            sample,
            beta_log_prob(params, sample),
            advantage.reshape(-1),
            returns.reshape(-1),
        )
        return experience, {"reward": reward.mean(), "value": values.mean()}

    def _step(self, state: PPOState, batch: Samples) -> tuple[PPOState, Metrics]:
        grads, metrics = jax.grad(self.loss, has_aux=True)(state.networks, batch)
        networks, opt = self.optimizer.update(state.networks, grads, state.opt)
        networks = ActorCritic(*(network.observe(batch.inputs) for network in networks))
        return PPOState(networks, opt), metrics

    def loss(self, networks: ActorCritic, batch: Samples) -> tuple[Float[Array, ""], Metrics]:
        params = beta_params(networks.policy, batch.inputs)
        ratio = jnp.exp(beta_log_prob(params, batch.sample) - batch.log_prob)
        policy_loss = -clipped_advantage(ratio, batch.advantage, self.clip).mean()
        entropy = beta_entropy(params).mean()
        value = networks.value(batch.inputs)[:, 0]
        value_loss = 0.5 * jnp.square(batch.returns - value).mean()
        loss = policy_loss + value_loss - self.entropy_weight * entropy
        return loss, {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "policy_entropy": entropy,
        }


def policy_input(obs: Float[Array, "*batch obs"], skill: Float[Array, "*#batch skill"]) -> Float[Array, "*batch in"]:
    return jnp.concatenate([obs, jnp.broadcast_to(skill, (*obs.shape[:-1], skill.shape[-1]))], -1)


def clipped_advantage(ratio, advantage, clip):
    """min(ρA, clip(ρ, 1−ε, 1+ε)A)."""
    return jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * advantage)


def generalized_advantage(
    reward: Float[Array, "time episodes"],
    values: Float[Array, "time_and_one episodes"],
    discount: float,
    gae_lambda: float,
) -> Float[Array, "time episodes"]:
    """A_t = Σ_k (γλ)^k δ_{t+k} within each episode, with δ_t = r_t + γ V_{t+1} − V_t.

    This is one product with the matrix of powers, in place of a backward loop over time.
    """
    delta = reward + discount * values[1:] - values[:-1]
    step = jnp.arange(len(delta))
    ahead = step - step[:, None]
    powers = jnp.where(ahead >= 0, (discount * gae_lambda) ** jnp.maximum(ahead, 0), 0.0)
    return powers @ delta


def concatenated_advantage(
    reward: Float[Array, "time episodes"],
    values: Float[Array, "time_and_one episodes"],
    discount: float,
    gae_lambda: float,
) -> Float[Array, "time episodes"]:
    """The same advantages as if all episodes were one: each runs on into the first state of the next."""
    following = jnp.concatenate([values[0, 1:], values[-1, -1:]])
    within = generalized_advantage(reward, values.at[-1].set(following), discount, gae_lambda)
    ahead = (discount * gae_lambda) ** jnp.arange(len(reward), 0, -1)

    def join(next_advantage, advantage):
        advantage = advantage + ahead * next_advantage
        return advantage[0], advantage

    _, joined = jax.lax.scan(join, jnp.zeros(()), within.T, reverse=True)
    return joined.T
