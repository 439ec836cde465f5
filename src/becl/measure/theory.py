"""BeCL's two theorems and its decomposition, checked where the information is known.

Yang et al., "Behavior Contrastive Learning for Unsupervised Skill Discovery", ICML 2023, Section 3
and Appendix A. With two views S1, S2 of a skill Z, features f on the unit sphere of R^d and the
contrastive loss L of one positive among N candidates,

    Theorem 1   log N − L ≤ I(S1; S2)
    Theorem 2   L − log(N − 1) → −E[f(S1)·f(S2)]/κ − Ĥ − log c_d(1/κ)
    Eq. 4       I(S1; S2) = ½[I(S1; Z) + I(S2; Z)] + I(S1; S2 | Z)
                            − ½[I(S1; Z | S2) + I(S2; Z | S1)]

each written in the form that holds, Theorem 1 for negatives drawn from p(s) independently of the
anchor. ``docs/theory.md`` says where the printed forms differ, and gives a bound for the negatives
the paper draws. Informations are in nats; exact quantities are NumPy, sampled ones JAX.
"""

import functools
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, ArrayLike, Float, Int, PRNGKeyArray
from scipy.special import gammaln, hyp0f1, ive, logsumexp, xlogy
from scipy.stats import binom

from becl.objectives.becl import contrastive_loss

LogScore = Callable[[Array, Array], Array]
Sampler = Callable[[PRNGKeyArray, int], tuple[Array, Array]]


# Eq. 4: informations of small tables, exactly.


def mutual_information(joint: Float[np.ndarray, "first second"]) -> float:
    """I(first; second) of a table of joint probabilities."""
    product = joint.sum(1, keepdims=True) * joint.sum(0, keepdims=True)
    return float(np.sum(xlogy(joint, joint) - xlogy(joint, product)))


def conditional_information(joint: Float[np.ndarray, "given first second"]) -> float:
    """I(first; second | given)."""
    slices = ((table.sum(), table) for table in joint)
    return float(sum(w * mutual_information(table / w) for w, table in slices if w > 0))


class Decomposition(NamedTuple):
    """Terms of Eq. 4: views = discovery + consistency − gap. The paper assumes that gap = 0."""

    views: float  # I(S1; S2)
    discovery: float  # ½[I(S1; Z) + I(S2; Z)]
    consistency: float  # I(S1; S2 | Z)
    gap: float  # ½[I(S1; Z | S2) + I(S2; Z | S1)]


def decomposition(joint: Float[np.ndarray, "skills first second"]) -> Decomposition:
    """Each term computed on its own, so that their sum is a check and not a definition."""
    first_gap = conditional_information(np.transpose(joint, (2, 1, 0)))
    second_gap = conditional_information(np.transpose(joint, (1, 2, 0)))
    discovery = mutual_information(joint.sum(2)) + mutual_information(joint.sum(1))
    return Decomposition(
        views=mutual_information(joint.sum(0)),
        discovery=discovery / 2,
        consistency=conditional_information(joint),
        gap=(first_gap + second_gap) / 2,
    )


def confused_skills(skills: int, confusion: float) -> Float[np.ndarray, "skills states"]:
    """p(state | skill): a state for each skill, and another's with probability ``confusion``."""
    own = np.eye(skills)
    return (1 - confusion) * own + confusion * (1 - own) / (skills - 1)


def independent_views(
    emission: Float[np.ndarray, "skills states"],
) -> Float[np.ndarray, "skills states states"]:
    """p(skill, s1, s2) of two trajectories drawn independently under one uniform skill."""
    return np.einsum("za,zb->zab", emission, emission) / len(emission)


def linked_views(
    emission: Float[np.ndarray, "skills states"], outcomes: int, link: float
) -> Float[np.ndarray, "skills both both"]:
    """p(skill, s1, s2) when a state also shows a chance event that the two views may share.

    The event is uniform over ``outcomes``, whatever the skill, and common to both views with
    probability ``link``: a start position, or what two states of one trajectory have in common.
    """
    event = link * np.eye(outcomes) / outcomes + (1 - link) / outcomes**2
    joint = np.einsum("zab,uv->zaubv", independent_views(emission), event)
    both = emission.shape[1] * outcomes
    return joint.reshape(len(emission), both, both)


