"""The checks of both theorems and of Eq. 4, with the settings quoted in docs/theory.md."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from becl.measure.theory.bound import (
    ConfusedEstimates,
    LogScore,
    Sampler,
    confused_estimates,
    exact_loss,
    gaussian_log_ratio,
    gaussian_pairs,
    marginal_estimates,
    simplex_margin,
    table_log_ratio,
    table_pairs,
    train_score,
)
from becl.measure.theory.information import (
    Decomposition,
    confused_skills,
    decomposition,
    independent_views,
    linked_views,
    mutual_information,
)
from becl.measure.theory.limit import (
    fitted_slope,
    log_vmf_constant,
    rate_coefficient,
    scattered,
    uniform_excess,
    vmf_kde_entropy,
)


class BoundCheck(NamedTuple):
    """Theorem 1's estimate against N for variables whose information is known."""

    information: float
    candidates: Int[np.ndarray, " sizes"]
    optimal: Float[np.ndarray, " sizes"]
    trained: Float[np.ndarray, " sizes"]


def check_bound(key: PRNGKeyArray, sample: Sampler, log_ratio: LogScore, information: float) -> BoundCheck:
    """Theorem 1 with the density ratio and with a briefly trained network, on the same draws."""
    candidates = 2 ** np.arange(1, 8)
    train_key, test_key = jax.random.split(key)
    score = train_score(train_key, sample)
    return BoundCheck(
        information,
        candidates,
        optimal=marginal_estimates(test_key, log_ratio, sample, candidates),
        trained=marginal_estimates(test_key, score, sample, candidates),
    )


def check_skill_bound(key: PRNGKeyArray, skills: int = 10, confusion: float = 0.1) -> BoundCheck:
    """Theorem 1 on two views of confused skills."""
    joint = independent_views(confused_skills(skills, confusion)).sum(0)
    return check_bound(
        key,
        functools.partial(table_pairs, joint=joint),
        functools.partial(table_log_ratio, joint=joint),
        mutual_information(joint),
    )


def check_gaussian_bound(key: PRNGKeyArray, dim: int = 4, correlation: float = 0.8) -> BoundCheck:
    """Theorem 1 on correlated Gaussians."""
    return check_bound(
        key,
        functools.partial(gaussian_pairs, dim=dim, correlation=correlation),
        functools.partial(gaussian_log_ratio, correlation=correlation),
        float(-dim / 2 * np.log(1 - correlation**2)),
    )


class SkillCheck(NamedTuple):
    """The paper's negatives: separated skills against temperature, confused ones at 0.5."""

    temperatures: Float[np.ndarray, " t"]
    separated: list[ConfusedEstimates]
    confusions: Float[np.ndarray, " c"]
    confused: list[ConfusedEstimates]
    terms: list[Decomposition]


def check_skills(skills: int = 10, temperature: float = 0.5) -> SkillCheck:
    """Theorem 1 with negatives from other skills and simplex features."""
    temperatures = np.geomspace(0.05, 2, 81)
    confusions = np.linspace(0, 0.6, 61)
    margin = simplex_margin(skills, temperature)
    return SkillCheck(
        temperatures,
        [confused_estimates(skills, 0.0, simplex_margin(skills, float(t))) for t in temperatures],
        confusions,
        [confused_estimates(skills, float(c), margin) for c in confusions],
        [decomposition(independent_views(confused_skills(skills, float(c)))) for c in confusions],
    )


class RateCheck(NamedTuple):
    """Distance of the loss from its limit against the number of negatives, which are uniform on the sphere."""

    dim: int
    coefficient: float
    negatives: Int[np.ndarray, " sizes"]
    bias: Float[np.ndarray, " sizes"]
    spread: Float[np.ndarray, " sizes"]
    bias_slope: float
    spread_slope: float


def check_rate(key: PRNGKeyArray, dim: int, temperature: float = 0.5, cosine: float = 0.9) -> RateCheck:
    """Theorem 2's rate; slopes are fitted from 64 negatives on, where the next order has faded."""
    negatives = 2 ** np.arange(3, 11)
    pairs = zip(jax.random.split(key, len(negatives)), negatives.tolist(), strict=True)
    bias, spread = np.array([uniform_excess(k, dim, temperature, cosine, n) for k, n in pairs]).T
    late = negatives >= 64
    return RateCheck(
        dim,
        rate_coefficient(dim, temperature, cosine),
        negatives,
        bias,
        spread,
        fitted_slope(negatives[late], bias[late]),
        fitted_slope(negatives[late], spread[late]),
    )


