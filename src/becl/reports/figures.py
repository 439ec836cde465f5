"""The pictures of a report: aggregates, profiles, curves of finetuning, skills and what is varied.

Plain arrays in, a matplotlib `Figure` out, in the style of `becl.views.figures.style`. A method keeps its colour in all
figures of a report: `method_styles` of its labels, made once, goes to each.
"""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import matplotlib
import matplotlib.ticker
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from becl.measure.stats import Interval, Profile
from becl.views.figures.colors import MARKERS, TEN_COLORS, Styles, method_styles, skill_colors
from becl.views.figures.style import MUTED, PAGE_WIDTH, STYLE

# The arrow points to what is better.
TITLES = {
    "iqm": "IQM ↑",
    "optimality_gap": "optimality gap ↓",
    "mean": "mean ↑",
    "median": "median ↑",
}
LONGEST = 36  # Letters of a label's line beside a plot.
MOST_COLUMNS = 4
MOST_MAPS = 8  # Seeds whose zero-shot returns are drawn.
GRID = "#dddddd"


class Cloud(NamedTuple):
    """Returns at points of training."""

    steps: Float[np.ndarray, " points"]
    returns: Float[np.ndarray, "seeds points"]


@matplotlib.rc_context(STYLE)
def aggregates(rows: Mapping[str, Mapping[str, Interval]], titles: Mapping[str, str], styles: Styles) -> Figure:
    """One row per method, one plot per aggregate: the value as a line, its interval as a bar."""
    names, labels = list(titles), [textwrap.fill(label, LONGEST) for label in rows]
    lines = 1 + max((label.count("\n") for label in labels), default=0)
    figure = Figure(figsize=(PAGE_WIDTH, 0.55 + (0.05 + 0.12 * lines) * len(rows)), layout="constrained")
    places = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    for axes, name in zip(places, names, strict=True):
        for height, (label, values) in enumerate(rows.items()):
            if name not in values:
                continue
            color, _ = styles[label]
            value, low, high = values[name][:3]
            if math.isfinite(low) and math.isfinite(high):
                axes.barh(height, high - low, left=low, height=0.62, color=to_rgba(color, 0.55), linewidth=0)
            axes.plot([value, value], [height - 0.31, height + 0.31], color="black", linewidth=1.1)
        axes.set_title(titles[name], weight="bold")
        axes.use_sticky_edges = False
        axes.margins(x=0.08)
        axes.grid(axis="x", color=GRID, linewidth=0.5)
        axes.set_axisbelow(True)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(3))
    places[0].set_yticks(range(len(rows)), labels)
    places[0].invert_yaxis()
    figure.supxlabel("score: return divided by the expert's", size=STYLE["font.size"])
    return figure


@matplotlib.rc_context(STYLE)
def profiles(curves: Mapping[str, Profile], styles: Styles) -> Figure:
    """How many of a method's runs reach more than each score, in bands of 95 % at each score."""
    figure = Figure(figsize=(PAGE_WIDTH, 2.9 + _legend_height(curves)), layout="constrained")
    axes = figure.subplots()
    for label, curve in curves.items():
        color, _ = styles[label]
        axes.plot(curve.thresholds, curve.value, color=color)
        if np.isfinite(curve.low).all():
            axes.fill_between(curve.thresholds, curve.low, curve.high, color=color, alpha=0.12, linewidth=0)
    axes.set(xlabel="score τ: return divided by the expert's", ylabel="part of runs with a score above τ")
    axes.set_ylim(0, 1.02)
    axes.margins(x=0)
    axes.grid(color=GRID, linewidth=0.5)
    _legend(figure, curves, styles)
    return figure


@matplotlib.rc_context(STYLE)
def finetuning_curves(tasks: Mapping[str, Mapping[str, Cloud]], styles: Styles) -> Figure:
    """Return against steps: one panel per task, one line per method, mean over seeds within its standard error."""
    labels = [label for label in styles if any(label in lines for lines in tasks.values())]
    farthest = max(1.0, *(float(cloud.steps[-1]) for lines in tasks.values() for cloud in lines.values()))
    unit, unit_name = (1e6, "millions") if farthest >= 1e6 else (1e3, "thousands")
    figure, places = _panels(tasks, labels)
    for axes, lines in zip(places, tasks.values(), strict=True):
        for label, cloud in lines.items():
            color, marker = styles[label]
            mean, error = _mean_and_error(cloud.returns)
            alone = marker if len(cloud.steps) == 1 else ""
            axes.plot(cloud.steps / unit, mean, color=color, marker=alone, markersize=3)
            axes.fill_between(cloud.steps / unit, mean - error, mean + error, color=color, alpha=0.15, linewidth=0)
        axes.set_xlim(0, farthest / unit)
        axes.set_ylim(bottom=min(0.0, *(float(cloud.returns.min()) for cloud in lines.values())))
    _name_axes(places, f"steps ({unit_name})", "return")
    _legend(figure, labels, styles)
    return figure