# Theorem 1: the contrastive estimate of information.


def exact_loss(positive: Float[ArrayLike, "*n"], negative_mass: Float[ArrayLike, "*n"]) -> Float[np.ndarray, "*n"]:
    """``contrastive_loss`` in float64, for the averages taken of it."""
    return np.asarray(contrastive_loss(jnp.asarray(positive), jnp.asarray(negative_mass)), np.float64)


class Estimates(NamedTuple):
    """Readings of the loss whose negatives are both views of each of the m − 1 other skills."""

    printed: float  # log(2m − 1) − L, as in Theorem 1
    corrected: float  # log m − L with a skill's two scores averaged: ≤ I(S1; S2) + I(S1; Z | S2)


def other_skill_estimates(
    log_score: Float[np.ndarray, "states states"],
    joint: Float[np.ndarray, "skills states states"],
) -> Estimates:
    """Expectations over all batches holding each skill once; for few skills and states."""
    skills, states, _ = joint.shape
    conditional = joint / joint.sum((1, 2), keepdims=True)
    loss, averaged_loss = 0.0, 0.0
    for skill, anchor in np.ndindex(skills, states):
        chance, mass = np.ones(1), np.full(1, -np.inf)
        pair_mass = np.logaddexp.outer(log_score[anchor], log_score[anchor]).ravel()
        for other in set(range(skills)) - {skill}:
            chance = np.outer(chance, conditional[other].ravel()).ravel()
            mass = np.logaddexp.outer(mass, pair_mass).ravel()
        weight = np.outer(joint[skill, anchor], chance)
        positive, mass = np.broadcast_arrays(log_score[anchor][:, None], mass)
        loss += np.sum(weight * exact_loss(positive, mass))
        averaged_loss += np.sum(weight * exact_loss(positive, mass - np.log(2)))
    return Estimates(float(np.log(2 * skills - 1) - loss), float(np.log(skills) - averaged_loss))


class ConfusedEstimates(NamedTuple):
    """Readings for ``confused_skills`` under a score that tells equal states from different."""

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
    # An anchor astray stands in another skill's state, and that skill is among the negatives.
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
    """log(2·rows − 1) − L for separated skills and a score without bound, rows' skills independent.

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


class Score(eqx.Module):
    """A learned log-score: the inner product of two small networks' outputs, of any length."""

    first: eqx.nn.MLP
    second: eqx.nn.MLP

    def __init__(self, key: PRNGKeyArray, dim: int):
        first_key, second_key = jax.random.split(key)
        self.first = eqx.nn.MLP(dim, 16, 64, 2, key=first_key)
        self.second = eqx.nn.MLP(dim, 16, 64, 2, key=second_key)

    def __call__(self, first: Float[Array, "*#n d"], second: Float[Array, "*#n d"]) -> Float[Array, "..."]:
        along_last = functools.partial(jnp.vectorize, signature="(d)->(e)")
        return jnp.sum(along_last(self.first)(first) * along_last(self.second)(second), axis=-1)


def train_score(key: PRNGKeyArray, sample: Sampler, steps: int = 800, batch: int = 128) -> Score:
    """Minimises the loss whose negatives are the second views of a batch's other rows."""
    init_key, data_key = jax.random.split(key)
    optimiser = optax.adam(2e-3)
    score = Score(init_key, sample(data_key, 1)[0].shape[-1])
    weights, rest = eqx.partition(score, eqx.is_array)

    def loss(weights: Score, step_key: PRNGKeyArray) -> Float[Array, ""]:
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
    """log N − L for several N, negatives drawn from the marginal, independent of the anchor."""
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


# Theorem 2: the loss of many negatives is an alignment and an entropy.


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


# The checks, with the settings quoted in docs/theory.md.


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
    """Distance of the loss to its limit against the number of negatives, uniform on the sphere."""

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
    other_limit: float  # as limit, Ĥ taken in the density of the other skills


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


class Study(NamedTuple):
    """Everything docs/theory.md shows."""

    bounds: dict[str, BoundCheck]
    skills: SkillCheck
    rates: list[RateCheck]
    limit: LimitCheck
    links: Float[np.ndarray, " l"]
    linked: list[Decomposition]


