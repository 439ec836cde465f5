"""Mazes from above: floor plans, and the trajectories of skills in them, run beside run.

Trajectories are arrays [skills, episodes, time, 2].
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib
import matplotlib.path
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.textpath import TextPath

from becl.envs import maze
from becl.envs.maze import Geometry
from becl.views.figures.colors import skill_colors
from becl.views.figures.style import MUTED, PAGE_WIDTH, STYLE, VOID

README_WIDTH = 8.0  # 1600 pixels at the resolution of `save`.
MARGIN = 0.25  # Void around a maze, in cells.
FLOOR = "white"
SEPARATOR = " · "  # Where a subtitle may be broken.


class Panel(NamedTuple):
    """One picture of a grid: what the skills of one run do in a maze."""

    title: str
    subtitle: str
    paths: Float[np.ndarray, "skills episodes time 2"]
    geometry: Geometry
    names: Sequence[int] = ()
    """Numbers of the skills, which have their colours; counted from 0 by default."""


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
        wall_path(geometry),
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


def wall_path(geometry: Geometry) -> matplotlib.path.Path:
    """All walls of a maze."""
    return _outlines(_straight(geometry.walls))


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
