"""Theorem 2: the loss of many negatives is an alignment and an entropy."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray
from scipy.special import gammaln, hyp0f1, ive, logsumexp

from becl.measure.theory.bound import exact_loss


def log_sphere_area(dim: int) -> float:
    """Log area of the unit sphere of R^dim, which is the entropy of the uniform law on it."""
    return float(np.log(2) + dim / 2 * np.log(np.pi) - gammaln(dim / 2))


def log_vmf_constant(dim: int, concentration: float) -> float:
    """log c_d(u) of the von Mises-Fisher density c_d(u) exp(u·mean·x) on the sphere of R^dim."""
    order = dim / 2 - 1
    scaled = ive(order, concentration)
    # In high dimension the Bessel function underflows; its hypergeometric form does not.
    if scaled > np.finfo(np.float64).tiny:
        log_bessel = np.log(scaled) + concentration
        return float(order * np.log(concentration) - dim / 2 * np.log(2 * np.pi) - log_bessel)
    return float(-log_sphere_area(dim) - np.log(hyp0f1(dim / 2, concentration**2 / 4)))


def vmf_kde_entropy(points: Float[Array, "n d"], centres: Float[Array, "k d"], concentration: float) -> float:
    """Ĥ: minus the mean log-density at ``points`` of the vMF kernel estimate from ``centres``.

    The resubstitution estimate has ``points`` for ``centres`` as well.
    """
    logits = np.asarray(points, np.float64) @ np.asarray(centres, np.float64).T * concentration
    log_mean = logsumexp(logits, axis=1) - np.log(len(centres))
    return float(-np.mean(log_mean) - log_vmf_constant(points.shape[-1], concentration))


def log_mean_kernel(dim: int, concentration: float) -> float:
    """log E[exp(u·x·y)] for y uniform on the sphere and any unit x."""
    return -log_vmf_constant(dim, concentration) - log_sphere_area(dim)


def rate_coefficient(dim: int, temperature: float, cosine: float) -> float:
    """a in E[L] − limit = a/(N − 1) + O(N⁻²), for negatives uniform on the sphere.

    The positive, at a fixed ``cosine`` from the anchor, adds its own term to the denominator; the
    curvature of the logarithm takes half the relative variance of the negatives' term away.
    """
    log_mean = log_mean_kernel(dim, 1 / temperature)
    relative_variance = np.exp(log_mean_kernel(dim, 2 / temperature) - 2 * log_mean) - 1
    return float(np.exp(cosine / temperature - log_mean) - relative_variance / 2)


def uniform_excess(
    key: PRNGKeyArray,
    dim: int,
    temperature: float,
    cosine: float,
    negatives: int,
    anchors: int = 2000,
) -> tuple[float, float]:
    """Mean and standard deviation over anchors of L − log(N − 1) − limit, negatives uniform."""
    # Every anchor is the first axis: a uniform law looks the same from everywhere.
    points = jax.random.normal(key, (anchors, negatives, dim))
    cosines = points[..., 0] / jnp.linalg.norm(points, axis=-1)
    mass = jax.nn.logsumexp(cosines / temperature, axis=1)
    positive = jnp.full_like(mass, cosine / temperature)
    log_mean = log_mean_kernel(dim, 1 / temperature)
    limit = np.log(negatives) - cosine / temperature + log_mean
    excess = exact_loss(positive, mass) - limit
    # The mean kernel over its expectation, less 1, has mean 0 and nearly all of the noise.
    control = np.exp(np.asarray(mass, np.float64) - np.log(negatives) - log_mean) - 1
    return float(np.mean(excess - control)), float(np.std(excess))


def fitted_slope(sizes: Int[np.ndarray, " n"], errors: Float[np.ndarray, " n"]) -> float:
    """Exponent of the power law through the points."""
    return float(np.polyfit(np.log(sizes), np.log(np.abs(errors)), 1)[0])


def scattered(key: PRNGKeyArray, centres: Float[Array, "*n d"], noise: float) -> Float[Array, "*n d"]:
    """A unit feature near each centre."""
    points = centres + noise * jax.random.normal(key, centres.shape)
    return points / jnp.linalg.norm(points, axis=-1, keepdims=True)
