"""The numbers of docs/theory.md, as text."""

import numpy as np

from becl.measure.theory.bound import confused_estimates, critical_temperature, paired_estimate, simplex_margin
from becl.measure.theory.checks import BoundCheck, Findings, LimitCheck, RateCheck, SkillCheck
from becl.measure.theory.information import confused_skills, decomposition, independent_views, linked_views
from becl.measure.theory.limit import log_mean_kernel


def summary(result: Findings) -> str:
    """All numbers: Theorem 1, Theorem 2, then Eq. 4."""
    lines = ["Theorem 1, negatives from the marginal: log N - L"]
    for name, check in result.bounds.items():
        lines += bound_lines(name, check)
    lines += ["Theorem 1, negatives from other skills, m = 10, simplex features", *skill_lines(result.skills)]
    lines.append("Theorem 2, temperature 0.5")
    for rate in result.rates:
        lines += rate_lines(rate)
    lines.append(limit_line(result.limit))
    return "\n".join([*lines, "Eq. 4, ten skills", *decomposition_lines()])


def bound_lines(name: str, check: BoundCheck) -> list[str]:
    rows = zip(check.candidates, check.optimal, check.trained, strict=True)
    return [
        f"  {name}: I = {check.information:.3f}",
        *(f"    N = {n:3d}  ratio {a:.3f}  trained {b:.3f}" for n, a, b in rows),
    ]


def skill_lines(check: SkillCheck) -> list[str]:
    """The paper's negatives: where its estimate exceeds the information."""
    critical = [f"{m}: {critical_temperature(m):.3f}" for m in (2, 3, 5, 6, 10, 16, 50)]
    over = [e.printed - t.views for e, t in zip(check.confused, check.terms, strict=True)]
    broken = check.confusions[np.array(over) > 0]
    readings = [(t, 0.0) for t in (1.0, 0.5, 0.1, 0.01)]
    readings += [(t, c) for t in (1.0, 0.5) for c in (0.1, 0.2, 0.3, 0.5)]
    excess = paired_estimate(2, 6) - np.log(2)
    return [
        f"  critical temperature by m: {', '.join(critical)}",
        f"  temperature 0.5: printed > I(S1;S2) for confusion {broken.min():.2f}"
        f" to {broken.max():.2f}, by at most {max(over):.3f}",
        *(reading_line(temperature, confusion) for temperature, confusion in readings),
        f"  both states of 5 independent rows, 2 skills: estimate - I = {excess:+.4f}",
    ]


def reading_line(temperature: float, confusion: float) -> str:
    """One line with all estimates from the loss of ten skills."""
    estimate = confused_estimates(10, confusion, simplex_margin(10, temperature))
    terms = decomposition(independent_views(confused_skills(10, confusion)))
    return (
        f"  temperature {temperature:4.2f}, confusion {confusion:.1f}:"
        f" printed {estimate.printed:.3f} corrected {estimate.corrected:.3f}"
        f" marginal {estimate.marginal:.3f} I(S1;S2) {terms.views:.3f}"
        f" I(S1;S2,Z) {terms.views + terms.gap:.3f}"
    )


def rate_lines(rate: RateCheck) -> list[str]:
    span = 2 - log_mean_kernel(rate.dim, 2.0)
    return [
        f"  uniform, d = {rate.dim}: a = {rate.coefficient:.3f}, measured"
        f" {rate.bias[-1] * rate.negatives[-1]:.3f} at N - 1 = {rate.negatives[-1]};"
        f" slopes {rate.bias_slope:.3f} (mean) {rate.spread_slope:.3f} (spread)",
        f"    entropy estimate of one point {span:.3f} below that of the uniform law",
    ]


def limit_line(limit: LimitCheck) -> str:
    return (
        f"  clusters, N - 1 = {limit.negatives[-1]}: p(s) {limit.marginal[-1]:.4f}"
        f" -> {limit.limit:.4f} (printed sign {limit.printed_limit:.4f});"
        f" other skills {limit.other[-1]:.4f} -> {limit.other_limit:.4f}"
    )


def decomposition_lines() -> list[str]:
    examples = {
        "separated, independent": independent_views(confused_skills(10, 0.0)),
        "confusion 0.1, independent": independent_views(confused_skills(10, 0.1)),
        "separated, linked": linked_views(confused_skills(10, 0.0), 4, 1.0),
        "confusion 0.1, linked": linked_views(confused_skills(10, 0.1), 4, 1.0),
    }
    lines = []
    for name, joint in examples.items():
        terms = decomposition(joint)
        lines.append(
            f"  {name}: I(S1;S2) {terms.views:.3f} = (i) {terms.discovery:.3f}"
            f" + (ii) {abs(terms.consistency):.3f} - gap {terms.gap:.3f}"
        )
    return lines
