"""Curves of training: the maze study's rewards, and what pretraining on robots logs."""

import math
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from becl.views.figures.colors import method_styles
from becl.views.figures.style import PAGE_WIDTH, STYLE

Columns = Mapping[str, Float[np.ndarray, "..."]]
PRETRAINING_TITLES = {
    "reward": "intrinsic reward",
    "coverage": "coverage",
    "cells": "cells visited",
    "return": "task's return an episode",
    "extrinsic": "task's reward in a batch",
}


Chances = Mapping[str, float | None]
"""The reward that says nothing was learned, by label; None where there is no such number."""
NO_CHANCES: Chances = {}


@matplotlib.rc_context(STYLE)
def learning_curves(
    curves: Mapping[str, Float[np.ndarray, "_ points"]],
    cycles: Int[np.ndarray, " points"],
    entropies: Mapping[str, Float[np.ndarray, "_ points"]] | None = None,
    chances: Chances = NO_CHANCES,
) -> Figure:
    """Intrinsic reward a step over training, and the policy's entropy below it: a thin line a seed, the mean bold.

    A plot a method, because the scales of their rewards have nothing in common. Dotted: chance.
    """
    columns, kinds = min(4, len(curves)), 1 if entropies is None else 2
    rows = kinds * math.ceil(len(curves) / columns)
    figure = Figure(figsize=(PAGE_WIDTH, 0.3 + 1.45 * rows), layout="constrained")
    places = figure.subplots(rows, columns, squeeze=False, sharex=True)
    styles = method_styles(list(curves))
    for index, (label, values) in enumerate(curves.items()):
        row, column = kinds * (index // columns), index % columns
        _draw_study(places[row, column], cycles, values, styles[label][0])
        places[row, column].set_title(label, weight="bold")
        _draw_chance(places[row, column], chances.get(label), "black")
        if entropies is not None:
            _draw_study(places[row + 1, column], cycles, entropies[label], styles[label][0])
            places[row, 0].set_ylabel("intrinsic reward a step")
            places[row + 1, 0].set_ylabel("policy's entropy (nats)")
    for axes in places.flat:
        axes.set_visible(bool(axes.lines))
    figure.supxlabel("cycle" + _dotted(chances), size=STYLE["font.size"])
    if entropies is None:
        figure.supylabel("intrinsic reward a step", size=STYLE["font.size"])
    return figure


def _draw_study(
    axes: Axes, cycles: Int[np.ndarray, " points"], values: Float[np.ndarray, "seeds points"], color: str
) -> None:
    values = np.asarray(values)
    axes.plot(cycles, values.T, color=color, linewidth=0.5, alpha=0.5)
    axes.plot(cycles, values.mean(0), color=color, linewidth=1.4)
    axes.margins(x=0)
    axes.xaxis.set_tick_params(labelbottom=True)


def _draw_chance(axes: Axes, chance: float | None, color: str) -> None:
    if chance is not None:
        axes.axhline(chance, color=color, linestyle=":", linewidth=0.9)


def _dotted(chances: Chances) -> str:
    """What the dotted lines are, where there are any."""
    return " · dotted: chance" if any(chance is not None for chance in chances.values()) else ""


@matplotlib.rc_context(STYLE)
def pretraining_curves(runs: Mapping[str, Columns], chances: Chances = NO_CHANCES) -> Figure:
    """Intrinsic reward, states visited and the task's reward of runs by label: a thin line a seed, the mean bold.

    Dotted in a run's colour: the chance level of its reward.

    A run is the columns of its metrics: `step` [points], the others [seeds, points], NaN where nothing was measured.
    Where all runs have them the second plot shows `coverage`, else `cells`; the third `return`, else `extrinsic`.
    """
    styles = method_styles(list(runs))
    farthest = max(float(run["step"][-1]) for run in runs.values())
    unit, unit_name = (1e6, "millions") if farthest >= 1e6 else (1e3, "thousands")
    visited = _first_of_all(runs, "coverage", "cells")
    task = _first_of_all(runs, "return", "extrinsic")
    rows = math.ceil(len(runs) / min(4, max(1, 110 // max(map(len, runs)))))  # About 110 letters fit beside each other.
    figure = Figure(figsize=(PAGE_WIDTH, 2.05 + 0.15 * rows), layout="constrained")
    names = [name for name in ("reward", visited, task) if any(name in run for run in runs.values())]
    places = figure.subplots(1, len(names), squeeze=False)[0]
    for axes, name in zip(places, names, strict=True):
        for label, run in runs.items():
            if name in run:
                _draw_seeds(axes, np.asarray(run["step"]) / unit, np.asarray(run[name]), styles[label][0])
        axes.set_title(PRETRAINING_TITLES[name], weight="bold")
        axes.set_xlim(0, farthest / unit)
    rewards = [np.abs(run["reward"][np.isfinite(run["reward"])]) for run in runs.values()]
    _spread_scales(places[0], [float(np.median(size)) for size in rewards if size.size])
    for label, chance in chances.items():
        if chance is not None and (chance > 0 or places[0].get_yscale() != "log"):
            _draw_chance(places[0], chance, styles[label][0])
    if visited in names:
        places[1].set_ylim(bottom=0)
    if visited == "coverage":
        places[1].yaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    places[len(names) // 2].set_xlabel(f"environment steps per seed ({unit_name}){_dotted(chances)}")
    handles = [Line2D([], [], color=color, linewidth=1.4) for color, _ in styles.values()]
    columns = math.ceil(len(runs) / rows)
    figure.legend(handles, _with_seeds(runs), loc="outside lower center", ncols=columns, columnspacing=1.5)
    return figure


def _first_of_all(runs: Mapping[str, Columns], name: str, otherwise: str) -> str:
    """A column's name if every run has numbers in it."""
    everywhere = all(name in run and np.isfinite(run[name]).any() for run in runs.values())
    return name if everywhere else otherwise


def _draw_seeds(
    axes: Axes, when: Float[np.ndarray, " points"], values: Float[np.ndarray, "seeds points"], color: str
) -> None:
    def line(values: Float[np.ndarray, " points"], width: float, alpha: float = 1.0) -> None:
        known = np.isfinite(values)  # Gaps are bridged: an episode may end in one interval of many.
        marker = "o" if known.sum() == 1 else ""
        axes.plot(
            when[known], values[known], color=color, linewidth=width, alpha=alpha, marker=marker, markersize=2 * width
        )

    if len(values) > 1:
        for one in values:
            line(one, 0.5, 0.5)
    known = np.isfinite(values)
    number = np.where(known.any(0), known.sum(0), np.nan)
    line(np.where(known, values, 0.0).sum(0) / number, 1.4)


def _spread_scales(axes: Axes, sizes: Sequence[float]) -> None:
    """A logarithmic axis where methods' rewards are of different orders, so that none is a flat line."""
    sizes = [size for size in sizes if size > 0]
    if not sizes or max(sizes) < 5 * min(sizes):
        return
    if axes.dataLim.y0 > 0:
        axes.set_yscale("log")
    else:
        axes.set_yscale("symlog", linthresh=min(sizes))


def _with_seeds(runs: Mapping[str, Columns]) -> list[str]:
    counts = [len(run["reward"]) for run in runs.values()]
    return [f"{label}, {n} seed{'s' if n > 1 else ''}" for label, n in zip(runs, counts, strict=True)]
