"""How BeCL's contrasts are computed quickly: sums of likenesses with gradients written out, so that few large matrices
are kept and read.

What each function computes stands in a line of `becl.py` or `becl_released.py`; tests compare values and gradients with
those lines in both precisions.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from becl.nn.precision import compute_dtype, fine_product

# Anchors priced at once: keeps a block of similarities (250 × batch) in a core's cache.
BLOCK = 250
NO_SCORE = -1e4  # Of a batch without negatives: their mass is nothing.
SAFE = 70.0  # Exponentials of scores this size, and sums of millions of them, are within float32.
TINY = 1e-30  # Instead of a sum over no negatives, which is divided by.
CONSTANT = 1e-6  # Of the released formula.


def in_blocks(price: Callable[[Int[Array, " anchors"]], Float[Array, " anchors"]], size: int) -> Float[Array, " batch"]:
    """A function of anchor rows over a whole batch, block by block."""
    block = BLOCK if size % BLOCK == 0 else size
    return jax.lax.map(price, jnp.arange(size).reshape(-1, block)).reshape(size)


def exponentials_fit(temperature: float) -> bool:
    """Whether likenesses, which are between e^(−1/κ) and e^(1/κ), and their ratios are within float32."""
    return 2 / temperature < SAFE


def likeness(
    anchors: Float[Array, "anchors f"], features: Float[Array, "batch f"], temperature: float
) -> Float[Array, "anchors batch"]:
    """exp(f(s)·f(s')/κ) of every anchor with every state. As large as a layer, so it is as coarse."""
    return jnp.exp(fine_product(anchors, features.T) / temperature).astype(compute_dtype())


def negative_sum(
    like: Float[Array, "anchors batch"], negative: Bool[Array, "anchors batch"]
) -> Float[Array, "anchors 1"]:
    """Σ over S⁻ of Eq. 8."""
    return jnp.sum(jnp.where(negative, like.astype(jnp.float32), 0.0), 1, keepdims=True)


def mean_over(mask: Bool[Array, "anchors batch"], x: Float[Array, "anchors batch"]) -> Float[Array, " anchors"]:
    """Mean over what is masked in each row; 0 where nothing is."""
    return jnp.sum(jnp.where(mask, x, 0.0), 1) / jnp.maximum(mask.sum(1), 1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def mean_nce(
    anchors: Float[Array, "anchors f"],
    features: Float[Array, "batch f"],
    positive: Bool[Array, "anchors batch"],
    negative: Bool[Array, "anchors batch"],
    each: Float[Array, " anchors"],
    temperature: float,
) -> Float[Array, " anchors"]:
    """The loss of Eq. 8 of each anchor, mean over its positives; a negative of its batch counts `each` times."""
    return _mean_nce_forward(anchors, features, positive, negative, each, temperature)[0]


def _mean_nce_forward(
    anchors: Array, features: Array, positive: Array, negative: Array, each: Array, temperature: float
) -> tuple[Array, tuple[Array, ...]]:
    like = likeness(anchors, features, temperature)
    total = negative_sum(like, negative)
    mass = each[:, None] * total
    # The slope of L = log(1 + mass/e⁺) by the sum: made here, where the likeness is read anyway.
    push = mean_over(positive, mass / (like + mass)) / jnp.maximum(total[:, 0], TINY)
    return mean_over(positive, jnp.log1p(mass / like)), (anchors, features, positive, negative, like, mass, push)


def _mean_nce_backward(
    temperature: float, kept: tuple[Array, ...], g: Float[Array, " anchors"]
) -> tuple[Array, Array, None, None, None]:
    anchors, features, positive, negative, like, mass, push = kept
    pull = mass / (like + mass) / jnp.maximum(positive.sum(1, keepdims=True), 1)
    slope = jnp.where(negative, push[:, None] * like, jnp.where(positive, -pull, 0.0)) * g[:, None] / temperature
    return *_similarities_backward((anchors, features), slope), None, None, None


# Written out, so that no matrix beside the likeness is kept.
mean_nce.defvjp(_mean_nce_forward, _mean_nce_backward)


def mean_contrast(
    anchors: Float[Array, "anchors f"],
    features: Float[Array, "batch f"],
    positive: Bool[Array, "anchors batch"],
    negative: Bool[Array, "anchors batch"],
    each: Float[Array, " anchors"],
    temperature: float,
) -> tuple[Float[Array, " anchors"], Float[Array, " anchors"]]:
    """Eq. 8 and 10 of each anchor, mean over its positives; a negative of its batch counts `each` times."""
    loss: Array = mean_nce(anchors, features, positive, negative, each, temperature)
    like = likeness(anchors, features, temperature)
    return loss, mean_over(positive, like / (like + each[:, None] * negative_sum(like, negative)))


def negative_mass(
    scores: Float[Array, "anchors batch"], negatives: Bool[Array, "anchors batch"], hardness: float, bound: float
) -> Float[Array, " anchors"]:
    """log Σ_j w_j exp(score_j) over the negatives, w_j ∝ exp(hardness · score_j) with mean 1; |score_j| ≤ bound."""
    if hardness == 0:
        return log_sum_exp(scores, negatives, bound)
    weighted = log_sum_exp((1 + hardness) * scores, negatives, (1 + hardness) * bound)
    weights = log_sum_exp(hardness * scores, negatives, hardness * bound)
    return weighted + jnp.log(jnp.maximum(negatives.sum(1), 1)) - weights


@jax.custom_vjp
def similarities(
    anchors: Float[Array, "anchors f"], features: Float[Array, "batch f"]
) -> Float[Array, "anchors batch"]:
    """f(s)·f(s') of every anchor with every state."""
    return anchors @ features.T


def _similarities_backward(kept: tuple[Array, Array], g: Float[Array, "anchors batch"]) -> tuple[Array, Array]:
    anchors, features = kept
    # The barrier keeps XLA from rounding it in both products, which would read all its bits twice.
    g = jax.lax.optimization_barrier(g.astype(compute_dtype()))
    return (g @ features.astype(g.dtype)).astype(jnp.float32), (g.T @ anchors.astype(g.dtype)).astype(jnp.float32)


# Written out: the gradient's matrix is as large as a layer's and may be as coarse.
similarities.defvjp(
    lambda anchors, features: (similarities(anchors, features), (anchors, features)), _similarities_backward
)


def log_sum_exp(
    scores: Float[Array, "anchors batch"], mask: Bool[Array, "anchors batch"], bound: float
) -> Float[Array, " anchors"]:
    """log Σ exp(score) over the masked of each row, |score| ≤ bound; NO_SCORE where there are none."""
    return _log_sum_exp(scores, mask, bound)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _log_sum_exp(scores: Array, mask: Array, bound: float) -> Array:
    # Shifted by the largest at low temperatures, so that the sum is at least 1.
    peak = jnp.zeros(len(scores)) if bound < SAFE else jnp.max(jnp.where(mask, scores, NO_SCORE), 1)
    total = jnp.sum(jnp.where(mask, jnp.exp(scores - peak[:, None]), 0.0), 1)
    return jnp.where(total > 0, jnp.log(total) + peak, NO_SCORE)


# Written out, so that the gradient needs the scores again and no other matrix of their size.
_log_sum_exp.defvjp(
    lambda scores, mask, bound: ((mass := _log_sum_exp(scores, mask, bound)), (scores, mask, mass)),
    lambda _, kept, g: (g[:, None] * jnp.where(kept[1], jnp.exp(kept[0] - kept[2][:, None]), 0.0), None),
)


@jax.custom_vjp
def largest(scores: Float[Array, "anchors batch"], mask: Bool[Array, "anchors batch"]) -> Float[Array, " anchors"]:
    """The largest masked score of each row; −∞ where there is none."""
    return jnp.max(jnp.where(mask, scores, -jnp.inf), 1)


largest.defvjp(
    lambda scores, mask: ((best := largest(scores, mask)), (scores, mask, best)),
    lambda kept, g: (_shared(kept[1] & (kept[0] == kept[2][:, None])) * g[:, None], None),
)


def _shared(equal: Bool[Array, "anchors batch"]) -> Float[Array, "anchors batch"]:
    """What each of the equal ones has of a whole."""
    return equal / jnp.maximum(equal.sum(1, keepdims=True), 1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def shared_nce(
    anchors: Float[Array, "anchors f"],
    features: Float[Array, "batch f"],
    rows: Int[Array, " anchors"],
    choice: Int[Array, " anchors"],
    temperature: float,
) -> tuple[Float[Array, " anchors"], Float[Array, " anchors"]]:
    """Loss and ratio of the released formula: of each anchor (a row of the batch) with one positive (`choice`) among
    all others. Only the loss has a gradient."""
    return _shared_nce_forward(anchors, features, rows, choice, temperature)[0]


def _shared_nce_forward(
    anchors: Array, features: Array, rows: Array, choice: Array, temperature: float
) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
    like = likeness(anchors, features, temperature)
    others = jnp.where(rows[:, None] != jnp.arange(len(features)), like.astype(jnp.float32), 0.0)
    # The released constant stands beside exponentials relative to the largest.
    total = others.sum(1) + CONSTANT * others.max(1)
    share = jnp.take_along_axis(like, choice[:, None], 1)[:, 0].astype(jnp.float32) / total
    ratio = share + CONSTANT
    return (-jnp.log(ratio), ratio), (anchors, features, rows, choice, like, total, share / ratio)


def _shared_nce_backward(
    temperature: float, kept: tuple[Array, ...], g: tuple[Array, Array]
) -> tuple[Array, Array, None, None]:
    anchors, features, rows, choice, like, total, part = kept
    column = jnp.arange(len(features))
    push = jnp.where(rows[:, None] != column, like / total[:, None], 0.0) - (choice[:, None] == column)
    slope = push * (g[0] * part / temperature)[:, None]
    return *_similarities_backward((anchors, features), slope), None, None


shared_nce.defvjp(_shared_nce_forward, _shared_nce_backward)