@functools.cache
def study() -> Study:
    """All checks, from one fixed key."""
    keys = jax.random.split(jax.random.key(0), 5)
    links = np.linspace(0, 1, 21)
    emission = confused_skills(10, 0.1)
    return Study(
        {
            "10 skills": check_skill_bound(keys[0]),
            "Gaussians": check_gaussian_bound(keys[1]),
        },
        check_skills(),
        [check_rate(keys[2], dim=3), check_rate(keys[3], dim=16)],
        check_limit(keys[4]),
        links,
        [decomposition(linked_views(emission, 4, float(link))) for link in links],
    )


# Okabe and Ito's colours, told apart with any colour vision.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, RED = "#0072B2", "#D55E00"
STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.markersize": 4.5,
    "svg.hashsalt": "becl",
}


def plot_bound(axes, title: str, check: BoundCheck) -> None:
    """Estimates against N, under the information and under log N."""
    axes.axhline(check.information, color=BLACK, label="$I(S_1;S_2)$")
    axes.plot(check.candidates, np.log(check.candidates), ":", color=BLACK, label="$\\log N$")
    axes.plot(check.candidates, check.optimal, "o-", color=BLUE, label="density ratio")
    axes.plot(check.candidates, check.trained, "s--", color=ORANGE, label="trained network")
    axes.set(xscale="log", xlabel="candidates $N$", ylabel="nats", title=title)
    axes.set_ylim(0, 1.25 * check.information)
    axes.set_xticks(check.candidates, [str(n) for n in check.candidates])
    axes.minorticks_off()
    axes.legend(loc="lower right")


def plot_estimates(axes, x: Float[np.ndarray, " n"], estimates: list[ConfusedEstimates]) -> None:
    """The three readings of the loss."""
    axes.plot(x, [e.printed for e in estimates], color=RED, label="other skills, $\\log(2m-1)-L$")
    axes.plot(x, [e.corrected for e in estimates], "--", color=BLUE, label="corrected")
    axes.plot(x, [e.marginal for e in estimates], "-.", color=GREEN, label="negatives from $p(s)$")


def plot_temperatures(axes, check: SkillCheck) -> None:
    """Separated skills: the printed estimate leaves the information behind at low temperature."""
    crossing = critical_temperature(10)
    plot_estimates(axes, check.temperatures, check.separated)
    axes.axhline(np.log(10), color=BLACK, label="$I(S_1;S_2)=\\log 10$")
    arrow = {"arrowstyle": "->", "color": BLACK}
    axes.annotate(f"{crossing:.3f}", (crossing, np.log(10)), (0.7, 2.75), arrowprops=arrow)
    axes.set(xscale="log", xlabel="temperature", ylabel="nats", title="10 separated skills")
    ticks = [0.05, 0.1, 0.2, 0.5, 1, 2]
    axes.set_xticks(ticks, [str(t) for t in ticks])
    axes.minorticks_off()
    axes.set_ylim(0, 3.1)
    axes.legend(loc="lower left")


def plot_confusions(axes, check: SkillCheck) -> None:
    """Confused skills: what each estimate stays below, and what it does not."""
    views = [t.views for t in check.terms]
    with_skill = [t.views + t.gap for t in check.terms]
    plot_estimates(axes, check.confusions, check.confused)
    axes.plot(check.confusions, views, color=BLACK, label="$I(S_1;S_2)$")
    axes.plot(check.confusions, with_skill, ":", color=BLACK, label="$I(S_1;S_2,Z)$")
    axes.set(xlabel="confusion", ylabel="nats", title="10 confused skills, temperature 0.5")
    axes.set_ylim(0, 2.4)
    axes.legend(loc="upper right")


def plot_bounds(figure, result: Study) -> None:
    """Theorem 1: where it holds (top) and what the paper's negatives do to it (bottom)."""
    axes = figure.subplots(2, 2)
    for panel, (title, check) in zip(axes[0], result.bounds.items(), strict=True):
        plot_bound(panel, f"{title}: negatives from p(s)", check)
    plot_temperatures(axes[1, 0], result.skills)
    plot_confusions(axes[1, 1], result.skills)


