"""The figures of docs/theory.md: both theorems and Eq. 4, as `becl.measure.theory` checks them."""

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from becl.measure.theory.bound import ConfusedEstimates, critical_temperature
from becl.measure.theory.checks import BoundCheck, Findings, LimitCheck, RateCheck, SkillCheck
from becl.measure.theory.information import Decomposition
from becl.runs.writing import whole

# Okabe and Ito's colours, told apart with any colour vision.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, RED = "#0072B2", "#D55E00"
THEORY_STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.markersize": 4.5,
    "svg.hashsalt": "becl",
}


def write_figures(result: Findings, folder: Path) -> list[Path]:
    """Writes theory-bound, theory-entropy and theory-decomposition as PNG and SVG; returns the PNGs."""
    folder.mkdir(parents=True, exist_ok=True)
    drawings = (("bound", plot_bounds, 6.4), ("entropy", plot_entropy, 3.6), ("decomposition", plot_decomposition, 3.6))
    with matplotlib.rc_context(THEORY_STYLE):
        for name, draw, height in drawings:
            figure = Figure(figsize=(8, height), layout="constrained")
            draw(figure, result)
            with whole(folder / f"theory-{name}.png", ".png", durable=False) as part:
                figure.savefig(part, dpi=150)
            with whole(folder / f"theory-{name}.svg", ".svg", durable=False) as part:
                figure.savefig(part, metadata={"Date": None})
    return [folder / f"theory-{name}.png" for name, _, _ in drawings]


def plot_bounds(figure, result: Findings) -> None:
    """Theorem 1: where it holds (top) and what the paper's negatives do to it (bottom)."""
    axes = figure.subplots(2, 2)
    for panel, (title, check) in zip(axes[0], result.bounds.items(), strict=True):
        plot_bound(panel, f"{title}: negatives from p(s)", check)
    plot_temperatures(axes[1, 0], result.skills)
    plot_confusions(axes[1, 1], result.skills)


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


def plot_estimates(axes, x: Float[np.ndarray, " n"], estimates: list[ConfusedEstimates]) -> None:
    """The three readings of the loss."""
    axes.plot(x, [e.printed for e in estimates], color=RED, label="other skills, $\\log(2m-1)-L$")
    axes.plot(x, [e.corrected for e in estimates], "--", color=BLUE, label="corrected")
    axes.plot(x, [e.marginal for e in estimates], "-.", color=GREEN, label="negatives from $p(s)$")


def plot_entropy(figure, result: Findings) -> None:
    """Theorem 2: what the loss tends to (left) and how fast (right)."""
    left, right = figure.subplots(1, 2)
    plot_limit(left, result.limit)
    plot_rates(right, result.rates)
    for axes, n in ((left, result.limit.negatives), (right, result.rates[0].negatives)):
        axes.set_xticks(n[::2], [str(count) for count in n[::2]])
        axes.xaxis.minorticks_off()


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


def plot_decomposition(figure, result: Findings) -> None:
    """Eq. 4 for independent views (left) and for views that share more than the skill (right)."""
    left, right = figure.subplots(1, 2, sharey=True)
    plot_terms(left, result.skills.confusions, result.skills.terms)
    plot_terms(right, result.links, result.linked)
    left.set(xlabel="confusion", ylabel="nats", title="independent views")
    right.set(xlabel="probability that the views share a chance event")
    right.set_title("linked views, confusion 0.1")
    left.legend(loc="upper right")


def plot_terms(axes, x: Float[np.ndarray, " n"], terms: list[Decomposition]) -> None:
    """The terms of Eq. 4."""
    stated = [t.discovery + t.consistency for t in terms]
    views = [t.views for t in terms]
    axes.plot(x, stated, color=ORANGE, label="Eq. 4: (i) + (ii)")
    axes.plot(x, [t.discovery for t in terms], "--", color=BLUE, label="(i) $I(S;Z)$")
    axes.plot(x, [t.consistency for t in terms], "-.", color=GREEN, label="(ii) $I(S_1;S_2|Z)$")
    axes.plot(x, views, color=BLACK, label="$I(S_1;S_2)$")
    axes.fill_between(x, views, stated, color=SKY, alpha=0.4, label="gap $I(S_1;Z|S_2)$")
