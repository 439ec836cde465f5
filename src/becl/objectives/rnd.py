"""RND: Random Network Distillation (Burda et al. 2019), as in URLB.

Rewards states unlike those seen before: a network learns to copy a fixed random network, and fails where it has not
been trained. With x the whitened state, target t and predictor p,

    e = mean over dimensions of (t(x) − p(x))²,      loss = e,      r = e / σ

σ is the running standard deviation of e. Whitening uses mean and variance of the current batch, also for the reward.
The state is s, where the transition starts, without the action.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from becl.envs.spec import EnvSpec
from becl.nn.adam import Adam, AdamState
from becl.nn.networks import MLP, Network, standardize
from becl.objectives.particles import RunningScale, init_scale, update_scale
from becl.objectives.protocol import Batch, Metrics
from becl.skills import NoSkill, SkillSpace


class RNDState(NamedTuple):
    predictor: MLP
    target: MLP  # Never trained.
    scale: RunningScale
    opt: AdamState


@dataclass(frozen=True)
class RND:
    skills: SkillSpace = NoSkill()
    """None: the policy has no skill."""
    feature_dim: int = 512
    network: Network = Network()
    """Layers of predictor and target."""
    optimizer: Adam = Adam()

    def init(self, key: PRNGKeyArray, env: EnvSpec) -> RNDState:
        network = replace(self.network, normalize=False)  # The batch is whitened by its own statistics.
        predictor, target = (network.init(k, env.obs_dim, self.feature_dim) for k in jax.random.split(key))
        return RNDState(predictor, target, init_scale(), self.optimizer.init(predictor))

    def fit(self, state: RNDState, batch: Batch, key: PRNGKeyArray) -> tuple[RNDState, Metrics]:
        del key

        def loss_fn(predictor: MLP):
            return distillation_error(predictor, state.target, batch.obs).mean()

        loss, grads = jax.value_and_grad(loss_fn)(state.predictor)
        predictor, opt = self.optimizer.update(state.predictor, grads, state.opt)
        return state._replace(predictor=predictor, opt=opt), {"loss": loss}

    def reward(self, state: RNDState, batch: Batch, key: PRNGKeyArray) -> tuple[RNDState, Float[Array, " batch"]]:
        del key
        error = distillation_error(state.predictor, state.target, batch.obs)
        scale = update_scale(state.scale, error)
        return state._replace(scale=scale), error / (jnp.sqrt(scale.variance) + 1e-8)


def distillation_error(predictor: MLP, target: MLP, obs: Float[Array, "batch obs"]) -> Float[Array, " batch"]:
    """Mean squared error of the predictor on the whitened batch."""
    x = whiten_batch(obs)
    return jnp.square(target(x) - predictor(x)).mean(-1)


def whiten_batch(x: Float[Array, "batch dim"]) -> Float[Array, "batch dim"]:
    """Scales the batch to mean 0 and variance 1, clipped at ±5."""
    return jnp.clip(standardize(x, 0), -5.0, 5.0)
