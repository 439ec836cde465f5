"""The pictures: trajectories by skill, estimates by method, the mazes, and curves of training.

Every function takes plain arrays and returns a matplotlib `Figure` that belongs to nobody else (no
pyplot, no display); `save` writes it. Trajectories are arrays [skills, episodes, time, 2]. Sizes
are inches on paper: 6.75 is the width of a two-column page, 3.25 of one column.
"""

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import matplotlib.path
import matplotlib.ticker
import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb, to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch
from matplotlib.textpath import TextPath

from becl.envs import maze
from becl.envs.maze import Geometry
from becl.measure.estimators import smooth as running_mean

PAGE_WIDTH = 6.75
COLUMN_WIDTH = 3.25
README_WIDTH = 8.0  # 1600 pixels at the resolution of `save`.
PIXELS_PER_INCH = 200
SVG_PIXELS = 700_000  # Keeps the densest pictures near one megabyte.

MARGIN = 0.25  # Void around a maze, in cells.
VOID = "#e9e9e9"
FLOOR = "white"
MUTED = "#444444"  # Text of second rank.
SEPARATOR = " · "  # Where a subtitle may be broken.
MARKERS = "osD^vP<X>p"
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # Ships with matplotlib: the same picture on every machine.
    "font.size": 7,
    "axes.titlesize": 8,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
}

# The usual ten-colour cycles do not survive a red-green deficiency: in simulated deuteranopia the
# two closest colours of tab10 are 0.02 apart in OKLab, of Tol's muted scheme 0.05, of Petroff's
# cycle 0.08. These ten come from a search for the largest smallest distance over normal sight
# (divided by 1.6), deuteranopia, protanopia and tritanopia (divided by 0.8), among colours neither
# too dark beside black walls nor too pale for a thin line on white (lightness 0.38 to 0.82) and not
# grey, which is the void (chroma above 0.09). Smallest distances: 0.20, 0.13, 0.13 and 0.10.
TEN_COLORS: tuple[str, ...] = (
    "#0078b4",
    "#c31e69",
    "#e1c300",
    "#0f5a00",
    "#a587ff",
    "#ff8796",
    "#3cd2f0",
    "#690096",
    "#968700",
    "#000ff0",
)
METHODS: tuple[str, ...] = ("becl", "diayn", "dads", "cic")  # Same colour in every figure.

LMS_FROM_RGB = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)  # OKLab (Ottosson 2020), both matrices.
LAB_FROM_LMS = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)
DEUTERANOPIA = np.array(
    [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ]
)  # Linear RGB as seen without green cones (Machado et al. 2009, severity 1).


def oklab(colors: Sequence[str], deuteranopia: bool = False) -> Float[np.ndarray, "colors 3"]:
    """Colours as (lightness, green-red, blue-yellow): equal distances look about equally large."""
    encoded = np.array([to_rgb(color) for color in colors])
    linear = np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)
    if deuteranopia:
        linear = np.clip(linear @ DEUTERANOPIA.T, 0, 1)
    return np.cbrt(linear @ LMS_FROM_RGB.T) @ LAB_FROM_LMS.T


def skill_colors(n: int) -> list[str]:
    """A colour for each of `n` skills; the first ten are safe for colour-blind readers.

    Each later one is as far as possible from all before it (Glasbey et al. 2007), so a skill keeps
    its colour when there are more. Thirty can be told apart; a hundred differ, but not at a glance.
    """
    return list(TEN_COLORS[:n]) if n <= len(TEN_COLORS) else list(_extended_colors(n))


