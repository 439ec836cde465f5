"""Which state of the same skill an anchor is compared with. The paper leaves this open, so there are several choices.

`relate` describes how every anchor relates to every state of the batch; the functions after it pick positives.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from becl.objectives.contrast import largest
from becl.objectives.protocol import Batch
from becl.skills import skill_index


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
    # In a skill with one trajectory, each state counts as its own trajectory. Found without looking at all pairs.
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
    """The group of each state: the first two states of every skill are group 0, the next two group 1, and so on."""
    owned = skill > 0
    earlier = jnp.cumsum(owned, 0) - owned
    return jnp.sum(jnp.where(owned, earlier, 0), 1) // 2


class Positives(NamedTuple):
    scores: Float[Array, "anchors positives"]
    weights: Float[Array, "anchors positives"]


def nearest(scores: Float[Array, "anchors batch"], pairs: Pairs, key: PRNGKeyArray) -> Positives:
    """The candidate most similar to the anchor."""
    del key
    elsewhere, same = largest(scores, pairs.elsewhere), largest(scores, pairs.same)
    best = jnp.where(jnp.isfinite(elsewhere), elsewhere, same)[:, None]
    found = jnp.isfinite(best)
    return Positives(jnp.where(found, best, 0.0), found.astype(scores.dtype))


def aligned(scores: Float[Array, "anchors batch"], pairs: Pairs, key: PRNGKeyArray) -> Positives:
    """The candidate nearest in time along its trajectory, ties broken at random."""
    apart = pairs.apart + 1e-3 * jax.random.uniform(key, (scores.shape[1],))
    return _pick(scores, pairs, jnp.argmin(jnp.where(pairs.across, apart, jnp.inf), 1))


def distant(scores: Float[Array, "anchors batch"], pairs: Pairs, key: PRNGKeyArray) -> Positives:
    """A state of the anchor's own trajectory, far from it in time: one of those that are at least half as far as the
    farthest, at random. Where the batch has no other state of it, a candidate of another one."""
    own = pairs.same & ~pairs.elsewhere
    apart = jnp.where(own, pairs.apart, -jnp.inf)
    far = own & (2 * apart >= jnp.max(apart, 1, keepdims=True))
    among = jnp.where(own.any(1, keepdims=True), far, pairs.across)
    choice = jnp.argmax(jnp.where(among, jax.random.uniform(key, (scores.shape[1],)), -1.0), 1)
    picked = jnp.take_along_axis(scores, choice[:, None], 1)
    return Positives(picked, among.any(1, keepdims=True).astype(scores.dtype))


def random(scores: Float[Array, "anchors batch"], pairs: Pairs, key: PRNGKeyArray, draws: int = 8) -> Positives:
    """A few random candidates. Anchors of a skill share a draw, which is still uniform for each."""
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
    """The released choice: the first other state of the skill in the batch, otherwise the first other state."""
    del key
    found = pairs.same.any(1, keepdims=True)
    choice = jnp.argmax(jnp.where(found, pairs.same, pairs.other), 1)
    return Positives(jnp.take_along_axis(scores, choice[:, None], 1), jnp.ones((len(scores), 1)))


def first_choice(skill: Float[Array, "batch skill"]) -> Int[Array, " batch"]:
    """The state that `first` picks for each state of a batch, computed without all pairs."""
    owned, index = skill > 0, skill_index(skill)
    row = jnp.arange(len(skill))
    one = jnp.argmax(owned, 0)[index]  # The first of the skill; for that state itself, the second.
    two = jnp.argmax(owned & (row[:, None] != jnp.argmax(owned, 0)), 0)[index]
    choice = jnp.where(row == one, two, one)
    alone = owned.sum(0)[index] < 2
    return jnp.where(alone, jnp.where(row == 0, 1, 0), choice)


def pair(scores: Float[Array, "anchors batch"], pairs: Pairs, key: PRNGKeyArray) -> Positives:
    """The other state of the skill in the anchor's group; the last of an odd number of states has none."""
    del key
    partner = pairs.same & pairs.grouped
    picked = jnp.take_along_axis(scores, jnp.argmax(partner, 1)[:, None], 1)
    return Positives(picked, partner.any(1, keepdims=True).astype(scores.dtype))


def _pick(scores: Float[Array, "anchors batch"], pairs: Pairs, choice: Int[Array, " anchors"]) -> Positives:
    """One positive per anchor. An anchor without candidates gets weight 0: no loss and no reward."""
    picked = jnp.take_along_axis(scores, choice[:, None], 1)
    return Positives(picked, pairs.across.any(1, keepdims=True).astype(scores.dtype))


POSITIVES: dict[str, Callable[..., Positives]] = {
    "mean": mean,
    "nearest": nearest,
    "aligned": aligned,
    "distant": distant,
    "random": random,
    "first": first,
    "pair": pair,
}