def plot_limit(axes, check: LimitCheck) -> None:
    """The loss less log(N − 1), and its limits."""
    for name, values, limit, color, line in (
        ("negatives from $p(s)$", check.marginal, check.limit, GREEN, "o-"),
        ("negatives from other skills", check.other, check.other_limit, RED, "s--"),
    ):
        axes.plot(check.negatives, values, line, color=color, label=name)
        axes.axhline(limit, color=color, linestyle=":", label=f"its limit, {limit:.3f}")
    axes.set(xscale="log", xlabel="negatives $N-1$", ylabel="$L-\\log(N-1)$, nats")
    axes.set_title("10 clusters on the sphere, temperature 0.5")
    axes.legend(loc="upper right")


def plot_rates(axes, rates: list[RateCheck]) -> None:
    """Mean and spread of the distance to the limit, with the predicted mean."""
    for rate, color, mark in zip(rates, (BLUE, ORANGE), ("o", "s"), strict=True):
        n, name = rate.negatives, f"$d={rate.dim}$"
        hollow = {"fillstyle": "none", "color": color}
        axes.plot(n, rate.bias, mark, color=color, label=f"mean, {name}")
        axes.plot(n, rate.coefficient / n, color=color, label=f"${rate.coefficient:.2f}/(N-1)$")
        axes.plot(n, rate.spread, mark, label=f"spread, {name}", **hollow)
    n, spread = rates[0].negatives, rates[0].spread
    axes.plot(n, spread[-1] * np.sqrt(n[-1] / n), ":", color=BLACK, label="slope −1/2")
    axes.set(xscale="log", yscale="log", xlabel="negatives $N-1$", ylabel="distance to limit, nats")
    axes.set_title("uniform on the sphere")
    axes.set_ylim(5e-4, 1)
    axes.legend(loc="lower left", ncols=2)


def plot_entropy(figure, result: Study) -> None:
    """Theorem 2: what the loss tends to (left) and how fast (right)."""
    left, right = figure.subplots(1, 2)
    plot_limit(left, result.limit)
    plot_rates(right, result.rates)
    for axes, n in ((left, result.limit.negatives), (right, result.rates[0].negatives)):
        axes.set_xticks(n[::2], [str(count) for count in n[::2]])
        axes.xaxis.minorticks_off()


def plot_terms(axes, x: Float[np.ndarray, " n"], terms: list[Decomposition]) -> None:
    """The terms of Eq. 4."""
    stated = [t.discovery + t.consistency for t in terms]
    views = [t.views for t in terms]
    axes.plot(x, stated, color=ORANGE, label="Eq. 4: (i) + (ii)")
    axes.plot(x, [t.discovery for t in terms], "--", color=BLUE, label="(i) $I(S;Z)$")
    axes.plot(x, [t.consistency for t in terms], "-.", color=GREEN, label="(ii) $I(S_1;S_2|Z)$")
    axes.plot(x, views, color=BLACK, label="$I(S_1;S_2)$")
    axes.fill_between(x, views, stated, color=SKY, alpha=0.4, label="gap $I(S_1;Z|S_2)$")


def plot_decomposition(figure, result: Study) -> None:
    """Eq. 4 for independent views (left) and for views that share more than the skill (right)."""
    left, right = figure.subplots(1, 2, sharey=True)
    plot_terms(left, result.skills.confusions, result.skills.terms)
    plot_terms(right, result.links, result.linked)
    left.set(xlabel="confusion", ylabel="nats", title="independent views")
    right.set(xlabel="probability that the views share a chance event")
    right.set_title("linked views, confusion 0.1")
    left.legend(loc="upper right")


def figures(out_dir: pathlib.Path) -> None:
    """Writes theory-bound, theory-entropy and theory-decomposition as PNG and SVG."""
    import matplotlib
    from matplotlib.figure import Figure

    out_dir.mkdir(parents=True, exist_ok=True)
    drawings = (("bound", plot_bounds, 6.4), ("entropy", plot_entropy, 3.6))
    with matplotlib.rc_context(STYLE):
        for name, draw, height in (*drawings, ("decomposition", plot_decomposition, 3.6)):
            figure = Figure(figsize=(8, height), layout="constrained")
            draw(figure, study())
            figure.savefig(out_dir / f"theory-{name}.png", dpi=150)
            figure.savefig(out_dir / f"theory-{name}.svg", metadata={"Date": None})