@matplotlib.rc_context(STYLE)
def skill_bars(tasks: Mapping[str, Mapping[int, Mapping[int, float]]]) -> Figure:
    """Returns by seed and skill after finetuning: bars are means over seeds, dots seeds, the line is the mean skill.

    A skill's number means nothing in another seed, so with several seeds each puts its skills in order of return.
    """
    alone = all(len(seeds) == 1 for seeds in tasks.values())
    figure, places = _panels(tasks, (), columns=min(2, len(tasks)))
    for axes, seeds in zip(places, tasks.values(), strict=True):
        if alone:
            (by_skill,) = seeds.values()
            skills, returns = list(by_skill), np.array([list(by_skill.values())])
        else:
            fewest = min(map(len, seeds.values()))
            returns = np.array([sorted(by_skill.values(), reverse=True)[:fewest] for by_skill in seeds.values()])
            skills = list(range(1, fewest + 1))
        x = np.arange(len(skills))
        axes.bar(x, returns.mean(0), width=0.75, color=to_rgba(TEN_COLORS[0], 0.55))
        for seed in returns if not alone else ():
            axes.scatter(x, seed, s=4, color=TEN_COLORS[0], edgecolors="black", linewidths=0.25, zorder=3)
        axes.axhline(returns.mean(), color="black", linestyle="--", linewidth=0.8)
        few = slice(None, None, 1 + len(skills) // 20)
        axes.set_xticks(x[few], [str(skill) for skill in skills[few]])
    _name_axes(places, "skill" if alone else "skills of a seed from best to worst", "return")
    return figure


@matplotlib.rc_context(STYLE)
def choice_bars(tasks: Mapping[str, Mapping[str, Float[np.ndarray, " seeds"]]]) -> Figure:
    """Ways of choosing the skill: one panel per task, one bar per way, with its standard error and one dot per seed."""
    names = list(dict.fromkeys(name for bars in tasks.values() for name in bars))
    colors = dict(zip(names, skill_colors(len(names)), strict=True))
    figure, places = _panels(tasks, names)
    for axes, bars in zip(places, tasks.values(), strict=True):
        for x, (name, returns) in enumerate(bars.items()):
            mean, error = _mean_and_error(returns)
            axes.bar(
                x,
                mean,
                width=0.75,
                yerr=error if len(returns) > 1 else None,
                color=to_rgba(colors[name], 0.6),
                error_kw={"linewidth": 0.8},
            )
            spread = x + (np.linspace(-0.22, 0.22, len(returns)) if len(returns) > 1 else np.zeros(1))
            axes.scatter(spread, returns, s=4, color=colors[name], edgecolors="black", linewidths=0.25, zorder=3)
        axes.set_xticks([])
    _name_axes(places, "", "return")
    _legend(figure, names, {name: (color, "s") for name, color in colors.items()}, marker_size=6)
    return figure


@matplotlib.rc_context(STYLE)
def ablation(
    tasks: Mapping[str, Mapping[str, Mapping[float, Float[np.ndarray, " seeds"]]]], option: str, logarithmic: bool
) -> Figure:
    """Return against one option: one panel per task, one line per method all else equal, standard errors as bars."""
    labels = list(dict.fromkeys(label for lines in tasks.values() for label in lines))
    styles = method_styles(labels)
    figure, places = _panels(tasks, labels)
    for axes, lines in zip(places, tasks.values(), strict=True):
        for label, by_value in lines.items():
            color, marker = styles[label]
            values = sorted(by_value)
            mean, error = np.transpose([_mean_and_error(by_value[value]) for value in values])
            axes.errorbar(values, mean, error, color=color, marker=marker, markersize=3, capsize=2, elinewidth=0.8)
            for value in values:
                axes.scatter(np.full(len(by_value[value]), value), by_value[value], s=3, color=color, alpha=0.4)
        if logarithmic:
            axes.set_xscale("log")
        every = sorted({value for by_value in lines.values() for value in by_value})
        axes.set_xticks(every, [f"{value:g}" for value in every], minor=False)
        axes.minorticks_off()
        axes.margins(y=0.1)
    _name_axes(places, option, "return")
    _legend(figure, labels, styles)
    return figure


@matplotlib.rc_context(STYLE)
def zero_shot(
    seeds: Mapping[str, Float[np.ndarray, "tasks skills"]], tasks: Sequence[str], colorbar: str, top: float | None
) -> Figure:
    """Return of every skill on every task without training: a map a seed, skills in the order of their mean."""
    drawn = dict(list(seeds.items())[:MOST_MAPS])
    widest = max(values.shape[1] for values in drawn.values())
    columns = 1 if widest > 24 else min(2, len(drawn))
    rows = math.ceil(len(drawn) / columns)
    high = 0.17 * max(len(tasks), 3)  # The numbers of the bar need room.
    figure = Figure(figsize=(PAGE_WIDTH, (0.42 + high) * rows + 0.25), layout="constrained")
    places = figure.subplots(rows, columns, squeeze=False, sharey=True)
    lowest = min(0.0, *(float(values.min()) for values in drawn.values()))
    largest = max(float(values.max()) for values in drawn.values())
    for axes, (title, values) in zip(places.flat, drawn.items(), strict=False):
        order = np.argsort(-values.mean(0), kind="stable")
        axes.imshow(values[:, order], aspect="auto", cmap="viridis", vmin=lowest, vmax=top or max(largest, lowest))
        axes.set_title(title, weight="bold")
        few = slice(None, None, 1 + len(order) // 20)
        axes.set_xticks(np.arange(len(order))[few], order[few])
        axes.set_yticks(range(len(tasks)), list(tasks))
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
    for axes in places.flat[len(drawn) :]:
        axes.set_visible(False)
    image = places.flat[0].images[0]
    figure.colorbar(image, ax=places.ravel().tolist(), label=colorbar, shrink=0.9, pad=0.01, aspect=12 * rows)
    figure.supxlabel("skill, best on the left", size=STYLE["font.size"])
    return figure


class Beside(NamedTuple):
    """Ours and published scores of a method, one number per task."""

    ours: Float[np.ndarray, " tasks"]
    error: Float[np.ndarray, " tasks"]
    published: Float[np.ndarray, " tasks"]
    published_error: Float[np.ndarray, " tasks"]
    domains: tuple[str, ...]


@matplotlib.rc_context(STYLE)
def beside_published(methods: Mapping[str, Beside]) -> Figure:
    """A panel a method, a dot a task: on the diagonal where our score is the published one."""
    domains = list(dict.fromkeys(domain for beside in methods.values() for domain in beside.domains))
    look = dict(zip(domains, zip(skill_colors(len(domains)), MARKERS, strict=False), strict=True))
    figure, places = _panels(methods, domains, height=1.5)
    ends = [float(np.max([beside.ours + beside.error, beside.published])) for beside in methods.values()]
    top = 1.08 * max(ends)
    for axes, beside in zip(places, methods.values(), strict=True):
        axes.plot([0, top], [0, top], color=MUTED, linestyle="--", linewidth=0.8)
        for ours, error, published, published_error, domain in zip(*beside, strict=True):
            color, marker = look[domain]
            axes.errorbar(
                published, ours, error, published_error, color=color, marker=marker, markersize=3.5, elinewidth=0.7
            )
        axes.set(xlim=(0, top), ylim=(0, top))
        axes.locator_params(nbins=3)
        axes.set_aspect("equal")
    _name_axes(places, "published score", "our score")
    _legend(figure, domains, look, marker_size=4)
    return figure


def _panels(
    titles: Mapping[str, object], labels: Sequence[str], columns: int | None = None, height: float = 1.35
) -> tuple[Figure, list[Axes]]:
    """A figure with a titled plot for each key, and room for a legend of the labels."""
    columns = columns or min(MOST_COLUMNS, len(titles))
    rows = math.ceil(len(titles) / columns)
    size = (PAGE_WIDTH, 0.3 + height * rows + _legend_height(labels))
    figure = Figure(figsize=size, layout="constrained")
    places = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, title in zip(places, titles, strict=False):
        axes.set_title(title, weight="bold")
        axes.margins(x=0.03)
    for axes in places[len(titles) :]:
        axes.set_visible(False)
    return figure, places[: len(titles)]


def _name_axes(places: Sequence[Axes], x: str, y: str) -> None:
    """Names at the outer plots only."""
    for index, axes in enumerate(places):
        spec = axes.get_subplotspec()
        assert spec is not None
        columns = spec.get_gridspec().ncols
        if index + columns >= len(places):
            axes.set_xlabel(x)
        if index % columns == 0:
            axes.set_ylabel(y)


def _legend_columns(labels: Sequence[str] | Mapping[str, object]) -> int:
    """About 105 letters fit beside each other."""
    return max(1, min(len(labels), 105 // (4 + max(map(len, labels), default=1))))


def _legend_height(labels: Sequence[str] | Mapping[str, object]) -> float:
    return 0.15 * math.ceil(len(labels) / _legend_columns(labels)) if labels else 0.0


def _legend(
    figure: Figure, labels: Sequence[str] | Mapping[str, object], styles: Styles, marker_size: int | None = None
) -> None:
    """Lines, or markers of a size."""
    handles = []
    for color, marker in (styles[label] for label in labels):
        if marker_size is None:
            handles.append(Line2D([], [], color=color, linewidth=1.6))
        else:
            handles.append(Line2D([], [], color=color, marker=marker, linestyle="", markersize=marker_size))
    figure.legend(handles, list(labels), loc="outside lower center", ncols=_legend_columns(labels), columnspacing=1.5)


def _mean_and_error(values: Float[np.ndarray, "seeds *points"]) -> tuple[np.ndarray, np.ndarray]:
    """Over seeds; the error of one seed is nothing to draw."""
    count = len(values)
    error = values.std(0, ddof=1) / math.sqrt(count) if count > 1 else np.zeros(values.shape[1:])
    return np.asarray(values.mean(0)), np.asarray(error)
