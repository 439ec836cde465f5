"""Which of the paper's statements hold, with the numbers that say so."""

from typing import NamedTuple

import numpy as np

from becl.measure.theory.checks import BoundCheck, Findings, LimitCheck, RateCheck, SkillCheck
from becl.measure.theory.information import Decomposition

SAMPLED = 0.03
"""Three standard errors of sampled estimates (docs/theory.md), nats."""
EXACT = 1e-6
"""Rounding error of exact sums, nats."""
SLOPE = 0.1
"""How far a fitted exponent may be off."""


class Statement(NamedTuple):
    """A statement that was checked."""

    name: str
    holds: bool
    numbers: str

    @property
    def text(self) -> str:
        return f"{self.name} {'holds' if self.holds else 'does NOT hold'}: {self.numbers}"


def statements(found: Findings) -> list[Statement]:
    """The paper's statements as printed and, where they differ, in the form that holds."""
    return [
        marginal_bound(found.bounds),
        printed_bound(found.skills),
        corrected_bound(found.skills),
        *limits(found.limit),
        rate(found.rates),
        *sums([*found.skills.terms, *found.linked]),
    ]


def marginal_bound(bounds: dict[str, BoundCheck]) -> Statement:
    """Whether the largest estimate of every check lies below the information, up to sampling error."""
    gaps = {name: one.information - max(one.optimal.max(), one.trained.max()) for name, one in bounds.items()}
    below = ", ".join(f"{gap:.3f} for {name}" for name, gap in gaps.items())
    holds = min(gaps.values()) > -SAMPLED
    return Statement("Theorem 1, negatives from p(s),", holds, f"I(S1;S2) less the largest log N - L: {below}")


def printed_bound(check: SkillCheck) -> Statement:
    over = np.array([one.printed - terms.views for one, terms in zip(check.confused, check.terms, strict=True)])
    broken = check.confusions[over > EXACT]
    where = f" (confusion {broken.min():.2f} to {broken.max():.2f})" if len(broken) else ""
    numbers = f"log(2m - 1) - L exceeds I(S1;S2) by up to {over.max():.3f} for ten skills{where}"
    return Statement("Theorem 1 as printed, negatives from other skills,", not len(broken), numbers)


def corrected_bound(check: SkillCheck) -> Statement:
    pairs = zip(check.confused, check.terms, strict=True)
    over = max(one.corrected - terms.views - terms.gap for one, terms in pairs)
    numbers = f"log m - L is at least {-over:.3f} below I(S1;S2,Z) for ten skills"
    return Statement("Theorem 1, corrected for negatives from other skills,", over < EXACT, numbers)


def limits(check: LimitCheck) -> list[Statement]:
    reached, negatives = check.marginal[-1], check.negatives[-1]
    measured = f"L - log(N - 1) is {reached:.4f} for N - 1 = {negatives}, the limit"
    return [
        Statement(f"Theorem 2 {how}", bool(abs(reached - limit) < SAMPLED), f"{measured} {limit:.4f}")
        for how, limit in (("as printed, log C added,", check.printed_limit), ("with log C subtracted", check.limit))
    ]


def rate(rates: list[RateCheck]) -> Statement:
    slopes = ", ".join(f"{one.bias_slope:.3f} for d = {one.dim}" for one in rates)
    holds = all(abs(one.bias_slope + 1) < SLOPE for one in rates)
    return Statement("Theorem 2, distance to the limit as 1/(N - 1),", holds, f"fitted exponents {slopes}")


def sums(terms: list[Decomposition]) -> list[Statement]:
    off = max(abs(one.views - one.discovery - one.consistency) for one in terms)
    rest = max(abs(one.views - one.discovery - one.consistency + one.gap) for one in terms)
    return [
        Statement("Eq. 4 as printed", off < EXACT, f"off by up to {off:.3f} nats for ten skills that mix up states"),
        Statement("Eq. 4 with the gap subtracted", rest < EXACT, f"off by at most {rest:.0e} nats"),
    ]
