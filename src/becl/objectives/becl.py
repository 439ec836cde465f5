"""BeCL: Behavior Contrastive Learning (Yang et al., ICML 2023).

Rewards states that are like states of the same skill and unlike states of other skills, and so maximises the
information two trajectories of one skill have about each other. With features f on the unit sphere, temperature κ,
a positive s⁺ (same skill, another trajectory) and negatives S⁻ (other skills),

    L(s) = −log [ exp(f(s)·f(s⁺)/κ) / (exp(f(s)·f(s⁺)/κ) + Σ_{s⁻∈S⁻} exp(f(s)·f(s⁻)/κ)) ]      (Eq. 8)
    r(s) = E[exp(−L(s))]                                                                     (Eq. 10)

The paper leaves open which state of the other trajectory is the positive, and its released programs differ from the
equations; `positive` and `denominator` name those choices.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from becl.envs.spec import EnvSpec
from becl.errors import UserError
from becl.networks import MLP, Adam, AdamState, Network, compute_dtype, fine_product, unit
from becl.objectives.protocol import Batch, Metrics
from becl.skills import OneHot, skill_index

# Anchors priced at once: keeps a block of similarities (250 × batch) in a core's cache.
BLOCK = 250
NO_SCORE = -1e4  # Of a batch without negatives: their mass is nothing.
SAFE = 70.0  # Exponentials of scores this size, and sums of millions of them, are within float32.
TINY = 1e-30  # Instead of a sum over no negatives, which is divided by.


class BeCLState(NamedTuple):
    encoder: MLP
    head: MLP | None
    opt: AdamState


@dataclass(frozen=True)
class BeCL:
    skills: OneHot = OneHot(16)
    """Number of skills."""
    temperature: float = 0.5
    """κ: lower contrasts nearer neighbours harder."""
    positive: Literal["mean", "nearest", "aligned", "random", "first", "pair"] = "mean"
    """Which state(s) of the same skill an anchor is pulled to: all of them (the printed expectation), the most similar
    one, the one at the same time of its trajectory, a few at random, the first in the batch (released URLB code), or
    one partner (Algorithm 1: states come in groups of two of each skill, and contrast within their group).
    The most similar one says nothing of a skill where no two states are alike, as on robots."""
    denominator: Literal["paper", "batch", "all"] = "paper"
    """What the positive competes with: other skills' states counted as the paper's 2(m−1) negatives (with `pair` these
    are those of the group), each other-skill state of the batch, or every other state of the batch, same skill included
    (released URLB code)."""
    hard_negatives: float = 0.0
    """β: negatives weighted by exp(β·similarity/κ), normalised; 0 weighs them equally."""
    ramp: float = 0.0
    """Reward times progress^ramp: the walk through corridors that all skills share costs less."""
    state: Literal["next_obs", "obs"] = "next_obs"
    """Which state of a transition is looked at: where it leads (released code), or where it begins (paper)."""
    feature_dim: int = 16
    network: Network = Network()
    head: tuple[int, ...] | None = (1024,)
    """Hidden widths of the projection head behind the encoder; None for no head."""
    optimizer: Adam = Adam()

    def __post_init__(self) -> None:
        if self.hard_negatives and self.denominator == "all":
            raise UserError("hard_negatives: the released denominator (all) has none to weigh; use paper or batch")

    def init(self, key: PRNGKeyArray, env: EnvSpec) -> BeCLState:
        encoder_key, head_key = jax.random.split(key)
        encoder = self.network.init(encoder_key, env.obs_dim, self.feature_dim)
        head = None
        if self.head is not None:
            projection = Network(self.head, self.network.start)
            head = projection.init(head_key, self.feature_dim, self.feature_dim)
        return BeCLState(encoder, head, self.optimizer.init((encoder, head)))

    def states(self, batch: Batch) -> Float[Array, "batch obs"]:
        return {"next_obs": batch.next_obs, "obs": batch.obs}[self.state]

    def features(self, networks: tuple[MLP, MLP | None], obs: Float[Array, "*b o"]) -> Float[Array, "*b f"]:
        encoder, head = networks
        embedding = encoder(obs)
        return unit(embedding if head is None else head(embedding))

    def fit(self, state: BeCLState, batch: Batch, key: PRNGKeyArray) -> tuple[BeCLState, Metrics]:
        states = self.states(batch)

        def loss_fn(networks):
            features = self.features(networks, states)
            loss, reward = self.contrast(features, features, batch, jnp.arange(len(features)), key)
            return loss.mean(), reward.mean()

        networks = (state.encoder, state.head)
        (loss, ratio), grads = jax.value_and_grad(loss_fn, has_aux=True)(networks)
        (encoder, head), opt = self.optimizer.update(networks, grads, state.opt)
        encoder = encoder.observe(states)
        return BeCLState(encoder, head, opt), {"loss": loss, "ratio": ratio}

    def reward(self, state: BeCLState, batch: Batch, key: PRNGKeyArray) -> tuple[BeCLState, Float[Array, " batch"]]:
        features = self.features((state.encoder, state.head), self.states(batch))
        rewards = in_blocks(lambda rows: self.contrast(features[rows], features, batch, rows, key)[1], len(features))
        return state, rewards * batch.progress**self.ramp

    @property
    def as_printed(self) -> bool:
        """Whether the equations can be computed as they stand: likenesses, which are between e^(−1/κ) and e^(1/κ), and
        their ratios are within float32."""
        plain = self.positive == "mean" and self.denominator != "all" and not self.hard_negatives
        return plain and 2 / self.temperature < SAFE

    def contrast(
        self,
        anchors: Float[Array, "anchors f"],
        features: Float[Array, "batch f"],
        batch: Batch,
        rows: Int[Array, " anchors"],
        key: PRNGKeyArray,
    ) -> tuple[Float[Array, " anchors"], Float[Array, " anchors"]]:
        """Loss and reward of the anchors (rows of the batch) against the whole batch."""
        pairs = relate(batch, rows)
        # Each of the paper's 2(m−1) negatives stands for an equal share of the batch's other-skill states.
        each = 2 * (self.skills.dim - 1) / jnp.maximum(pairs.negative.sum(1), 1)
        if self.denominator == "batch" or self.positive == "pair":
            each = jnp.ones_like(each)
        if self.denominator == "paper" and self.positive == "pair":
            pairs = pairs._replace(negative=pairs.negative & pairs.grouped)
        if self.as_printed:
            loss: Array = mean_nce(anchors, features, pairs.across, pairs.negative, each, self.temperature)
            like = likeness(anchors, features, self.temperature)
            mass = each[:, None] * negative_sum(like, pairs.negative)
            return loss, mean_over(pairs.across, like / (like + mass))
        scores = similarities(anchors, features) / self.temperature
        chosen = POSITIVES[self.positive](scores, pairs, key)
        if self.denominator == "all":
            return released_nce(chosen, scores, pairs.other)
        mass = negative_mass(scores, pairs.negative, self.hard_negatives, 1 / self.temperature) + jnp.log(each)
        return expected_nce(chosen.scores, chosen.weights, mass), expected_ratio(chosen.scores, chosen.weights, mass)


def in_blocks(price: Callable[[Int[Array, " anchors"]], Float[Array, " anchors"]], size: int) -> Float[Array, " batch"]:
    """A function of anchor rows over a whole batch, block by block."""
    block = BLOCK if size % BLOCK == 0 else size
    return jax.lax.map(price, jnp.arange(size).reshape(-1, block)).reshape(size)


class Pairs(NamedTuple):
    """How each anchor relates to each state of the batch."""

    other: Bool[Array, "anchors batch"]  # Not the anchor itself.
    same: Bool[Array, "anchors batch"]  # Another state of the anchor's skill.
    elsewhere: Bool[Array, "anchors batch"]  # The same, from another trajectory.
    across: Bool[Array, "anchors batch"]  # The same where the batch has one, else of the same trajectory.
    negative: Bool[Array, "anchors batch"]  # A state of another skill.
    apart: Float[Array, "anchors batch"]  # Distance in time along the trajectories.
    grouped: Bool[Array, "anchors batch"]  # In the anchor's group: the batch's first two of each skill, the next two …


def relate(batch: Batch, rows: Int[Array, " anchors"]) -> Pairs:
    skill = skill_index(batch.skill)
    other = rows[:, None] != jnp.arange(len(skill))
    same_skill = skill[rows][:, None] == skill
    same = same_skill & other
    elsewhere = same & (batch.trajectory[rows][:, None] != batch.trajectory)
    # Where a skill has one trajectory only, each state stands for one of its own. Found without looking at all pairs.
    owned = batch.skill > 0
    ids, limits = batch.trajectory[:, None], jnp.iinfo(batch.trajectory.dtype)
    first = jnp.min(ids, 0, where=owned, initial=limits.max)
    last = jnp.max(ids, 0, where=owned, initial=limits.min)
    lone = (owned & (first == last)).any(1)
    stretch = jnp.where(lone, -1 - jnp.arange(len(skill)), batch.trajectory)
    across = same_skill & (stretch[rows][:, None] != stretch)
    apart = jnp.abs(batch.progress[rows][:, None] - batch.progress)
    group = _groups(batch.skill)
    return Pairs(other, same, elsewhere, across, ~same_skill, apart, group[rows][:, None] == group)


def _groups(skill: Float[Array, "batch skill"]) -> Int[Array, " batch"]:
    """Which group a state belongs to: the first two states of every skill are group 0, the next two group 1 …"""
    owned = skill > 0
    earlier = jnp.cumsum(owned, 0) - owned
    return jnp.sum(jnp.where(owned, earlier, 0), 1) // 2


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
    """Of each row; 0 where nothing is masked."""
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


class Positives(NamedTuple):
    scores: Float[Array, "anchors positives"]
    weights: Float[Array, "anchors positives"]


def info_nce(positive: Float[Array, "*#b"], negative_mass: Float[Array, "*#b"]) -> Float[Array, "*b"]:
    """Eq. 8 for log-scores: −log(e^p / (e^p + e^n)), n the log of the negatives' summed exponentials."""
    return jax.nn.softplus(negative_mass - positive)


