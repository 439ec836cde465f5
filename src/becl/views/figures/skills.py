"""What the skills of a pretrained run do: where they go, which states they cover, how far apart their features are."""

from collections.abc import Sequence
from typing import Any

import matplotlib
import matplotlib.ticker
import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch

from becl.envs.maze import Geometry
from becl.measure.estimators import alignment_and_uniformity
from becl.views.figures.colors import skill_colors
from becl.views.figures.maze import draw_maze, wall_path
from becl.views.figures.style import COLUMN_WIDTH, MUTED, PAGE_WIDTH, STYLE, VOID


@matplotlib.rc_context(STYLE)
def skill_paths(
    place: Float[np.ndarray, "skills episodes states axes"], step_seconds: float, names: Sequence[int], title: str
) -> Figure:
    """Paths in their skills' colours: x against time where there is one axis, else x and y, from one origin. Thin:
    episodes, bold: their mean."""
    figure = Figure(figsize=(COLUMN_WIDTH, 2.9), layout="constrained")
    axes = figure.subplots()
    moved = np.asarray(place) - place[:, :, :1]
    along_a_line = moved.shape[-1] == 1
    seconds = np.arange(moved.shape[2]) * step_seconds
    palette = skill_colors(max(names) + 1)
    for number, name in enumerate(names):
        for path in moved[number]:
            points = (seconds, path[:, 0]) if along_a_line else (path[:, 0], path[:, 1])
            axes.plot(*points, color=palette[name], linewidth=0.5, alpha=0.4, rasterized=True)
    for number, name in enumerate(names):
        mean = moved[number].mean(0)
        points = (seconds, mean[:, 0]) if along_a_line else (mean[:, 0], mean[:, 1])
        axes.plot(*points, color=palette[name], linewidth=1.6, solid_capstyle="round")
    if along_a_line:
        axes.set(xlabel="time (s)" if step_seconds != 1 else "steps", ylabel="x from the start (m)")
        axes.margins(x=0)
    else:
        axes.set(xlabel="x from the start (m)", ylabel="y from the start (m)")
        axes.set_aspect("equal", adjustable="datalim")
        axes.plot(0, 0, "o", color="black", markersize=3)
    axes.set_title(title, size=STYLE["font.size"])
    _skill_legend(figure, names, palette)
    return figure


@matplotlib.rc_context(STYLE)
def goal_paths(
    paths: Float[np.ndarray, "goals episodes states numbers"],
    goals: Float[np.ndarray, "goals numbers"],
    names: Sequence[str],
    title: str,
    geometry: Geometry | None = None,
) -> Figure:
    """The ways to goals, which are stars: in a plane, a number against steps, or the distance of more than two."""
    figure = Figure(figsize=(COLUMN_WIDTH, 2.9), layout="constrained")
    axes = figure.subplots()
    flat = goals.shape[-1] == 2
    palette = skill_colors(len(goals))
    if geometry is not None:
        draw_maze(axes, geometry)
    for color, goal, ways in zip(palette, goals, np.asarray(paths), strict=True):
        lines = ways if goals.shape[-1] <= 2 else np.linalg.norm(ways - goal, axis=-1)[..., None]
        for way in lines:
            points = way.T if flat else (np.arange(len(way)), way[:, 0])
            axes.plot(*points, color=color, linewidth=0.6, alpha=0.7, rasterized=True, zorder=2)
        if flat:
            axes.plot(*goal, "*", color=color, markersize=9, markeredgecolor="black", markeredgewidth=0.5, zorder=6)
        elif goals.shape[-1] == 1:
            axes.axhline(goal[0], color=color, linewidth=0.8, linestyle="--")
    if not flat:
        axes.set(xlabel="steps", ylabel="value" if goals.shape[-1] == 1 else "distance to the goal")
        axes.margins(x=0)
    elif geometry is None:
        axes.set_aspect("equal", adjustable="datalim")
    axes.set_title(title, size=STYLE["font.size"])
    handles = [Line2D([], [], color=color, linewidth=1.4) for color in palette]
    figure.legend(handles, list(names), loc="outside lower center", ncols=min(4, len(names)), title="goal")
    return figure


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
    maps = ((visits, "part of all states", "log"), (skills, "skills that come here", "linear"))
    for axes, (values, label, norm) in zip(places, maps, strict=True):
        drawn = np.where(values > 0, values, np.nan).T
        mesh = axes.pcolormesh(*edges, drawn, norm=norm, cmap="viridis", rasterized=True)
        axes.set(xlabel=grid[0].name, ylabel=grid[1].name, facecolor=VOID)
        bar = figure.colorbar(mesh, ax=axes, label=label)
        if norm == "linear":
            bar.locator = matplotlib.ticker.MaxNLocator(integer=True, nbins=8)
        if geometry is not None:
            axes.add_patch(PathPatch(wall_path(geometry), fill=False, edgecolor="black", linewidth=1))
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
    kept = np.square(points).sum(-1).mean()  # Of the features' squared length, which is 1.
    about = f"alignment {alignment:.2f}, uniformity {uniformity:.2f}; {100 * kept:.0f} % in these three directions"
    axes.set_title(f"{title}\n{about}", size=STYLE["font.size"])
    _skill_legend(figure, names, palette)
    return figure


def _skill_legend(figure: Figure, names: Sequence[int], palette: Sequence[str]) -> None:
    handles = [Line2D([], [], color=palette[name], linewidth=1.4) for name in names]
    figure.legend(handles, [str(name) for name in names], loc="outside lower center", ncols=min(8, len(names)),
                  title="skill", columnspacing=1.0, handlelength=1.2)  # fmt: skip