class LimitCheck(NamedTuple):
    """L − log(N − 1) against the number of negatives, and the constants it might tend to."""

    negatives: Int[np.ndarray, " sizes"]
    marginal: Float[np.ndarray, " sizes"]  # negatives from p(s)
    other: Float[np.ndarray, " sizes"]  # negatives from other skills
    limit: float  # −alignment/κ − Ĥ − log c_d
    printed_limit: float  # −alignment/κ − Ĥ + log c_d, the sign in Appendix A
    other_limit: float  # as limit, with Ĥ from the density of the other skills


def check_limit(key: PRNGKeyArray, skills: int = 10, noise: float = 0.2, temperature: float = 0.5) -> LimitCheck:
    """Theorem 2 for clusters on the sphere of R³: few skills, more and more states of each."""
    negatives = 2 ** np.arange(1, 11)
    shape = (100, skills, int(negatives.max()))
    centre_key, first_key, second_key, pool_key, skill_key, noise_key = jax.random.split(key, 6)
    centres = scattered(centre_key, jnp.zeros((skills, 3)), 1.0)
    views = jnp.broadcast_to(centres, (shape[0], skills, 3))
    first, second = scattered(first_key, views, noise), scattered(second_key, views, noise)
    pool = scattered(pool_key, jnp.broadcast_to(centres, (2000, skills, 3)), noise)
    alignment = jnp.sum(first * second, axis=-1, keepdims=True)

    def losses(skill: Int[Array, "anchors skills most"]) -> Float[np.ndarray, " sizes"]:
        cosines = jnp.einsum("nid,nikd->nik", first, scattered(noise_key, centres[skill], noise))
        masses = jax.lax.cumlogsumexp(cosines / temperature, axis=2)[..., negatives - 1]
        loss = exact_loss(*jnp.broadcast_arrays(alignment / temperature, masses))
        return loss.mean((0, 1)) - np.log(negatives)

    def entropy(skill: int, kept: Float[Array, "n skills 3"]) -> float:
        return vmf_kde_entropy(first[:, skill], kept.reshape(-1, 3), 1 / temperature)

    anyone = jax.random.randint(skill_key, shape, 0, skills)
    other = (jnp.arange(skills)[:, None] + jax.random.randint(skill_key, shape, 1, skills)) % skills
    everyone = np.mean([entropy(i, pool) for i in range(skills)])
    others = np.mean([entropy(i, jnp.delete(pool, i, axis=1)) for i in range(skills)])
    aligned = -float(jnp.mean(alignment)) / temperature
    log_constant = log_vmf_constant(3, 1 / temperature)
    return LimitCheck(
        negatives,
        marginal=losses(anyone),
        other=losses(other),
        limit=float(aligned - everyone - log_constant),
        printed_limit=float(aligned - everyone + log_constant),
        other_limit=float(aligned - others - log_constant),
    )


class Findings(NamedTuple):
    """Everything docs/theory.md shows."""

    bounds: dict[str, BoundCheck]
    skills: SkillCheck
    rates: list[RateCheck]
    limit: LimitCheck
    links: Float[np.ndarray, " l"]
    linked: list[Decomposition]


CHECKS = 7
"""How many checks `findings` makes."""


def findings(begin: Callable[[str], None] = lambda name: None) -> Findings:
    """Makes all checks, from one fixed key. `begin` gets the name of each check before it is made."""
    keys = jax.random.split(jax.random.key(0), 5)

    def check(name: str, make: Callable[[], Any]) -> Any:
        begin(name)
        return make()

    links = np.linspace(0, 1, 21)
    emission = confused_skills(10, 0.1)
    return Findings(
        {
            "10 skills": check("Theorem 1, skills", lambda: check_skill_bound(keys[0])),
            "Gaussians": check("Theorem 1, Gaussians", lambda: check_gaussian_bound(keys[1])),
        },
        check("Theorem 1, other skills", check_skills),
        [
            check("Theorem 2, rate in 3 dimensions", lambda: check_rate(keys[2], dim=3)),
            check("Theorem 2, rate in 16 dimensions", lambda: check_rate(keys[3], dim=16)),
        ],
        check("Theorem 2, limit", lambda: check_limit(keys[4])),
        links,
        check("Eq. 4", lambda: [decomposition(linked_views(emission, 4, float(link))) for link in links]),
    )