def expected_nce(
    positive: Float[Array, "anchors positives"],
    weights: Float[Array, "anchors positives"],
    negative_mass: Float[Array, " anchors"],
) -> Float[Array, " anchors"]:
    """The loss of each anchor, expected over its positives."""
    return jnp.sum(weights * info_nce(positive, negative_mass[:, None]), -1)


def expected_ratio(
    positive: Float[Array, "anchors positives"],
    weights: Float[Array, "anchors positives"],
    negative_mass: Float[Array, " anchors"],
) -> Float[Array, " anchors"]:
    """Eq. 10, E[e^−L]: of one positive e^p / (e^p + e^n)."""
    return jnp.sum(weights * jax.nn.sigmoid(positive - negative_mass[:, None]), -1)


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
    lambda kept, g: (jnp.where(kept[1] & (kept[0] == kept[2][:, None]), g[:, None], 0.0), None),
)


def released_nce(
    chosen: Positives, scores: Float[Array, "anchors batch"], other: Bool[Array, "anchors batch"]
) -> tuple[Float[Array, " anchors"], Float[Array, " anchors"]]:
    """The released URLB formula: e_p/(Σ_{j≠i} e_j + 1e-6) + 1e-6 with scores shifted by their largest."""
    peak = jnp.max(jnp.where(other, scores, -jnp.inf), 1)[:, None]

    def relative(scores: Array, count: Array) -> Array:
        # The anchor's own score may be far beyond the largest of the others: it must not overflow.
        return jnp.where(count, jnp.exp(jnp.where(count, scores - peak, 0.0)), 0.0)

    total = jnp.sum(relative(scores, other), 1, keepdims=True)
    ratio = relative(chosen.scores, chosen.weights > 0) / (total + 1e-6) + 1e-6
    return -jnp.sum(chosen.weights * jnp.log(ratio), 1), jnp.sum(chosen.weights * ratio, 1)


