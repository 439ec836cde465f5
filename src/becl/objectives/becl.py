"""BeCL: Behavior Contrastive Learning (Yang et al., ICML 2023).

Rewards states that are like states of the same skill and unlike states of other skills, and so maximises the
information two trajectories of one skill have about each other. With features f on the unit sphere, temperature κ,
a positive s⁺ (same skill, another trajectory) and negatives S⁻ (other skills),

    L(s) = −log [ exp(f(s)·f(s⁺)/κ) / (exp(f(s)·f(s⁺)/κ) + Σ_{s⁻∈S⁻} exp(f(s)·f(s⁻)/κ)) ]      (Eq. 8)
    r(s) = E[exp(−L(s))]                                                                     (Eq. 10)

The paper leaves open which state of the other trajectory is the positive (`positives.py`), and its released programs
differ from the equations (`becl_released.py`, `becl_released_maze.py`).
"""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from becl.envs.spec import EnvSpec
from becl.nn.adam import Adam
from becl.nn.networks import Network, Widths
from becl.objectives.contrast import exponentials_fit, mean_contrast, negative_mass, similarities
from becl.objectives.encoder import EncoderState, encoder_reward, fit_encoder, init_encoder
from becl.objectives.positives import POSITIVES, Pairs, relate
from becl.objectives.protocol import Batch, Metrics
from becl.skills import OneHot
from becl.specs import former


@dataclass(frozen=True)
class BeCL:
    skills: OneHot = OneHot(16)
    """Number of skills."""
    temperature: float = 0.5
    """κ: lower contrasts nearer neighbours harder."""
    positive: Literal["mean", "nearest", "aligned", "distant", "random", "pair"] = former("mean", "first")
    """Which state(s) of the same skill an anchor is pulled to: all of them (the printed expectation), the most similar
    one, the one at the same time of its trajectory, a distant one of the same trajectory (Figure 3), a few at random,
    or one partner (Algorithm 1: states come in groups of two of each skill, and contrast within their group). The most
    similar one says nothing of a skill where no two states are alike, as on robots."""
    denominator: Literal["paper", "batch"] = "paper"
    """What the positive competes with: other skills' states counted as the paper's 2(m−1) negatives (with `pair` these
    are those of the group), or each other-skill state of the batch."""
    hard_negatives: float = 0.0
    """β: negatives weighted by exp(β·similarity/κ), normalised; 0 weighs them equally."""
    ramp: float = 0.0
    """Reward times progress^ramp: the walk through corridors that all skills share costs less."""
    state: Literal["next_obs", "obs", "both"] = "next_obs"
    """What of a transition is contrasted: the state where it leads (released code), the one where it begins (paper), or
    both as one, the ends of a sub-trajectory (Section 3.4) of `replay.nstep` steps."""
    feature_dim: int = 16
    network: Network = Network()
    head: Widths | None = (1024,)
    """Hidden widths of the projection head behind the encoder; None for no head."""
    optimizer: Adam = Adam()

    def init(self, key: PRNGKeyArray, env: EnvSpec) -> EncoderState:
        return init_encoder(self, key, env.obs_dim)

    def fit(self, state: EncoderState, batch: Batch, key: PRNGKeyArray) -> tuple[EncoderState, Metrics]:
        """One step down the mean of L over the batch."""
        return fit_encoder(self, state, batch, key)

    def reward(
        self, state: EncoderState, batch: Batch, key: PRNGKeyArray
    ) -> tuple[EncoderState, Float[Array, " batch"]]:
        """r of every state of the batch."""
        return encoder_reward(self, state, batch, key)

    def contrast(
        self,
        anchors: Float[Array, "anchors f"],
        features: Float[Array, "batch f"],
        batch: Batch,
        rows: Int[Array, " anchors"],
        key: PRNGKeyArray,
    ) -> tuple[Float[Array, " anchors"], Float[Array, " anchors"]]:
        """L and r of the anchors (rows of the batch) against the whole batch."""
        pairs = relate(batch, rows)
        if self.positive == "pair" and self.denominator == "paper":
            pairs = pairs._replace(negative=pairs.negative & pairs.grouped)
        each = self.weight(pairs)
        if self.positive == "mean" and not self.hard_negatives and exponentials_fit(self.temperature):
            # The same two equations of all positives at once, by exponentials and with a gradient written out.
            return mean_contrast(anchors, features, pairs.across, pairs.negative, each, self.temperature)
        scores = similarities(anchors, features) / self.temperature
        chosen = POSITIVES[self.positive](scores, pairs, key)
        mass = negative_mass(scores, pairs.negative, self.hard_negatives, 1 / self.temperature) + jnp.log(each)
        loss = contrastive_loss(chosen.scores, mass[:, None])
        reward = intrinsic_reward(chosen.scores, mass[:, None])
        return jnp.sum(chosen.weights * loss, -1), jnp.sum(chosen.weights * reward, -1)

    def chance_reward(self, batch: int) -> float | None:
        """Eq. 10 of equal similarities: 1/(2m−1) for the paper's 2(m−1) negatives.

        A positive that is like any negative has this share; where states differ, about 1 % less of 16 skills, because
        the share is concave in its likeness. The most similar state has more, however little was learned, and weights
        for hard negatives or for time change the share too.
        """
        skills = self.skills.dim
        uneven = self.positive == "pair" and batch % (2 * skills)  # Some groups would lack a skill.
        if self.positive == "nearest" or self.hard_negatives or self.ramp or uneven:
            return None
        negatives = 2 * (skills - 1) if self.denominator == "paper" else batch * (skills - 1) / skills
        return 1 / (1 + negatives)

    def weight(self, pairs: Pairs) -> Float[Array, " anchors"]:
        """How much each negative of the batch counts: together as much as the paper's 2(m−1), or one each."""
        number = jnp.maximum(pairs.negative.sum(1), 1)
        whole = self.denominator == "paper" and self.positive != "pair"
        return 2 * (self.skills.dim - 1) / number if whole else jnp.ones(len(number))


def contrastive_loss(positive: Float[Array, "*#b"], negatives: Float[Array, "*#b"]) -> Float[Array, "*b"]:
    """Eq. 8: L = −log [e^p / (e^p + e^n)], with p = f(s)·f(s⁺)/κ and n the logarithm of Σ exp(f(s)·f(s⁻)/κ).

    The fraction is the logistic function of p − n.
    """
    return -jax.nn.log_sigmoid(positive - negatives)


def intrinsic_reward(positive: Float[Array, "*#b"], negatives: Float[Array, "*#b"]) -> Float[Array, "*b"]:
    """Eq. 10 for one positive: r = e^−L = e^p / (e^p + e^n). `contrast` takes the mean over positives."""
    return jax.nn.sigmoid(positive - negatives)
