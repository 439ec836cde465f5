"""Theorem 1: the contrastive estimate of information, with negatives from p(s) and from other skills."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, ArrayLike, Float, Int, PRNGKeyArray
from scipy.stats import binom

from becl.objectives.becl import contrastive_loss

LogScore = Callable[[Array, Array], Array]
Sampler = Callable[[PRNGKeyArray, int], tuple[Array, Array]]


def exact_loss(positive: Float[ArrayLike, "*n"], negative_mass: Float[ArrayLike, "*n"]) -> Float[np.ndarray, "*n"]:
    """``contrastive_loss`` as a float64 array, so that averages of it are precise."""
    return np.asarray(contrastive_loss(jnp.asarray(positive), jnp.asarray(negative_mass)), np.float64)


class ConfusedEstimates(NamedTuple):
    """Estimates for ``confused_skills`` under a score that tells equal states from different ones."""

    printed: float  # negatives from other skills, log(2m − 1) − L
    corrected: float  # negatives from other skills, averaged, log m − L
    marginal: float  # as many negatives from p(s), whatever the anchor's skill, log(2m − 1) − L


def confused_estimates(skills: int, confusion: float, margin: float) -> ConfusedEstimates:
    """Exact expectations when equal states score ``margin`` above different ones.

    The loss then depends on whether the positive equals the anchor and on how many negatives do.
    """
    negatives = 2 * (skills - 1)
    wrong = confusion / (skills - 1)
    equal = np.arange(negatives + 1)
    at_home = binom.pmf(equal, negatives, wrong)
    # A stray anchor is in another skill's state, and that skill is among the negatives.
    astray = np.convolve(
        binom.pmf(np.arange(3), 2, 1 - confusion),
        binom.pmf(np.arange(negatives - 1), negatives - 2, wrong),
    )
    hit = (1 - confusion) ** 2 * at_home + confusion * wrong * astray
    miss = (1 - confusion) * confusion * at_home + confusion * (1 - wrong) * astray
    other = np.stack([hit, miss])
    marginal = other.sum(1, keepdims=True) * binom.pmf(equal, negatives, 1 / skills)
    with np.errstate(divide="ignore"):
        mass = np.logaddexp(np.log(equal) + margin, np.log(negatives - equal))
    positive, mass = np.broadcast_arrays(np.array([[margin], [0.0]]), mass)
    loss = exact_loss(positive, mass)
    averaged_loss = exact_loss(positive, mass - np.log(2))
    return ConfusedEstimates(
        printed=float(np.log(negatives + 1) - np.sum(other * loss)),
        corrected=float(np.log(skills) - np.sum(other * averaged_loss)),
        marginal=float(np.log(negatives + 1) - np.sum(marginal * loss)),
    )


def simplex_margin(skills: int, temperature: float) -> float:
    """Margin of m unit features as far apart as can be: all cosines between them −1/(m − 1)."""
    return skills / (skills - 1) / temperature


def critical_temperature(skills: int) -> float:
    """Temperature below which log(2m − 1) − L can exceed log m = I(S1; S2) of m separated skills.

    No unit features have a smaller loss than the simplex: the loss is convex in the cosines, and
    the cosines of m unit vectors with one another average at least −1/(m − 1).
    """
    return float(skills / (skills - 1) / np.log(2 * skills))


def paired_estimate(skills: int, rows: int) -> float:
    """log(2·rows − 1) − L for separated skills, an unbounded score, and rows whose skills are independent.

    Both states of every other row are negatives, whatever its skill. They are independent of the
    anchor but not of each other, which already breaks the bound by a little.
    """
    same = np.arange(rows)
    loss = binom.pmf(same, rows - 1, 1 / skills) @ np.log1p(2 * same)
    return float(np.log(2 * rows - 1) - loss)


def gaussian_pairs(
    key: PRNGKeyArray, n: int, dim: int, correlation: float
) -> tuple[Float[Array, "n d"], Float[Array, "n d"]]:
    """Normal vectors with correlated coordinates: I = −dim/2 · log(1 − correlation²)."""
    first, noise = jax.random.normal(key, (2, n, dim))
    return first, correlation * first + jnp.sqrt(1 - correlation**2) * noise


def gaussian_log_ratio(
    first: Float[Array, "*#n d"], second: Float[Array, "*#n d"], correlation: float
) -> Float[Array, "..."]:
    """log p(first, second) / p(first) p(second) of ``gaussian_pairs``."""
    rest = 1 - correlation**2
    quadratic = correlation**2 * (first**2 + second**2) - 2 * correlation * first * second
    return jnp.sum(-quadratic / (2 * rest) - jnp.log(rest) / 2, axis=-1)


def table_pairs(
    key: PRNGKeyArray, n: int, joint: Float[np.ndarray, "a b"]
) -> tuple[Float[Array, "n a"], Float[Array, "n b"]]:
    """One-hot pairs drawn from a table of joint probabilities."""
    rows, columns = joint.shape
    cell = jax.random.choice(key, joint.size, (n,), p=jnp.asarray(joint.ravel()))
    return jax.nn.one_hot(cell // columns, rows), jax.nn.one_hot(cell % columns, columns)


def table_log_ratio(
    first: Float[Array, "*#n a"], second: Float[Array, "*#n b"], joint: Float[np.ndarray, "a b"]
) -> Float[Array, "..."]:
    """log p(first, second) / p(first) p(second) of ``table_pairs``."""
    ratio = joint / (joint.sum(1, keepdims=True) * joint.sum(0, keepdims=True))
    return jnp.einsum("...a,ab,...b->...", first, jnp.log(jnp.asarray(ratio)), second)


class LearnedScore(eqx.Module):
    """A learned log-score: the inner product of two small networks' outputs, which are not normalised."""

    first: eqx.nn.MLP
    second: eqx.nn.MLP

    def __init__(self, key: PRNGKeyArray, dim: int):
        first_key, second_key = jax.random.split(key)
        self.first = eqx.nn.MLP(dim, 16, 64, 2, key=first_key)
        self.second = eqx.nn.MLP(dim, 16, 64, 2, key=second_key)

    def __call__(self, first: Float[Array, "*#n d"], second: Float[Array, "*#n d"]) -> Float[Array, "..."]:
        along_last = functools.partial(jnp.vectorize, signature="(d)->(e)")
        return jnp.sum(along_last(self.first)(first) * along_last(self.second)(second), axis=-1)