def nearest(scores: Float[Array, "anchors batch"], pairs: Pairs, key: PRNGKeyArray) -> Positives:
    """The candidate most like the anchor."""
    del key
    elsewhere, same = largest(scores, pairs.elsewhere), largest(scores, pairs.same)
    best = jnp.where(jnp.isfinite(elsewhere), elsewhere, same)[:, None]
    found = jnp.isfinite(best)
    return Positives(jnp.where(found, best, 0.0), found.astype(scores.dtype))


def aligned(scores: Float[Array, "anchors batch"], pairs: Pairs, key: PRNGKeyArray) -> Positives:
    """A candidate at the same time of its trajectory (the nearest in time, ties at random)."""
    apart = pairs.apart + 1e-3 * jax.random.uniform(key, (scores.shape[1],))
    return _pick(scores, pairs, jnp.argmin(jnp.where(pairs.across, apart, jnp.inf), 1))


def random(scores: Float[Array, "anchors batch"], pairs: Pairs, key: PRNGKeyArray, draws: int = 8) -> Positives:
    """A few candidates at random. Anchors of a skill share a draw; each draw is uniform all the same."""
    priorities = jax.random.uniform(key, (draws, scores.shape[1]))
    drawn = [_pick(scores, pairs, jnp.argmax(jnp.where(pairs.across, priority, -1.0), 1)) for priority in priorities]
    return Positives(
        jnp.concatenate([one.scores for one in drawn], 1),
        jnp.concatenate([one.weights / draws for one in drawn], 1),
    )


