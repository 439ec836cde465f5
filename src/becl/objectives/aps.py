"""APS: Active Pretraining with Successor features (Liu and Abbeel 2021), as in URLB.

Rewards spread, and states whose features point where the skill w points. With features φ and φ̂ = φ/‖φ‖,

    loss = −w·φ̂(s')
    r_i = log(1 + mean over the K nearest of max(‖φ(s'_i) − φ(s'_j)‖ / M − 0.0001, 0)) + w·φ̂(s'_i)

M is the running mean of the distances. The critic predicts successor features ψ, Q = w·ψ; their number is
`DDPG.critic_dim`. For a task the skill is regressed from its rewards (`regress_skill`).
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from becl.envs.spec import EnvSpec
from becl.nn.adam import Adam, AdamState
from becl.nn.networks import MLP, Network, unit
from becl.objectives.particles import RunningScale, init_scale, particle_entropy
from becl.objectives.protocol import Batch, Metrics
from becl.skills import SkillSpace, Sphere


class APSState(NamedTuple):
    features: MLP
    scale: RunningScale
    opt: AdamState


@dataclass(frozen=True)
class APS:
    skills: SkillSpace = Sphere(10)
    """Directions in feature space."""
    neighbours: int = 12
    """K, including the state itself."""
    clip: float = 1e-4
    """Subtracted from each distance, in units of M."""
    network: Network = Network()
    optimizer: Adam = Adam()

    def init(self, key: PRNGKeyArray, env: EnvSpec) -> APSState:
        features = self.network.init(key, env.obs_dim, self.skills.dim)
        return APSState(features, init_scale(), self.optimizer.init(features))

    def fit(self, state: APSState, batch: Batch, key: PRNGKeyArray) -> tuple[APSState, Metrics]:
        del key

        def loss_fn(features: MLP):
            return -agreement(features(batch.next_obs), batch.skill).mean()

        loss, grads = jax.value_and_grad(loss_fn)(state.features)
        features, opt = self.optimizer.update(state.features, grads, state.opt)
        return state._replace(features=features.observe(batch.next_obs), opt=opt), {"loss": loss}

    def reward(self, state: APSState, batch: Batch, key: PRNGKeyArray) -> tuple[APSState, Float[Array, " batch"]]:
        del key
        features = state.features(batch.next_obs)
        entropy, scale = particle_entropy(features, self.neighbours, state.scale, self.clip)
        return state._replace(scale=scale), entropy + agreement(features, batch.skill)


def agreement(features: Float[Array, "batch dim"], skill: Float[Array, "batch dim"]) -> Float[Array, " batch"]:
    """w·φ̂, the log-likelihood of the skill up to a constant."""
    return jnp.sum(skill * unit(features), -1)


def regress_skill(
    features: Float[Array, "batch dim"],
    reward: Float[Array, " batch"],
    by: Literal["released", "least squares"] = "released",
) -> Float[Array, " dim"]:
    """The unit skill w that fits a task's rewards, given φ̂ of their states.

    Least squares minimises Σ_i (w·φ̂_i − r_i)². The released code swaps the arguments and gets
    w ∝ Σ_i r_i φ̂_i. Without any reward, w is zero.
    """
    features = unit(features)
    if by == "released":
        return unit(reward @ features)
    return unit(jnp.linalg.lstsq(features, reward)[0])
