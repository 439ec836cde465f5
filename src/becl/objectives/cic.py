"""CIC: Contrastive Intrinsic Control (Laskin et al. 2022).

Learns features in which a transition identifies its skill, and rewards their spread. With q from the skill, k from the
transition (both unit vectors), temperature τ and φ the state network,

    loss_i = −log [ exp(q_i·k_i/τ) / Σ_{j≠i} exp(q_i·k_j/τ) ]
    r_i = log(1 + mean over the K nearest of max(‖φ(s'_i) − φ(s'_j)‖ / S − 0.0005, 0))

S is the running variance of the distances (the released code calls it a standard deviation). The reward does not
depend on the skill.
"""

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from becl.envs.spec import EnvSpec
from becl.nn.adam import Adam, AdamState
from becl.nn.networks import MLP, Network, unit
from becl.objectives.particles import RunningScale, init_scale, nearest_distances, particle_reward, update_scale
from becl.objectives.protocol import Batch, Metrics
from becl.skills import Cube, SkillSpace


class CICNetworks(NamedTuple):
    state: MLP
    transition: MLP
    skill: MLP


class CICState(NamedTuple):
    networks: CICNetworks
    scale: RunningScale
    opt: AdamState


@dataclass(frozen=True)
class CIC:
    skills: SkillSpace = Cube(64)
    """The skill space."""
    temperature: float = 0.5
    neighbours: int = 16
    """K, including the anchor itself."""
    train_encoder: bool = True
    """False leaves the features untrained, as in the released maze code, where the gradient is zero."""
    compare_with: Literal["next_obs", "obs"] = "next_obs"
    """Features among which the neighbours of φ(s') are searched; the released maze code uses those of s."""
    self_term: Literal["constant", "exact"] = "constant"
    """What is subtracted from the sum for j = i: the released constant exp(1/τ), or the exact term."""
    feature_dim: int = 64
    network: Network = Network()
    optimizer: Adam = Adam()

    def init(self, key: PRNGKeyArray, env: EnvSpec) -> CICState:
        keys = jax.random.split(key, 3)
        inner = replace(self.network, normalize=False)  # Only observations are whitened.
        networks = CICNetworks(
            self.network.init(keys[0], env.obs_dim, self.feature_dim),
            inner.init(keys[1], 2 * self.feature_dim, self.feature_dim),
            inner.init(keys[2], self.skills.dim, self.feature_dim),
        )
        return CICState(networks, init_scale(), self.optimizer.init(networks))

    def fit(self, state: CICState, batch: Batch, key: PRNGKeyArray) -> tuple[CICState, Metrics]:
        del key
        if not self.train_encoder:
            seen = state.networks.state.observe(batch.next_obs)
            return state._replace(networks=state.networks._replace(state=seen)), {"loss": jnp.zeros(())}

        def loss_fn(networks: CICNetworks):
            both = jnp.concatenate([networks.state(batch.obs), networks.state(batch.next_obs)], -1)
            scores = unit(networks.skill(batch.skill)) @ unit(networks.transition(both)).T
            return transition_nce(scores / self.temperature, self.temperature, self.self_term).mean()

        loss, grads = jax.value_and_grad(loss_fn)(state.networks)
        networks, opt = self.optimizer.update(state.networks, grads, state.opt)
        networks = networks._replace(state=networks.state.observe(batch.next_obs))
        return state._replace(networks=networks, opt=opt), {"loss": loss}

    def reward(self, state: CICState, batch: Batch, key: PRNGKeyArray) -> tuple[CICState, Float[Array, " batch"]]:
        del key
        network = state.networks.state
        features = network(batch.next_obs)
        others = features if self.compare_with == "next_obs" else network(batch.obs)
        distances = nearest_distances(features, others, self.neighbours)
        scale = update_scale(state.scale, distances)
        reward = particle_reward(distances / scale.variance, clip=0.0005)
        return state._replace(scale=scale), reward


def transition_nce(scores: Float[Array, "batch batch"], temperature: float, self_term: str) -> Float[Array, " batch"]:
    """CIC's loss for scores q_i·k_j/τ, with skills as rows and transitions as columns."""
    positive = jnp.diagonal(scores)
    own = jnp.exp(1 / temperature) if self_term == "constant" else jnp.exp(positive)
    rest = jnp.maximum(jnp.exp(scores).sum(1) - own, 1e-6)
    return jnp.log(rest + 1e-6) - positive
