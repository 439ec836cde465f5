"""Eq. 4: exact information of small tables."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import xlogy


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
    """p(state | skill): a state of its own for each skill, and with probability ``confusion`` another skill's."""
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