@functools.cache
def _extended_colors(n: int) -> tuple[str, ...]:
    levels = range(0, 256, 17)
    candidates = [f"#{r:02x}{g:02x}{b:02x}" for r in levels for g in levels for b in levels]
    seen = oklab(candidates)
    usable = (seen[:, 0] > 0.3) & (seen[:, 0] < 0.84) & (np.hypot(seen[:, 1], seen[:, 2]) > 0.06)
    candidates = [color for color, keep in zip(candidates, usable, strict=True) if keep]
    # Half the weight on the deficient view: there is no room for thirty colours in it.
    views = [(oklab(candidates, blind), weight, blind) for blind, weight in ((False, 1), (True, 2))]

    def distance(color: str) -> Float[np.ndarray, " candidates"]:
        return np.min(
            [weight * np.linalg.norm(view - oklab([color], blind), axis=1) for view, weight, blind in views],
            axis=0,
        )

    chosen = list(TEN_COLORS)
    nearest = np.min([distance(color) for color in chosen], axis=0)
    while len(chosen) < n:
        chosen.append(candidates[int(nearest.argmax())])
        nearest = np.minimum(nearest, distance(chosen[-1]))
    return tuple(chosen)


def method_styles(labels: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Colour and marker of each method, the same in every figure for those in METHODS."""
    colors = skill_colors(len(METHODS) + len(labels))
    palette = list(zip(colors, itertools.cycle(MARKERS), strict=False))
    known = dict(zip(METHODS, palette, strict=False))
    rest = iter(palette[len(METHODS) :])
    return {label: known[label.lower()] if label.lower() in known else next(rest) for label in labels}


class Panel(NamedTuple):
    """One picture of a grid: what the skills of one run do in a maze."""

    title: str
    subtitle: str
    paths: Float[np.ndarray, "skills episodes time 2"]
    geometry: Geometry
    names: Sequence[int] = ()
    """Numbers of the skills, which have their colours; counted from 0 by default."""


def draw_maze(axes: Axes, geometry: Geometry) -> None:
    """Draws the floor white, everything else grey, and the walls; y is up, without ticks."""
    x_low, x_high, y_low, y_high = geometry.bounds
    axes.set(
        xlim=(x_low - MARGIN, x_high + MARGIN),
        ylim=(y_low - MARGIN, y_high + MARGIN),
        xticks=[],
        yticks=[],
        facecolor=VOID,
    )
    axes.set_aspect("equal", anchor="N")
    axes.spines[:].set_visible(False)
    # The outline closes the hairlines between neighbouring cells.
    floor = PathPatch(_floor(geometry), facecolor=FLOOR, edgecolor=FLOOR, linewidth=0.5, zorder=1)
    axes.add_patch(floor)
    walls = PathPatch(
        _outlines(_straight(geometry.walls)),
        fill=False,
        edgecolor="black",
        linewidth=1.1 * _stroke(axes),
        capstyle="projecting",
        zorder=4,
    )
    axes.add_patch(walls)


def _floor(geometry: Geometry) -> matplotlib.path.Path:
    corners = np.array([[-0.5, -0.5], [0.5, -0.5], [0.5, 0.5], [-0.5, 0.5], [-0.5, -0.5]])
    return _outlines(geometry.cells[:, None, :] + corners)


def _straight(walls: Float[np.ndarray, "edges 2 2"]) -> Float[np.ndarray, "walls 2 2"]:
    """Unit edges joined into straight walls: drawn one by one, their ends show as knots."""
    joined: list[list[np.ndarray]] = []
    for axis in (0, 1):
        edges = walls[walls[:, 0, axis] < walls[:, 1, axis]]
        first = len(joined)
        for low, high in edges[np.lexsort((edges[:, 0, axis], edges[:, 0, 1 - axis]))]:
            if len(joined) > first and np.array_equal(joined[-1][1], low):
                joined[-1][1] = high
            else:
                joined.append([low, high])
    return np.array(joined)


def _outlines(polygons: Float[np.ndarray, "polygons points 2"]) -> matplotlib.path.Path:
    """All polygons as one path, which is one short element of an SVG."""
    move, line = matplotlib.path.Path.MOVETO, matplotlib.path.Path.LINETO
    count, points, _ = polygons.shape
    return matplotlib.path.Path(polygons.reshape(-1, 2), ([move] + [line] * (points - 1)) * count)


def _stroke(axes: Axes) -> float:
    """How bold to draw: 1 where a cell is 0.3 inches wide, growing more slowly than cells do."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    inches = axes.get_position().size * figure.get_size_inches()
    cells = np.array([np.ptp(axes.get_xlim()), np.ptp(axes.get_ylim())])
    return float(np.clip(np.sqrt(np.min(inches / cells) / 0.3), 0.55, 1.7))


def draw_paths(
    axes: Axes, paths: Float[np.ndarray, "skills episodes time 2"], geometry: Geometry, names: Sequence[int] = ()
) -> None:
    """Draws a maze, every trajectory in its skill's colour up to a dot, and the start in black."""
    draw_maze(axes, geometry)
    paths = np.asarray(paths)
    skills, episodes = paths.shape[:2]
    names = names or range(skills)
    palette = skill_colors(max(names) + 1)
    colors = [palette[name] for name in names]
    # Episode by episode, so that in a shared corridor no skill lies on top of all others.
    by_episode = np.swapaxes(paths, 0, 1).reshape(skills * episodes, -1, 2)
    stroke = _stroke(axes)
    lines = LineCollection(
        list(by_episode),
        colors=[to_rgba(color, 0.55) for color in colors] * episodes,
        linewidths=0.45 * stroke,
        joinstyle="round",
        zorder=2,
        rasterized=True,
    )
    axes.add_collection(lines, autolim=False)
    ends = axes.scatter(
        *by_episode[:, -1].T,
        s=(2.1 * stroke) ** 2,
        c=colors * episodes,
        edgecolors="white",
        linewidths=0.2 * stroke if stroke > 0.8 else 0.0,  # Rings only where they stay thinner than the dots.
        zorder=3,
        rasterized=True,
    )
    ends.set_clip_path(_floor(geometry), axes.transData)  # Dots at a wall do not stick out behind it.
    _draw_start(axes, geometry)


def _draw_start(axes: Axes, geometry: Geometry) -> None:
    axes.plot(
        *geometry.figure_start,
        marker="o",
        markersize=4.2 * _stroke(axes),
        markerfacecolor="black",
        markeredgecolor="white",
        markeredgewidth=0.5 * _stroke(axes),
        zorder=5,
    )


@matplotlib.rc_context(STYLE)
def panels(
    grid: Sequence[Panel],
    columns: int,
    *,
    row_labels: Sequence[str] = (),
    column_labels: Sequence[str] = (),
    width: float = PAGE_WIDTH,
) -> Figure:
    """Runs side by side, row by row: methods, temperatures, numbers of skills or every seed."""
    figure, places = _grid(
        [(panel.title, panel.subtitle, panel.geometry) for panel in grid],
        columns,
        row_labels=row_labels,
        column_labels=column_labels,
        width=width,
    )
    for panel, axes in zip(grid, places, strict=True):
        draw_paths(axes, panel.paths, panel.geometry, panel.names)
    return figure


@matplotlib.rc_context(STYLE)
def demo_figure(pair: Sequence[Panel], *, caption: str | None = None) -> Figure:
    """Two runs beside each other, large enough for a README."""
    if caption is None:
        skills, episodes = pair[0].paths.shape[:2]
        each = f"{episodes} trajectories a skill from the black dot"
        caption = f"{skills} skills, a colour each{SEPARATOR}{each}"
    figure, places = _grid(
        [(panel.title, panel.subtitle, panel.geometry) for panel in pair],
        columns=len(pair),
        width=README_WIDTH,
        row_height=3.1,
        font=11.0,
        caption=caption,
    )
    for panel, axes in zip(pair, places, strict=True):
        draw_paths(axes, panel.paths, panel.geometry)
    return figure


@matplotlib.rc_context(STYLE)
def maze_gallery(names: Sequence[str] | None = None) -> Figure:
    """The floor plans with their starts, all mazes unless some are named."""
    plans = [maze.geometry(name) for name in (maze.names() if names is None else names)]
    plans.sort(key=_aspect, reverse=True)  # Rows of similar height.
    figure, places = _grid(
        [(plan.name, f"{len(plan.cells)} cells{SEPARATOR}farthest {plan.distance.max()}", plan) for plan in plans],
        columns=min(5, len(plans)),
    )
    for plan, axes in zip(plans, places, strict=True):
        draw_maze(axes, plan)
        _draw_start(axes, plan)
    return figure


def _aspect(geometry: Geometry) -> float:
    x_low, x_high, y_low, y_high = geometry.bounds
    return (y_high - y_low + 2 * MARGIN) / (x_high - x_low + 2 * MARGIN)


def _grid(
    cells: Sequence[tuple[str, str, Geometry]],
    columns: int,
    *,
    row_labels: Sequence[str] = (),
    column_labels: Sequence[str] = (),
    width: float = PAGE_WIDTH,
    row_height: float = math.inf,
    font: float = 7.0,
    caption: str = "",
) -> tuple[Figure, list[Axes]]:
    """A figure as high as its rows of mazes need, with titles, and empty axes for each cell."""
    rows = [cells[first : first + columns] for first in range(0, len(cells), columns)]
    if row_labels and len(row_labels) != len(rows):
        raise ValueError(f"{len(row_labels)} row labels for {len(rows)} rows")
    if column_labels and len(column_labels) != columns:
        raise ValueError(f"{len(column_labels)} column labels for {columns} columns")
    line = 1.35 * font / 72
    gap = 0.7 * line
    left = 2 * line if row_labels else gap / 2
    each = (width - left - gap / 2 - gap * (columns - 1)) / columns
    subtitles = [[_broken(subtitle, each, font * 0.9) for _, subtitle, _ in row] for row in rows]
    title_lines = [any(title for title, _, _ in row) for row in rows]
    subtitle_lines = [max(len(s.splitlines()) for s in texts) for texts in subtitles]
    heads = [line * (1.15 * a + b) for a, b in zip(title_lines, subtitle_lines, strict=True)]
    bodies = [min(row_height, each * max(_aspect(plan) for *_, plan in row)) for row in rows]
    top = 1.3 * line if column_labels else gap / 2
    bottom = 1.3 * line if caption else 0.0
    height = top + sum(heads) + sum(bodies) + gap * len(rows) + bottom

    figure = Figure(figsize=(width, height), facecolor="white")

    def write(x: float, y: float, text: str, size: float, va: str = "bottom", **style: Any) -> None:
        figure.text(x / width, y / height, text, size=size * font, ha="center", va=va, **style)

    lefts = [left + column * (each + gap) for column in range(columns)]
    places = []
    y = height - top
    for index, row in enumerate(rows):
        y -= heads[index] + bodies[index]
        above = y + bodies[index] + 0.3 * line
        for x, (title, _, _), subtitle in zip(lefts, row, subtitles[index], strict=False):
            box = (x / width, y / height, each / width, bodies[index] / height)
            places.append(figure.add_axes(box))
            write(x + each / 2, above, subtitle, 0.9, color=MUTED, linespacing=1.2)
            write(x + each / 2, above + line * subtitle_lines[index], title, 1.1, weight="bold")
        if row_labels:
            middle = y + bodies[index] / 2
            write(left / 2, middle, row_labels[index], 1.1, va="center", rotation=90, weight="bold")
        y -= gap
    for x, label in zip(lefts, column_labels, strict=False):
        write(x + each / 2, height - 0.6 * top, label, 1.1, va="center", weight="bold")
    write(width / 2, 0.5 * line, caption, 0.9, color=MUTED)
    return figure, places


def _broken(text: str, width: float, size: float) -> str:
    """The text with separators turned into line breaks where it would exceed `width` inches."""
    lines: list[str] = []
    for part in text.split(SEPARATOR):
        joined = f"{lines[-1]}{SEPARATOR}{part}" if lines else part
        fits = not joined or TextPath((0, 0), joined, size=size).get_extents().width <= 72 * width
        lines[-1 if lines and fits else len(lines) :] = [joined if fits else part]
    return "\n".join(lines)


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

    for label, values in curves.items():
        smooth = running_mean(np.asarray(values), min(window, np.shape(values)[-1]))
        when = np.asarray(iterations)[-smooth.shape[1] :]
        stride = max(1, len(when) // 500)  # More points than that only bloat the SVG.
        thin = slice((len(when) - 1) % stride, None, stride)
        when, smooth = when[thin], smooth[:, thin]
        color, _ = styles[label]
        left.plot(when, smooth.mean(0), color=color, label=label)
        if len(smooth) > 1:
            low, high = smooth.min(0), smooth.max(0)
            left.fill_between(when, low, high, color=color, alpha=0.18, linewidth=0)
    ceiling = math.log(num_skills)
    left.axhline(ceiling, color="black", linestyle="--", linewidth=0.8)
    left.annotate(
        f"log {num_skills}",
        (1, ceiling),
        (0, 2),
        ("axes fraction", "data"),
        "offset points",
        ha="right",
    )
    left.set(xlabel="MINE iteration", ylabel="mutual information (nats)")
    left.set_ylim(min(0.0, left.get_ylim()[0]), max(1.1 * ceiling, left.get_ylim()[1]))
    left.set_xlim(0, np.max(iterations))
    left.legend(loc="lower right", ncols=1 + (len(curves) > 4))

    for row, (label, values) in enumerate(entropies.items()):
        values = np.atleast_1d(values)
        color, _ = styles[label]
        right.barh(row, values.mean(), height=0.62, color=color, alpha=0.55)
        spread = np.linspace(-0.18, 0.18, len(values)) if len(values) > 1 else [0.0]
        right.scatter(
            values,
            row + np.asarray(spread),
            s=7,
            color=color,
            edgecolors="black",
            linewidths=0.4,
            zorder=3,
        )
    reference = {} if published is None else published
    shown = [(value, list(entropies).index(label)) for label, value in reference.items() if label in entropies]
    if shown:
        right.scatter(
            *zip(*shown, strict=True),
            s=30,
            marker="D",
            facecolors="none",
            edgecolors="black",
            linewidths=0.9,
            zorder=4,
            label="published, one run",
        )
        figure.legend(*right.get_legend_handles_labels(), loc="outside upper right")
    right.set_yticks(range(len(entropies)), list(entropies))
    right.tick_params(axis="y", length=0)
    right.invert_yaxis()
    right.set_xlim(left=0)
    right.set_xlabel("particle entropy of trajectories")
    return figure


class Score(NamedTuple):
    """What one seed of a method reaches."""

    method: str
    information: float  # I(S;Z) in nats.
    coverage: float  # Fraction of the maze's bins visited.


@matplotlib.rc_context(STYLE)
def tradeoff(
    rows: Sequence[Score],
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


@matplotlib.rc_context(STYLE)
def learning_curves(curves: Mapping[str, Float[np.ndarray, "_ points"]], cycles: Int[np.ndarray, " points"]) -> Figure:
    """Intrinsic reward a step over training: a thin line a seed, the mean bold.

    A plot a method, because the scales of their rewards have nothing in common.
    """
    columns = min(4, len(curves))
    rows = math.ceil(len(curves) / columns)
    figure = Figure(figsize=(PAGE_WIDTH, 0.3 + 1.45 * rows), layout="constrained")
    places = figure.subplots(rows, columns, squeeze=False, sharex=True)
    styles = method_styles(list(curves))
    for axes, (label, values) in zip(places.flat, curves.items(), strict=False):
        values = np.asarray(values)
        color, _ = styles[label]
        axes.plot(cycles, values.T, color=color, linewidth=0.5, alpha=0.5)
        axes.plot(cycles, values.mean(0), color=color, linewidth=1.4)
        axes.set_title(label, weight="bold")
        axes.margins(x=0)
        axes.xaxis.set_tick_params(labelbottom=True)
    for axes in places.flat[len(curves) :]:
        axes.set_visible(False)
    figure.supxlabel("cycle", size=STYLE["font.size"])
    figure.supylabel("intrinsic reward a step", size=STYLE["font.size"])
    return figure


Columns = Mapping[str, Float[np.ndarray, "..."]]


@matplotlib.rc_context(STYLE)
def pretraining_curves(runs: Mapping[str, Columns]) -> Figure:
    """Intrinsic reward, states visited and the task's reward of runs by label: a thin line a seed, the mean bold.

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
    if visited in names:
        places[1].set_ylim(bottom=0)
    if visited == "coverage":
        places[1].yaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    places[len(names) // 2].set_xlabel(f"environment steps a seed ({unit_name})")
    handles = [Line2D([], [], color=color, linewidth=1.4) for color, _ in styles.values()]
    columns = math.ceil(len(runs) / rows)
    figure.legend(handles, _with_seeds(runs), loc="outside lower center", ncols=columns, columnspacing=1.5)
    return figure


PRETRAINING_TITLES = {
    "reward": "intrinsic reward",
    "coverage": "coverage",
    "cells": "cells visited",
    "return": "task's return an episode",
    "extrinsic": "task's reward in a batch",
}


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


def save(figure: Figure, path: str | Path) -> tuple[Path, Path]:
    """Writes `path`.png and `path`.svg; the same figure gives the same bytes.

    Trajectories are pixels inside the SVG, coarser than in the PNG where a figure is large.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    png, svg = (path.with_name(f"{path.name}.{suffix}") for suffix in ("png", "svg"))
    figure.savefig(png, dpi=PIXELS_PER_INCH, metadata={"Software": None})
    with matplotlib.rc_context({"svg.hashsalt": "becl"}):
        area = math.prod(figure.get_size_inches())
        dpi = min(PIXELS_PER_INCH, math.isqrt(int(SVG_PIXELS / area)))
        figure.savefig(svg, dpi=dpi, metadata={"Date": None})
    return png, svg


def picture(path: Path) -> Figure:
    """An image file as a figure of the same number of pixels."""
    from PIL import Image

    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB"))
    figure = Figure(figsize=(pixels.shape[1] / PIXELS_PER_INCH, pixels.shape[0] / PIXELS_PER_INCH))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.imshow(pixels, aspect="auto", interpolation="none")
    return figure


# --- What the skills of a pretrained run do ---------------------------------------------------------------------------


@matplotlib.rc_context(STYLE)
def skill_paths(
    place: Float[np.ndarray, "skills episodes states axes"], step_seconds: float, names: Sequence[int], title: str
) -> Figure:
    """Paths in their skills' colours: x against time where there is one axis, else x and y, from one origin."""
    figure = Figure(figsize=(COLUMN_WIDTH, 2.9), layout="constrained")
    axes = figure.subplots()
    moved = np.asarray(place) - place[:, :, :1]
    along_a_line = moved.shape[-1] == 1
    seconds = np.arange(moved.shape[2]) * step_seconds
    palette = skill_colors(max(names) + 1)
    for number, name in enumerate(names):
        for path in moved[number]:
            points = (seconds, path[:, 0]) if along_a_line else (path[:, 0], path[:, 1])
            axes.plot(*points, color=palette[name], linewidth=0.6, alpha=0.7, rasterized=True)
    if along_a_line:
        axes.set(xlabel="time (s)", ylabel="x from the start (m)")
        axes.margins(x=0)
    else:
        axes.set(xlabel="x from the start (m)", ylabel="y from the start (m)")
        axes.set_aspect("equal", adjustable="datalim")
        axes.plot(0, 0, "o", color="black", markersize=3)
    axes.set_title(title, size=STYLE["font.size"])
    _skill_legend(figure, names, palette)
    return figure


def _skill_legend(figure: Figure, names: Sequence[int], palette: Sequence[str]) -> None:
    handles = [Line2D([], [], color=palette[name], linewidth=1.4) for name in names]
    figure.legend(handles, [str(name) for name in names], loc="outside lower center", ncols=min(8, len(names)),
                  title="skill", columnspacing=1.0, handlelength=1.2)  # fmt: skip


@matplotlib.rc_context(STYLE)
def coverage_map(
    coordinates: Float[np.ndarray, "skills states 2"],
    grid: Sequence[Any],
    title: str,
    geometry: Geometry | None = None,
) -> Figure:
    """How many skills visit each cell of a grid over two axes, and how often all of them together do.

    An axis has a name, ends and a number of bins; values outside count in the bins at the ends.
    """
    figure = Figure(figsize=(PAGE_WIDTH, 2.7), layout="constrained")
    places = figure.subplots(1, 2)
    edges = [np.linspace(axis.low, axis.high, axis.bins + 1) for axis in grid]
    ends = np.array([(axis.low, np.nextafter(axis.high, axis.low)) for axis in grid])
    inside = np.clip(coordinates, *ends.T)
    counts = np.stack([np.histogram2d(*points.T, bins=edges)[0] for points in inside])
    visits, skills = counts.sum(0) / counts.sum(), (counts > 0).sum(0).astype(float)
    shown = ((visits, "part of all states", "log"), (skills, "skills that come here", "linear"))
    for axes, (values, label, norm) in zip(places, shown, strict=True):
        drawn = np.where(values > 0, values, np.nan).T
        mesh = axes.pcolormesh(*edges, drawn, norm=norm, cmap="viridis", rasterized=True)
        axes.set(xlabel=grid[0].name, ylabel=grid[1].name, facecolor=VOID)
        bar = figure.colorbar(mesh, ax=axes, label=label)
        if norm == "linear":
            bar.locator = matplotlib.ticker.MaxNLocator(integer=True, nbins=8)
        if geometry is not None:
            axes.add_patch(PathPatch(_outlines(_straight(geometry.walls)), fill=False, edgecolor="black", linewidth=1))
            axes.set_aspect("equal")
    figure.suptitle(f"{title}: {np.count_nonzero(visits)} of {visits.size} bins", size=STYLE["font.size"])
    return figure


@matplotlib.rc_context(STYLE)
def feature_sphere(
    features: Float[np.ndarray, "skills episodes states feature"], names: Sequence[int], title: str
) -> Figure:
    """Unit features on their three main directions, by skill; alignment and uniformity (Wang and Isola 2020) above.

    Alignment is the mean squared distance of two states of a skill in different episodes, uniformity the logarithm of
    the mean of exp(−2 · squared distance) over all pairs. Less is better in both.
    """
    figure = Figure(figsize=(COLUMN_WIDTH, 3.4), layout="constrained")
    axes: Any = figure.add_subplot(projection="3d")
    flat = features.reshape(-1, features.shape[-1])
    directions = np.linalg.svd(flat, full_matrices=False)[2][:3]
    points = features @ directions.T
    palette = skill_colors(max(names) + 1)
    for number, name in enumerate(names):
        axes.scatter(*points[number].reshape(-1, points.shape[-1]).T, s=2, color=palette[name], rasterized=True)
    turn, rise = np.meshgrid(np.linspace(0, 2 * np.pi, 25), np.linspace(0, np.pi, 13))
    ball = (np.cos(turn) * np.sin(rise), np.sin(turn) * np.sin(rise), np.cos(rise))
    axes.plot_wireframe(*ball, color=MUTED, linewidth=0.2, alpha=0.4)
    axes.set_axis_off()
    axes.set_box_aspect((1, 1, 1), zoom=1.3)
    alignment, uniformity = alignment_and_uniformity(features)
    shown = np.square(points).sum(-1).mean()  # Of the features' squared length, which is 1.
    about = f"alignment {alignment:.2f}, uniformity {uniformity:.2f}; {100 * shown:.0f} % in these three directions"
    axes.set_title(f"{title}\n{about}", size=STYLE["font.size"])
    _skill_legend(figure, names, palette)
    return figure


def alignment_and_uniformity(features: Float[np.ndarray, "skills episodes states feature"]) -> tuple[float, float]:
    """NaN for the alignment of single episodes."""
    skills, episodes, states, _ = features.shape
    within = []
    for one in features:
        distance = 2 - 2 * np.einsum("eif,gjf->egij", one, one)
        within.append(distance[~np.eye(episodes, dtype=bool)].mean() if episodes > 1 else math.nan)
    flat = features.reshape(skills * episodes * states, -1)
    similarity = flat @ flat.T
    apart = np.exp(-2 * (2 - 2 * similarity[~np.eye(len(flat), dtype=bool)]))
    return float(np.mean(within)), float(np.log(apart.mean()))
