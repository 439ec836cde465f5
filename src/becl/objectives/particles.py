"""Nearest neighbours in a batch, the running scale of their distances, and the entropy estimated from them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class RunningScale(NamedTuple):
    """Mean and variance of everything seen, merged batch by batch (Chan et al.), unbiased within a batch."""

    mean: Float[Array, ""]
    variance: Float[Array, ""]
    number: Float[Array, ""]


def init_scale() -> RunningScale:
    return RunningScale(jnp.zeros(()), jnp.ones(()), jnp.array(1e-4))


def update_scale(scale: RunningScale, x: Float[Array, "..."]) -> RunningScale:
    number = scale.number + x.size
    delta = x.mean() - scale.mean
    mean = scale.mean + delta * x.size / number
    squares = scale.variance * scale.number + x.var(ddof=1) * x.size
    variance = (squares + jnp.square(delta) * scale.number * x.size / number) / number
    return RunningScale(mean, variance, number)


def nearest_distances(x: Float[Array, "batch dim"], y: Float[Array, "other dim"], k: int) -> Float[Array, "batch k"]:
    """Euclidean distances to the k nearest rows of y, by the Gram matrix, without a batch × other × dim array."""
    # TF32, a GPU's default, is off by a thousandth of the norms: more than the distances of near neighbours.
    gram = jnp.matmul(x, y.T, precision=jax.lax.Precision.HIGHEST)
    squares = jnp.square(x).sum(1)[:, None] + jnp.square(y).sum(1) - 2 * gram
    nearest = -jax.lax.top_k(-squares, k)[0]
    return jnp.sqrt(jnp.maximum(nearest, 0.0))


def particle_entropy(
    features: Float[Array, "batch dim"],
    k: int,
    scale: RunningScale | None = None,
    clip: float = 0.0,
) -> tuple[Float[Array, " batch"], RunningScale | None]:
    """log(1 + mean of max(d/M − clip, 0)), d the distances to the k nearest rows of the batch, the row itself included.

    M is the running mean of all d so far, these included; 1 when no scale is given.
    """
    distances = nearest_distances(features, features, k)
    if scale is not None:
        scale = update_scale(scale, distances)
        distances = distances / jnp.maximum(scale.mean, 1e-12)  # All states may be one.
    return particle_reward(distances, clip), scale


def particle_reward(distances: Float[Array, "batch k"], clip: float) -> Float[Array, " batch"]:
    """log(1 + mean of max(d − clip, 0))."""
    return jnp.log1p(jnp.maximum(distances - clip, 0.0).mean(1))
