"""BeCL as released for the 2-D maze: the formula behind the paper's maze pictures, which is not its Eq. 8.

With features f on the unit sphere, s_ij = f_i·f_j, M_i the largest s_ij and g the features of the episode's last state,

    r_i = Σ_d exp(f_i[d] g[d]) / (Σ_{j of other skills} exp((s_ij − M_i)/κ) + 1e-6) + 1e-6,      loss = mean −log r_i

The numerator is nearly constant, so this is repulsion from other skills, measured against the nearest neighbour (M_i).
While fitting, minibatches are shuffled, and g is the last of every 50 rows, so it is a state of any skill.
The reward is unbounded: it reaches about 1e6 at κ = 0.01.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from becl.envs.spec import EnvSpec
from becl.nn.adam import Adam, AdamState
from becl.nn.networks import MLP, Network, unit
from becl.objectives.contrast import in_blocks
from becl.objectives.protocol import Batch, Metrics
from becl.skills import OneHot, skill_index


class BeCLReleasedMazeState(NamedTuple):
    encoder: MLP
    opt: AdamState


@dataclass(frozen=True)
class BeCLReleasedMaze:
    skills: OneHot = OneHot(10)
    """Number of skills, and of feature dimensions."""
    temperature: float = 0.5
    """κ of the repulsion; the numerator has no temperature."""
    ramp: float = 0.0
    """The reward is multiplied by progress^ramp; 0 as released."""
    episode_length: int = 50
    """Rows from one `last state` to the next."""
    network: Network = Network((128, 128), "uniform")
    optimizer: Adam = Adam(1e-3, 1e-3, corrected=False)

    def init(self, key: PRNGKeyArray, env: EnvSpec) -> BeCLReleasedMazeState:
        encoder = self.network.init(key, env.obs_dim, self.skills.dim)
        return BeCLReleasedMazeState(encoder, self.optimizer.init(encoder))

    def fit(
        self, state: BeCLReleasedMazeState, batch: Batch, key: PRNGKeyArray
    ) -> tuple[BeCLReleasedMazeState, Metrics]:
        del key

        def loss_fn(encoder):
            features = unit(encoder(batch.next_obs))
            rows = jnp.arange(len(features))
            return -jnp.log(self.ratio(features, batch, rows)).mean()

        loss, grads = jax.value_and_grad(loss_fn)(state.encoder)
        encoder, opt = self.optimizer.update(state.encoder, grads, state.opt)
        return BeCLReleasedMazeState(encoder.observe(batch.next_obs), opt), {"loss": loss}

    def reward(
        self, state: BeCLReleasedMazeState, batch: Batch, key: PRNGKeyArray
    ) -> tuple[BeCLReleasedMazeState, Float[Array, " batch"]]:
        del key
        features = unit(state.encoder(batch.next_obs))
        rewards = in_blocks(lambda rows: self.ratio(features, batch, rows), len(features))
        return state, rewards * batch.progress**self.ramp

    def ratio(
        self, features: Float[Array, "batch f"], batch: Batch, rows: Int[Array, " anchors"]
    ) -> Float[Array, " anchors"]:
        skill = skill_index(batch.skill)
        last = jnp.minimum(rows - rows % self.episode_length + self.episode_length, len(features)) - 1
        similarity = features[rows] @ features.T
        negative = skill[rows][:, None] != skill
        other = rows[:, None] != jnp.arange(len(features))
        return repulsion(features[rows], features[last], similarity, negative, other, self.temperature)


def repulsion(anchors, lasts, similarity, negative, other, temperature) -> Float[Array, " anchors"]:
    """The ratio r_i of the module's docstring."""
    peak = jnp.max(jnp.where(other, similarity, -jnp.inf), 1, keepdims=True)
    mass = jnp.sum(jnp.where(negative, jnp.exp((similarity - peak) / temperature), 0.0), 1)
    return jnp.exp(anchors * lasts).sum(1) / (mass + 1e-6) + 1e-6
