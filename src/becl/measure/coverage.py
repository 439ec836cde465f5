"""How much of an environment's state space a run has visited, counted in cells of a grid over a few coordinates.

A robot's grid covers the coordinates that its tasks are about. How many of its cells can be reached is not known, so
only counts can be compared. A maze's grid is that of the published table (ExDM, arXiv 2502.07279), so that fractions
can be compared as well.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from becl import envs
from becl.envs import maze
from becl.errors import unknown

Obs = Float[np.ndarray, "n o"]
Coordinates = Float[np.ndarray, "n axes"]

# As in the code of the published table, along an axis: it has bins of 0.05 and 0.1 where the text says 0.01.
BINS_PER_UNIT = {"square_bottleneck": 10, "square_large": 10}
BINS_PER_UNIT_ELSEWHERE = 20


class Axis(NamedTuple):
    """A coordinate cut into equal bins. Values outside fall into the bins at the ends."""

    name: str
    low: float
    high: float
    bins: int


@dataclass(frozen=True)
class Grid:
    axes: tuple[Axis, ...]
    coordinates: Callable[[Obs], Coordinates]
    """Maps observations, which must be finite (the environments' are), to values on the axes."""
    reachable: int | float | None = None
    """How many cells count as the whole, if that is known."""

    @functools.cached_property
    def size(self) -> int:
        """Number of cells."""
        return math.prod(axis.bins for axis in self.axes)

    @functools.cached_property
    def _columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """For each axis: low end, bins per unit, index of the last bin, and cells from one bin to the next."""
        _, low, high, bins = (np.array(column) for column in zip(*self.axes, strict=True))
        return low, bins / (high - low), bins - 1.0, np.cumprod([1, *bins[:0:-1]])[::-1]

    def cells(self, obs: Obs) -> Int[np.ndarray, " n"]:
        """The number of the cell that each observation lies in; the last axis varies fastest."""
        low, bins_per_unit, last, stride = self._columns
        scaled = (self.coordinates(obs) - low) * bins_per_unit
        # Nothing is negative any more, so cutting off the fraction rounds down.
        return np.minimum(np.maximum(scaled, 0.0), last).astype(np.int64) @ stride


class Coverage:
    """The cells that each seed has visited. Only the two arrays change: save them, and write them back to continue."""

    def __init__(self, grid: Grid, seeds: int):
        self.grid, self.seeds = grid, seeds
        self.visited: Bool[np.ndarray, "seeds cells"] = np.zeros((seeds, grid.size), bool)
        self.visited_recently: Bool[np.ndarray, "seeds cells"] = np.zeros((seeds, grid.size), bool)

    def add(self, obs: Obs) -> None:
        """Counts the observations of all environments of all seeds; environments of a seed are next to each other."""
        cells = self.grid.cells(obs).reshape(self.seeds, -1)
        rows = np.arange(self.seeds)[:, None]
        self.visited[rows, cells] = True
        self.visited_recently[rows, cells] = True

    def forget(self) -> None:
        """Restarts the recent count."""
        self.visited_recently[:] = False

    def ever(self) -> Int[np.ndarray, " seeds"]:
        """Number of cells visited since the beginning."""
        return np.count_nonzero(self.visited, axis=1)

    def recent(self) -> Int[np.ndarray, " seeds"]:
        """Number of cells visited since `forget` was last called."""
        return np.count_nonzero(self.visited_recently, axis=1)

    def fraction(self) -> Float[np.ndarray, " seeds"] | None:
        """Fraction of the reachable cells visited since the beginning; None if their number is not known."""
        return None if self.grid.reachable is None else self.ever() / self.grid.reachable

    def columns(self) -> dict[str, list[int] | list[float]]:
        """All counts by name, one value per seed; `coverage` only if the reachable cells are known."""
        fraction = self.fraction()
        counts = {"cells": self.ever().tolist(), "cells_now": self.recent().tolist()}
        return counts if fraction is None else counts | {"coverage": fraction.tolist()}


def walker(obs: Obs) -> Coordinates:
    """Height of the torso, its pitch (0 upright, positive forwards) and its horizontal velocity."""
    # The x- and z-component of the torso's x-axis come first; velocities follow the height, the vertical one first.
    return np.stack([obs[:, 14], np.arctan2(obs[:, 1], obs[:, 0]), obs[:, 16]], axis=1)


def quadruped(obs: Obs) -> Coordinates:
    """Velocity of the torso forward and sideways in its own frame, and the vertical component of its z-axis."""
    return obs[:, [44, 45, 47]]  # After angles and velocities of 16 hinges and 12 activations.


def jaco(obs: Obs) -> Coordinates:
    """Position of the fingers' pinch point."""
    return obs[:, 30:33]  # After 12 + 6 + 6 numbers of the arm's joints and 6 of the fingers'.


def position(obs: Obs) -> Coordinates:
    """A maze's observation is the position itself."""
    return obs


ROBOTS = {
    "walker": Grid(
        (Axis("height", 0.0, 2.0, 20), Axis("pitch", -np.pi, np.pi, 24), Axis("velocity", -5.0, 5.0, 20)),
        walker,
    ),
    "quadruped": Grid(
        (Axis("forward", -4.0, 4.0, 16), Axis("sideways", -4.0, 4.0, 16), Axis("upright", -1.0, 1.0, 8)),
        quadruped,
    ),
    # Bins of 4 cm over all that the arm can reach from its base at (0, 0.4, 0), above the table.
    "jaco": Grid(
        (Axis("x", -0.96, 0.96, 48), Axis("y", -0.56, 1.36, 48), Axis("z", 0.0, 1.24, 31)),
        jaco,
    ),
}


def maze_grid(name: str) -> Grid:
    """Square bins over a maze's bounding box.

    `reachable` is the published table's denominator, so that fractions can be compared with its numbers: the bins of
    the bounding box times the part of its area that walls enclose, including voids within the maze (square_d has 6 of
    them beside 22 squares that can be entered, so that no run gets beyond 22/28 there).
    """
    from scipy.ndimage import binary_fill_holes

    plan = maze.geometry(name)
    per_unit = BINS_PER_UNIT.get(name, BINS_PER_UNIT_ELSEWHERE)
    x_low, x_high, y_low, y_high = plan.bounds
    axes = tuple(
        Axis(axis, low, high, round((high - low) * per_unit))
        for axis, low, high in (("x", x_low, x_high), ("y", y_low, y_high))
    )
    enclosed = int(np.sum(np.asarray(binary_fill_holes(plan.inside))))  # Unit squares.
    return Grid(axes, position, reachable=enclosed * per_unit**2)


def grid_of(name: str) -> Grid:
    """The grid of an environment: a robot (`walker`), one of its tasks (`walker_run`) or a maze (`square_a`)."""
    if name in envs.DOMAINS or name in envs.names():
        return ROBOTS[name.partition("_")[0]]
    if name in maze.names():
        return maze_grid(name)
    raise unknown("environment", name, [*envs.DOMAINS, *envs.names(), *maze.names()])
