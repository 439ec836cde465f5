"""MOSS: Mixture of Surprises (Zhao et al. 2022).

Rewards spread in one mode, as CIC does, and the opposite of it in the other: where an environment is full of surprises
by itself, the second is what has to be learned. With features φ learned as CIC's, m and v the running mean and variance
of the distances, and the mode M of the skill, which changes in the middle of an episode,

    e_i = log(1 + mean over the K nearest of max((‖φ(s_i) − φ(s'_j)‖ − m) / v − 0.0005, 0))
    r_i = e_i where M = 0,      r_i = −e_i where M = 1

Neighbours are sought among the states of both modes.
"""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from becl.envs.spec import EnvSpec
from becl.nn.adam import Adam
from becl.nn.networks import Network
from becl.objectives.cic import CIC, CICState
from becl.objectives.particles import nearest_distances, particle_reward, update_scale
from becl.objectives.protocol import Batch, Metrics
from becl.skills import Modes


@dataclass(frozen=True)
class MOSS:
    skills: Modes = Modes(32)
    """Two modes: which half of the numbers is not zero, or their sign."""
    temperature: float = 0.5
    neighbours: int = 16
    """K."""
    feature_dim: int = 64
    network: Network = Network()
    optimizer: Adam = Adam()

    def init(self, key: PRNGKeyArray, env: EnvSpec) -> CICState:
        return self.contrast.init(key, env)

    def fit(self, state: CICState, batch: Batch, key: PRNGKeyArray) -> tuple[CICState, Metrics]:
        return self.contrast.fit(state, batch, key)

    @property
    def contrast(self) -> CIC:
        """What the features are learned by."""
        return CIC(
            self.skills,
            self.temperature,
            feature_dim=self.feature_dim,
            network=self.network,
            optimizer=self.optimizer,
        )

    def reward(self, state: CICState, batch: Batch, key: PRNGKeyArray) -> tuple[CICState, Float[Array, " batch"]]:
        del key
        network = state.networks.state
        distances = nearest_distances(network(batch.obs), network(batch.next_obs), self.neighbours)
        scale = update_scale(state.scale, distances)
        # All states may be one.
        surprise = particle_reward((distances - scale.mean) / jnp.maximum(scale.variance, 1e-12), clip=0.0005)
        return state._replace(scale=scale), jnp.where(self.skills.mode(batch.skill) == 1, -surprise, surprise)