def mean(scores: Float[Array, "anchors batch"], pairs: Pairs, key: PRNGKeyArray) -> Positives:
    """All candidates, equally."""
    del key
    return Positives(scores, pairs.across * (1 / jnp.maximum(pairs.across.sum(1, keepdims=True), 1)))


def first(scores: Float[Array, "anchors batch"], pairs: Pairs, key: PRNGKeyArray) -> Positives:
    """The released choice: the first other state of the skill in the batch, else the first other state."""
    del key
    found = pairs.same.any(1, keepdims=True)
    choice = jnp.argmax(jnp.where(found, pairs.same, pairs.other), 1)
    return Positives(jnp.take_along_axis(scores, choice[:, None], 1), jnp.ones((len(scores), 1)))


def pair(scores: Float[Array, "anchors batch"], pairs: Pairs, key: PRNGKeyArray) -> Positives:
    """The other state of the skill in the anchor's group; the last of an odd number has none."""
    del key
    partner = pairs.same & pairs.grouped
    picked = jnp.take_along_axis(scores, jnp.argmax(partner, 1)[:, None], 1)
    return Positives(picked, partner.any(1, keepdims=True).astype(scores.dtype))


def _pick(scores: Float[Array, "anchors batch"], pairs: Pairs, choice: Int[Array, " anchors"]) -> Positives:
    """One positive an anchor. An anchor without any gets weight 0: no loss, no reward."""
    picked = jnp.take_along_axis(scores, choice[:, None], 1)
    return Positives(picked, pairs.across.any(1, keepdims=True).astype(scores.dtype))


POSITIVES: dict[str, Callable[..., Positives]] = {
    "mean": mean,
    "nearest": nearest,
    "aligned": aligned,
    "random": random,
    "first": first,
    "pair": pair,
}