def summary(result: Study) -> str:
    """The numbers of docs/theory.md, as text."""
    lines = ["Theorem 1, negatives from the marginal: log N - L"]
    for name, check in result.bounds.items():
        lines.append(f"  {name}: I = {check.information:.3f}")
        rows = zip(check.candidates, check.optimal, check.trained, strict=True)
        lines += [f"    N = {n:3d}  ratio {a:.3f}  trained {b:.3f}" for n, a, b in rows]
    lines.append("Theorem 1, negatives from other skills, m = 10, simplex features")
    critical = [f"{m}: {critical_temperature(m):.3f}" for m in (2, 3, 5, 6, 10, 16, 50)]
    lines.append(f"  critical temperature by m: {', '.join(critical)}")
    check = result.skills
    over = [e.printed - t.views for e, t in zip(check.confused, check.terms, strict=True)]
    broken = check.confusions[np.array(over) > 0]
    lines.append(
        f"  temperature 0.5: printed > I(S1;S2) for confusion {broken.min():.2f}"
        f" to {broken.max():.2f}, by at most {max(over):.3f}"
    )
    readings = [(t, 0.0) for t in (1.0, 0.5, 0.1, 0.01)]
    readings += [(t, c) for t in (1.0, 0.5) for c in (0.1, 0.2, 0.3, 0.5)]
    for temperature, confusion in readings:
        estimate = confused_estimates(10, confusion, simplex_margin(10, temperature))
        terms = decomposition(independent_views(confused_skills(10, confusion)))
        lines.append(
            f"  temperature {temperature:4.2f}, confusion {confusion:.1f}:"
            f" printed {estimate.printed:.3f} corrected {estimate.corrected:.3f}"
            f" marginal {estimate.marginal:.3f} I(S1;S2) {terms.views:.3f}"
            f" I(S1;S2,Z) {terms.views + terms.gap:.3f}"
        )
    excess = paired_estimate(2, 6) - np.log(2)
    lines.append(f"  both states of 5 independent rows, 2 skills: estimate - I = {excess:+.4f}")
    lines.append("Theorem 2, temperature 0.5")
    for rate in result.rates:
        lines.append(
            f"  uniform, d = {rate.dim}: a = {rate.coefficient:.3f}, measured"
            f" {rate.bias[-1] * rate.negatives[-1]:.3f} at N - 1 = {rate.negatives[-1]};"
            f" slopes {rate.bias_slope:.3f} (mean) {rate.spread_slope:.3f} (spread)"
        )
        span = 2 - log_mean_kernel(rate.dim, 2.0)
        lines.append(f"    entropy estimate of one point {span:.3f} below that of the uniform law")
    limit = result.limit
    lines.append(
        f"  clusters, N - 1 = {limit.negatives[-1]}: p(s) {limit.marginal[-1]:.4f}"
        f" -> {limit.limit:.4f} (printed sign {limit.printed_limit:.4f});"
        f" other skills {limit.other[-1]:.4f} -> {limit.other_limit:.4f}"
    )
    lines.append("Eq. 4, ten skills")
    examples = {
        "separated, independent": independent_views(confused_skills(10, 0.0)),
        "confusion 0.1, independent": independent_views(confused_skills(10, 0.1)),
        "separated, linked": linked_views(confused_skills(10, 0.0), 4, 1.0),
        "confusion 0.1, linked": linked_views(confused_skills(10, 0.1), 4, 1.0),
    }
    for name, joint in examples.items():
        terms = decomposition(joint)
        lines.append(
            f"  {name}: I(S1;S2) {terms.views:.3f} = (i) {terms.discovery:.3f}"
            f" + (ii) {abs(terms.consistency):.3f} - gap {terms.gap:.3f}"
        )
    return "\n".join(lines)


def main(out: pathlib.Path) -> None:
    """Runs every check, prints its numbers and writes the figures to ``out``."""
    print(summary(study()))
    figures(out)
