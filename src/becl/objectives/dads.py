"""DADS: Dynamics-Aware Discovery of Skills (Sharma et al. 2020), the forward form of I(S';Z|S).

Rewards transitions that are predictable under their own skill and not under the others: with a Gaussian model q of
fixed standard deviation σ, and all n skills as samples of the prior,

    r = log q(s' | s, z) − log (1/n) Σ_i q(s' | s, z_i),      loss = −log q(s' | s, z)

The maze study conditions on the skill alone, q(s' | z) with σ² = 1/2, and also calls it DADS.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from becl.envs.spec import EnvSpec
from becl.nn.adam import Adam, AdamState
from becl.nn.networks import MLP, Moments, Network, add_moments, init_moments, mean_and_std
from becl.objectives.protocol import Batch, Metrics
from becl.skills import OneHot


class DADSState(NamedTuple):
    model: MLP
    moments: Moments  # Of the targets, so that the model's outputs have unit scale.
    opt: AdamState


@dataclass(frozen=True)
class DADS:
    skills: OneHot = OneHot(16)
    """Number of skills."""
    given: Literal["state and skill", "skill"] = "state and skill"
    """What the prediction is conditioned on: DADS proper, or the maze study's q(s'|z)."""
    stddev: float = 0.25
    """σ of the Gaussian model, in units of the observation."""
    network: Network = Network()
    optimizer: Adam = Adam()

    def init(self, key: PRNGKeyArray, env: EnvSpec) -> DADSState:
        in_dim = self.skills.dim + (env.obs_dim if self.given == "state and skill" else 0)
        model = self.network.init(key, in_dim, env.obs_dim)
        return DADSState(model, init_moments(env.obs_dim), self.optimizer.init(model))

    def predict(
        self, state: DADSState, obs: Float[Array, "*#b o"], skill: Float[Array, "*#b z"]
    ) -> Float[Array, "*#b o"]:
        """Mean of s'. Observation and skill broadcast against each other."""
        if self.given == "skill":
            out, offset = state.model(skill), 0.0
        else:
            shape = jnp.broadcast_shapes(obs.shape[:-1], skill.shape[:-1])
            inputs = (jnp.broadcast_to(x, (*shape, x.shape[-1])) for x in (obs, skill))
            out, offset = state.model(jnp.concatenate([*inputs], -1)), obs
        if self.network.normalize and self.given == "skill":
            mean, std = mean_and_std(jax.lax.stop_gradient(state.moments))
            out = mean + std * out
        return offset + out

    def fit(self, state: DADSState, batch: Batch, key: PRNGKeyArray) -> tuple[DADSState, Metrics]:
        del key

        def loss_fn(model):
            mean = self.predict(state._replace(model=model), batch.obs, batch.skill)
            return -gaussian_log_likelihood(batch.next_obs, mean, self.stddev).mean()

        loss, grads = jax.value_and_grad(loss_fn)(state.model)
        model, opt = self.optimizer.update(state.model, grads, state.opt)
        if self.given == "state and skill":
            model = model.observe(jnp.concatenate([batch.obs, batch.skill], -1))
        moments = add_moments(state.moments, batch.next_obs)
        return DADSState(model, moments, opt), {"loss": loss}

    def reward(self, state: DADSState, batch: Batch, key: PRNGKeyArray) -> tuple[DADSState, Float[Array, " batch"]]:
        del key
        every_skill = jnp.eye(self.skills.dim)
        means = self.predict(state, batch.obs[:, None], every_skill)
        scores = gaussian_log_likelihood(batch.next_obs[:, None], means, self.stddev)
        own = jnp.sum(scores * batch.skill, -1)
        return state, own - jax.nn.logsumexp(scores, -1) + jnp.log(self.skills.dim)

    def chance_reward(self, batch: int) -> float:
        """Where all skills predict the same next state."""
        del batch
        return 0.0


def gaussian_log_likelihood(x: Float[Array, "*#b d"], mean: Float[Array, "*#b d"], stddev: float) -> Float[Array, "*b"]:
    """log N(x; mean, stddev²) without its constant, which cancels in the reward."""
    return -jnp.square(x - mean).sum(-1) / (2 * stddev**2)
