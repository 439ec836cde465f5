"""BeCL as released for URLB: the formula behind the published numbers on robots, which is not the paper's Eq. 8.

With similarities s_ij = f_i·f_j/κ of unit features, M_i the largest of row i, and p the first other state of the skill
in the batch (one for all anchors of the skill; where there is none, the first other state of all),

    q_i = exp(s_ip − M_i) / (Σ_{j≠i} exp(s_ij − M_i) + 1e-6) + 1e-6,      loss = mean −log q_i,      reward = q_i

Differences from the paper: the other states of the same skill stand in the denominator too, so that they repel; the
positive may be of the same trajectory; the reward is about 30 times smaller, because 1,023 states compete and not 31.
"""

from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from becl.envs.spec import EnvSpec
from becl.nn.adam import Adam
from becl.nn.networks import Network, Widths
from becl.objectives.contrast import CONSTANT, exponentials_fit, shared_nce, similarities
from becl.objectives.encoder import EncoderState, encoder_reward, fit_encoder, init_encoder
from becl.objectives.positives import POSITIVES, Positives, first_choice, relate
from becl.objectives.protocol import Batch, Metrics
from becl.skills import OneHot


@dataclass(frozen=True)
class BeCLReleased:
    skills: OneHot = OneHot(16)
    """Number of skills."""
    temperature: float = 0.5
    """κ."""
    positive: Literal["first", "mean", "nearest", "aligned", "distant", "random"] = "first"
    """Which state(s) of the same skill an anchor is pulled to: the first in the batch as released, or as in `becl`."""
    ramp: float = 0.0
    """Reward times progress^ramp; 0 as released."""
    state: Literal["next_obs", "obs", "both"] = "next_obs"
    """What of a transition is contrasted: the state where it leads, as released, or as in `becl-paper`."""
    feature_dim: int = 16
    network: Network = Network()
    head: Widths | None = (1024,)
    """Hidden widths of the projection head behind the encoder; None for no head."""
    optimizer: Adam = Adam()

    def init(self, key: PRNGKeyArray, env: EnvSpec) -> EncoderState:
        return init_encoder(self, key, env.obs_dim)

    def fit(self, state: EncoderState, batch: Batch, key: PRNGKeyArray) -> tuple[EncoderState, Metrics]:
        """One step down the loss on the batch."""
        return fit_encoder(self, state, batch, key)

    def reward(
        self, state: EncoderState, batch: Batch, key: PRNGKeyArray
    ) -> tuple[EncoderState, Float[Array, " batch"]]:
        """q of every state of the batch."""
        return encoder_reward(self, state, batch, key)

    def contrast(
        self,
        anchors: Float[Array, "anchors f"],
        features: Float[Array, "batch f"],
        batch: Batch,
        rows: Int[Array, " anchors"],
        key: PRNGKeyArray,
    ) -> tuple[Float[Array, " anchors"], Float[Array, " anchors"]]:
        """Loss and reward of the anchors (rows of the batch) against the whole batch."""
        if self.positive == "first" and exponentials_fit(self.temperature):
            # The same formula, with a gradient written out.
            return shared_nce(anchors, features, rows, first_choice(batch.skill)[rows], self.temperature)
        scores, pairs = similarities(anchors, features) / self.temperature, relate(batch, rows)
        chosen = POSITIVES[self.positive](scores, pairs, key)
        ratio = share(chosen, scores, pairs.other)
        return -jnp.sum(chosen.weights * jnp.log(ratio), 1), jnp.sum(chosen.weights * ratio, 1)

    def chance_reward(self, batch: int) -> float | None:
        """q of a positive that is like any other state of the batch, which all compete. The most similar one has more,
        however little was learned."""
        return None if self.positive == "nearest" or self.ramp or batch < 2 else 1 / (batch - 1) + CONSTANT


def share(
    chosen: Positives, scores: Float[Array, "anchors batch"], other: Bool[Array, "anchors batch"]
) -> Float[Array, "anchors positives"]:
    """q of the module's docstring, of each positive; `other` marks all states but the anchor itself."""
    peak = jnp.max(jnp.where(other, scores, -jnp.inf), 1)[:, None]

    def relative(scores: Array, counts: Array) -> Array:
        # The anchor's own score may be far beyond the largest of the others: it must not overflow.
        return jnp.where(counts, jnp.exp(jnp.where(counts, scores - peak, 0.0)), 0.0)

    total = jnp.sum(relative(scores, other), 1, keepdims=True)
    return relative(chosen.scores, chosen.weights > 0) / (total + CONSTANT) + CONSTANT
