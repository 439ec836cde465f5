"""Nearest neighbours in a batch, and the running scale their distances are divided by."""

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
    """Euclidean distances to the k nearest rows of y, from the Gram matrix: no batch × other × dim array."""
    squares = jnp.square(x).sum(1)[:, None] + jnp.square(y).sum(1) - 2 * x @ y.T
    nearest = -jax.lax.top_k(-squares, k)[0]
    return jnp.sqrt(jnp.maximum(nearest, 0.0))
