"""The contrastive encoder of BeCL: features of states on the unit sphere, fitted and priced by any contrast of them."""

from typing import Literal, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from becl.nn.adam import Adam, AdamState
from becl.nn.networks import MLP, Network, Widths, unit
from becl.objectives.contrast import in_blocks
from becl.objectives.protocol import Batch, Metrics


class EncoderState(NamedTuple):
    encoder: MLP
    head: MLP | None
    opt: AdamState


@runtime_checkable
class Contrast(Protocol):
    """A spec whose method `contrast` says how states of a batch are compared. The rest is the same for all."""

    @property
    def ramp(self) -> float: ...
    @property
    def state(self) -> Literal["next_obs", "obs", "both"]: ...
    @property
    def feature_dim(self) -> int: ...
    @property
    def network(self) -> Network: ...
    @property
    def head(self) -> Widths | None: ...
    @property
    def optimizer(self) -> Adam: ...

    def contrast(
        self,
        anchors: Float[Array, "anchors f"],
        features: Float[Array, "batch f"],
        batch: Batch,
        rows: Int[Array, " anchors"],
        key: PRNGKeyArray,
    ) -> tuple[Float[Array, " anchors"], Float[Array, " anchors"]]:
        """Loss and reward of the anchors (rows of the batch) against the whole batch."""
        ...


def init_encoder(spec: Contrast, key: PRNGKeyArray, obs_dim: int) -> EncoderState:
    """An encoder and, where there is to be one, a projection head behind it."""
    encoder_key, head_key = jax.random.split(key)
    width = 2 * obs_dim if spec.state == "both" else obs_dim
    encoder, head = spec.network.init(encoder_key, width, spec.feature_dim), None
    if spec.head is not None:
        head = Network(spec.head, spec.network.start).init(head_key, spec.feature_dim, spec.feature_dim)
    return EncoderState(encoder, head, spec.optimizer.init((encoder, head)))


def looked_at(spec: Contrast, batch: Batch) -> Float[Array, "batch o"]:
    """What of each transition has features: one of its states, or the two ends of the sub-trajectory that it is."""
    if spec.state == "both":
        return jnp.concatenate([batch.obs, batch.next_obs], -1)
    return batch.obs if spec.state == "obs" else batch.next_obs


def encode(state: EncoderState, obs: Float[Array, "*b o"]) -> Float[Array, "*b f"]:
    """Features on the unit sphere."""
    return _features((state.encoder, state.head), obs)


def _features(networks: tuple[MLP, MLP | None], obs: Float[Array, "*b o"]) -> Float[Array, "*b f"]:
    encoder, head = networks
    embedding = encoder(obs)
    return unit(embedding if head is None else head(embedding))


def fit_encoder(spec: Contrast, state: EncoderState, batch: Batch, key: PRNGKeyArray) -> tuple[EncoderState, Metrics]:
    """One step down the mean loss over a batch."""
    states = looked_at(spec, batch)
    every = jnp.arange(len(batch.progress))

    def loss_fn(networks: tuple[MLP, MLP | None]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        features = _features(networks, states)
        loss, reward = spec.contrast(features, features, batch, every, key)
        return loss.mean(), reward.mean()

    networks = (state.encoder, state.head)
    (loss, ratio), grads = jax.value_and_grad(loss_fn, has_aux=True)(networks)
    (encoder, head), opt = spec.optimizer.update(networks, grads, state.opt)
    return EncoderState(encoder.observe(states), head, opt), {"loss": loss, "ratio": ratio}


def encoder_reward(
    spec: Contrast, state: EncoderState, batch: Batch, key: PRNGKeyArray
) -> tuple[EncoderState, Float[Array, " batch"]]:
    """The reward of every state of a batch, times progress^ramp."""
    features = encode(state, looked_at(spec, batch))
    rewards = in_blocks(lambda rows: spec.contrast(features[rows], features, batch, rows, key)[1], len(features))
    return state, rewards * batch.progress**spec.ramp
