"""AMPED (Cho et al. 2026): BeCL's contrast with a learned distance between features (AnInfoNCE), and exploration.

Rewards states that lie near a state of the same skill and far from all others. With features f, a matrix Λ learned with
them, temperature κ, and p the first other state of the anchor's skill in the batch,

    d_ij = (f_i − f_j)ᵀ Λ (f_i − f_j) / κ
    q_i = exp(−d_ip) / (Σ_{j≠i} exp(−d_ij) + 1e-6) + 1e-6,      loss = mean −log q_i,      reward = q_i

Exploration is of two kinds, and the critic reconciles its gradient with the contrast's (`amped` below):

    r_diversity = reward,      r_exploration = 0.01 · r_CIC + 10 · r_RND
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from becl.envs.spec import EnvSpec
from becl.nn.adam import Adam, AdamState
from becl.nn.networks import MLP, Network, Widths
from becl.objectives.cic import CIC
from becl.objectives.contrast import CONSTANT
from becl.objectives.positives import first_choice
from becl.objectives.protocol import Batch, Metrics
from becl.objectives.rnd import RND
from becl.objectives.total import Sum
from becl.skills import OneHot

NEAREST = -30.0  # Λ may make a distance negative; of a smaller one, exponentials would soon leave float32.


class AnInfoNCENetworks(NamedTuple):
    encoder: MLP
    head: MLP | None
    distance: Float[Array, "f *f"]
    """Λ, or its diagonal."""


class AnInfoNCEState(NamedTuple):
    networks: AnInfoNCENetworks
    opt: AdamState


@dataclass(frozen=True)
class AnInfoNCE:
    skills: OneHot = OneHot(16)
    """Number of skills."""
    temperature: float = 0.5
    """κ."""
    distance: Literal["full", "diagonal"] = "full"
    """What of Λ is learned: the whole matrix, as released, or its diagonal, as printed."""
    feature_dim: int = 16
    network: Network = Network()
    head: Widths | None = (1024,)
    """Hidden widths of the projection head behind the encoder; None for no head."""
    optimizer: Adam = Adam()

    def init(self, key: PRNGKeyArray, env: EnvSpec) -> AnInfoNCEState:
        encoder_key, head_key = jax.random.split(key)
        encoder, head = self.network.init(encoder_key, env.obs_dim, self.feature_dim), None
        if self.head is not None:
            head = Network(self.head, self.network.start).init(head_key, self.feature_dim, self.feature_dim)
        distance = jnp.eye(self.feature_dim) if self.distance == "full" else jnp.ones(self.feature_dim)
        networks = AnInfoNCENetworks(encoder, head, distance)
        return AnInfoNCEState(networks, self.optimizer.init(networks))

    def fit(self, state: AnInfoNCEState, batch: Batch, key: PRNGKeyArray) -> tuple[AnInfoNCEState, Metrics]:
        """One step down the loss on the batch."""
        del key

        def loss_fn(networks: AnInfoNCENetworks) -> tuple[Float[Array, ""], Float[Array, ""]]:
            share = self.share(networks, batch)
            return -jnp.log(share).mean(), share.mean()

        (loss, ratio), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.networks)
        networks, opt = self.optimizer.update(state.networks, grads, state.opt)
        networks = networks._replace(encoder=networks.encoder.observe(batch.next_obs))
        return AnInfoNCEState(networks, opt), {"loss": loss, "ratio": ratio}

    def reward(
        self, state: AnInfoNCEState, batch: Batch, key: PRNGKeyArray
    ) -> tuple[AnInfoNCEState, Float[Array, " batch"]]:
        """q of every state of the batch."""
        del key
        return state, self.share(state.networks, batch)

    def share(self, networks: AnInfoNCENetworks, batch: Batch) -> Float[Array, " batch"]:
        embedding = networks.encoder(batch.next_obs)
        features = embedding if networks.head is None else networks.head(embedding)
        gaps = squared_distances(features, networks.distance) / self.temperature
        return positive_share(gaps, first_choice(batch.skill))

    def chance_reward(self, batch: int) -> float | None:
        """q of a positive that is as near as any other state of the batch."""
        return None if batch < 2 else 1 / (batch - 1) + CONSTANT


def squared_distances(features: Float[Array, "batch f"], distance: Float[Array, "f *f"]) -> Float[Array, "batch batch"]:
    """(f_i − f_j)ᵀ Λ (f_i − f_j) of all pairs, by one product, without a batch × batch × feature array."""
    moved = features @ distance if distance.ndim == 2 else features * distance
    # Of neighbours, a small difference of large numbers.
    products = jnp.matmul(moved, features.T, precision=jax.lax.Precision.HIGHEST)
    own = jnp.diagonal(products)
    return own[:, None] + own - products - products.T


def positive_share(gaps: Float[Array, "batch batch"], choice: Int[Array, " batch"]) -> Float[Array, " batch"]:
    """q of each anchor from its distances d to all states, and the row of its positive."""
    near = jnp.exp(-jnp.maximum(gaps, NEAREST))
    others = jnp.where(jnp.eye(len(gaps), dtype=bool), 0.0, near).sum(1)
    return jnp.take_along_axis(near, choice[:, None], 1)[:, 0] / (others + CONSTANT) + CONSTANT


def amped(reconciled: bool) -> Sum:
    """AMPED's sum. Where gradients do not disagree, two targets have the step of one with the mean of both."""
    parts = AnInfoNCE(), CIC(OneHot(16)), RND(feature_dim=1024)
    weights = (1.0, 0.01, 10.0) if reconciled else (0.5, 0.005, 5.0)
    targets = (0, 1, 1) if reconciled else ()
    return Sum(*parts, weights=weights, names=("contrast", "cic", "rnd"), targets=targets)
