"""What skills say about states: estimates of the paper, and information against coverage."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import matplotlib
import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from becl.measure.estimators import smooth as running_mean
from becl.views.figures.colors import Styles, method_styles
from becl.views.figures.style import COLUMN_WIDTH, PAGE_WIDTH, STYLE


class SeedScore(NamedTuple):
    """What one seed of a method reaches."""

    method: str
    information: float  # I(S;Z) in nats.
    coverage: float  # Fraction of the maze's bins visited.


@matplotlib.rc_context(STYLE)
def estimates(
    curves: Mapping[str, Float[np.ndarray, "_ points"]],
    iterations: Int[np.ndarray, " points"],
    entropies: Mapping[str, Float[np.ndarray, "_"]],
    num_skills: int,
    *,
    published: Mapping[str, float] | None = None,
    window: int = 100,
) -> Figure:
    """The paper's estimates: information while MINE is trained, particle entropy of trajectories.

    Curves are means over seeds, each smoothed over `window` points, in a band from the lowest seed
    to the highest. Dots are seeds, hollow diamonds the `published` entropies.
    """
    styles = method_styles([*curves, *(label for label in entropies if label not in curves)])
    figure = Figure(figsize=(PAGE_WIDTH, 2.3), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    _draw_information(left, curves, iterations, num_skills, styles, window)
    _draw_entropies(right, entropies, published or {}, styles)
    if handles := right.get_legend_handles_labels()[0]:
        figure.legend(handles, right.get_legend_handles_labels()[1], loc="outside upper right")
    return figure


def _draw_information(
    axes: Axes,
    curves: Mapping[str, Float[np.ndarray, "_ points"]],
    iterations: Int[np.ndarray, " points"],
    num_skills: int,
    styles: Styles,
    window: int,
) -> None:
    for label, values in curves.items():
        smooth = running_mean(np.asarray(values), min(window, np.shape(values)[-1]))
        when = np.asarray(iterations)[-smooth.shape[1] :]
        stride = max(1, len(when) // 500)  # More points than that only bloat the SVG.
        thin = slice((len(when) - 1) % stride, None, stride)
        when, smooth = when[thin], smooth[:, thin]
        color, _ = styles[label]
        axes.plot(when, smooth.mean(0), color=color, label=label)
        if len(smooth) > 1:
            low, high = smooth.min(0), smooth.max(0)
            axes.fill_between(when, low, high, color=color, alpha=0.18, linewidth=0)
    ceiling = math.log(num_skills)
    axes.axhline(ceiling, color="black", linestyle="--", linewidth=0.8)
    axes.annotate(
        f"log {num_skills}",
        (1, ceiling),
        (0, 2),
        ("axes fraction", "data"),
        "offset points",
        ha="right",
    )
    axes.set(xlabel="MINE iteration", ylabel="mutual information (nats)")
    axes.set_ylim(min(0.0, axes.get_ylim()[0]), max(1.1 * ceiling, axes.get_ylim()[1]))
    axes.set_xlim(0, np.max(iterations))
    axes.legend(loc="lower right", ncols=1 + (len(curves) > 4))


def _draw_entropies(
    axes: Axes, entropies: Mapping[str, Float[np.ndarray, "_"]], published: Mapping[str, float], styles: Styles
) -> None:
    for row, (label, values) in enumerate(entropies.items()):
        values = np.atleast_1d(values)
        color, _ = styles[label]
        axes.barh(row, values.mean(), height=0.62, color=color, alpha=0.55)
        spread = np.linspace(-0.18, 0.18, len(values)) if len(values) > 1 else [0.0]
        axes.scatter(
            values,
            row + np.asarray(spread),
            s=7,
            color=color,
            edgecolors="black",
            linewidths=0.4,
            zorder=3,
        )
    if marks := [(value, list(entropies).index(label)) for label, value in published.items() if label in entropies]:
        axes.scatter(
            *zip(*marks, strict=True),
            s=30,
            marker="D",
            facecolors="none",
            edgecolors="black",
            linewidths=0.9,
            zorder=4,
            label="published, one run",
        )
    axes.set_yticks(range(len(entropies)), list(entropies))
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel("particle entropy of trajectories")


@matplotlib.rc_context(STYLE)
def tradeoff(
    rows: Sequence[SeedScore],
    *,
    reference: tuple[float, float] | None = None,
    reference_label: str = "authors' figure run",
    num_skills: int | None = None,
) -> Figure:
    """Telling skills apart against going places: a dot a seed, the mean larger.

    `reference` is (information, coverage) of a run to compare with: (2.06, 0.65) is the one drawn
    in the paper. `num_skills` adds the ceiling of the information.
    """
    figure = Figure(figsize=(COLUMN_WIDTH, 2.7), layout="constrained")
    axes = figure.subplots()
    labels = list(dict.fromkeys(row.method for row in rows))
    for label, (color, marker) in method_styles(labels).items():
        points = np.array([(row.coverage, row.information) for row in rows if row.method == label])
        axes.scatter(
            *points.mean(0),
            s=58,
            marker=marker,
            facecolors=to_rgba(color, 0.45),
            edgecolors=color,
            linewidths=0.9,
            label=label,
            zorder=3,
        )
        axes.scatter(*points.T, s=9, marker=marker, color=color, edgecolors="white", linewidths=0.3, zorder=4)
    if reference is not None:
        axes.scatter(
            reference[1],
            reference[0],
            s=95,
            marker="*",
            facecolors="white",
            edgecolors="black",
            linewidths=0.8,
            label=reference_label,
            zorder=5,
        )
    if num_skills is not None:
        ceiling = math.log(num_skills)
        axes.axhline(ceiling, color="black", linestyle="--", linewidth=0.8, zorder=0)
        axes.annotate(f"log {num_skills}", (1, ceiling), (-2, -8), textcoords="offset points", ha="right")
    axes.set(xlabel="coverage of the maze", ylabel="I(S;Z) (nats)", xlim=(0, 1.02))
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    figure.legend(loc="outside lower center", ncols=3, handletextpad=0.2, columnspacing=1.2)
    return figure
