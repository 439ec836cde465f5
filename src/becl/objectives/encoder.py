"""The contrastive encoder of BeCL: features of states on the unit sphere, fitted by any contrast of them."""

from collections.abc import Callable
from typing import NamedTuple

import jax
from jaxtyping import Array, Float, PRNGKeyArray

from becl.nn.adam import Adam, AdamState
from becl.nn.networks import MLP, Network, unit
from becl.objectives.protocol import Metrics

Contrast = Callable[[Float[Array, "batch f"]], tuple[Float[Array, " batch"], Float[Array, " batch"]]]
"""Loss and reward of each state of a batch, given the features of all."""


class EncoderState(NamedTuple):
    encoder: MLP
    head: MLP | None
    opt: AdamState


def init_encoder(
    key: PRNGKeyArray, obs_dim: int, feature_dim: int, network: Network, head: tuple[int, ...] | None, optimizer: Adam
) -> EncoderState:
    """An encoder and, where there is to be one, a projection head behind it with these hidden widths."""
    encoder_key, head_key = jax.random.split(key)
    encoder = network.init(encoder_key, obs_dim, feature_dim)
    projection = None if head is None else Network(head, network.start).init(head_key, feature_dim, feature_dim)
    return EncoderState(encoder, projection, optimizer.init((encoder, projection)))


def encode(state: EncoderState, obs: Float[Array, "*b o"]) -> Float[Array, "*b f"]:
    """Features on the unit sphere."""
    return _features((state.encoder, state.head), obs)


def _features(networks: tuple[MLP, MLP | None], obs: Float[Array, "*b o"]) -> Float[Array, "*b f"]:
    encoder, head = networks
    embedding = encoder(obs)
    return unit(embedding if head is None else head(embedding))


def fit_encoder(
    state: EncoderState, optimizer: Adam, states: Float[Array, "batch obs"], contrast: Contrast
) -> tuple[EncoderState, Metrics]:
    """One step down the mean loss of a contrast."""

    def loss_fn(networks: tuple[MLP, MLP | None]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        loss, reward = contrast(_features(networks, states))
        return loss.mean(), reward.mean()

    networks = (state.encoder, state.head)
    (loss, ratio), grads = jax.value_and_grad(loss_fn, has_aux=True)(networks)
    (encoder, head), opt = optimizer.update(networks, grads, state.opt)
    return EncoderState(encoder.observe(states), head, opt), {"loss": loss, "ratio": ratio}