def train_score(key: PRNGKeyArray, sample: Sampler, steps: int = 800, batch: int = 128) -> LearnedScore:
    """Trains a score on the loss whose negatives are the second views of a batch's other rows."""
    init_key, data_key = jax.random.split(key)
    optimiser = optax.adam(2e-3)
    score = LearnedScore(init_key, sample(data_key, 1)[0].shape[-1])
    weights, rest = eqx.partition(score, eqx.is_array)

    def loss(weights: LearnedScore, step_key: PRNGKeyArray) -> Float[Array, ""]:
        first, second = sample(step_key, batch)
        scores = eqx.combine(weights, rest)(first[:, None], second[None])
        others = jnp.where(jnp.eye(batch, dtype=bool), -jnp.inf, scores)
        return jnp.mean(contrastive_loss(jnp.diagonal(scores), jax.nn.logsumexp(others, axis=1)))

    def update(carry, step_key: PRNGKeyArray):
        weights, opt_state = carry
        updates, opt_state = optimiser.update(jax.grad(loss)(weights, step_key), opt_state)
        return (eqx.apply_updates(weights, updates), opt_state), None

    carry = (weights, optimiser.init(weights))
    (weights, _), _ = jax.lax.scan(update, carry, jax.random.split(data_key, steps))
    return eqx.combine(weights, rest)


def marginal_estimates(
    key: PRNGKeyArray,
    log_score: LogScore,
    sample: Sampler,
    candidates: Int[np.ndarray, " sizes"],
    batches: int = 20,
) -> Float[np.ndarray, " sizes"]:
    """log N − L for several N, with negatives drawn from the marginal, independent of the anchor."""
    anchors, negatives = 1000, int(candidates.max()) - 1

    def batch(batch_key: PRNGKeyArray) -> tuple[Array, Array]:
        pair_key, negative_key = jax.random.split(batch_key)
        first, second = sample(pair_key, anchors)
        others = sample(negative_key, anchors * negatives)[1].reshape(anchors, negatives, -1)
        masses = jax.lax.cumlogsumexp(log_score(first[:, None], others), axis=1)
        return log_score(first, second)[:, None], masses[:, candidates - 2]

    positive, masses = jax.lax.map(batch, jax.random.split(key, batches))
    loss = exact_loss(*jnp.broadcast_arrays(positive, masses))
    return np.log(candidates) - loss.mean((0, 1))
