"""Continuous 2-D mazes of unit cells (Campos et al. 2020), in pure JAX.

The agent sees its position and moves by a displacement; walls block the component that would cross them, so the agent
slides along. The only randomness of the dynamics is a pull-back of at most 0.01 after a hit. Nothing here is rewarded:
the mazes are where skills are looked at.

The published rule tests a slightly wrong cell when a move crosses two grid lines at almost the same moment and then
lets about one random step in 10^5 slip through a corner. By default the exact cell is tested (`leak=False`).
"""

import functools
import importlib.resources
import json
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from becl.envs.spec import EnvSpec

REACH = 0.95  # Displacement of a full action, in cells; below 1 so that a move crosses at most one line per axis.
REBOUND = 0.01  # Largest pull-back after hitting a wall, in cells.
CLEARANCE = 1e-5  # Smallest distance to a wall after a hit: keeps float32 positions strictly inside.
START_MARGIN = 0.05  # Start positions keep this distance from the walls of the start cell.
FAR = 2 / 3  # A skill is far when it ends beyond this fraction of the largest distance from the start.


class Geometry(NamedTuple):
    """A maze's floor plan. Cells are unit squares centred on integers, y is up."""

    name: str
    cells: Int[np.ndarray, "cells 2"]
    walls: Float[np.ndarray, "walls 2 2"]  # End points of unit edges.
    distance: Int[np.ndarray, " cells"]  # Steps from the start cell through open edges.
    start_low: Float[np.ndarray, "2"]
    start_high: Float[np.ndarray, "2"]
    figure_start: Float[np.ndarray, "2"]  # Where the papers' pictures start (the black dot).
    bounds: tuple[float, float, float, float]  # x_low, x_high, y_low, y_high
    origin: Int[np.ndarray, "2"]  # Cell of grid index (0, 0).
    inside: Bool[np.ndarray, "columns rows"]
    wall_right: Bool[np.ndarray, "columns rows"]  # An edge between a cell and its right neighbour.
    wall_above: Bool[np.ndarray, "columns rows"]

    def locate(self, positions: Float[np.ndarray, "*batch 2"]) -> Int[np.ndarray, "*batch"]:
        """Index of the cell each position lies in, -1 outside the maze."""
        index = np.full(self.inside.shape, -1)
        index[tuple((self.cells - self.origin).T)] = np.arange(len(self.cells))
        grid = np.rint(positions).astype(int) - self.origin
        valid = np.all((grid >= 0) & (grid < self.inside.shape), axis=-1)
        grid = np.where(valid[..., None], grid, 0)
        return np.where(valid, index[grid[..., 0], grid[..., 1]], -1)


@functools.cache
def _plans() -> dict[str, dict]:
    return json.loads(importlib.resources.files("becl.envs").joinpath("mazes.json").read_text())


def names() -> tuple[str, ...]:
    """All mazes."""
    return tuple(_plans())


@functools.cache
def geometry(name: str) -> Geometry:
    """The floor plan of a maze, with what the dynamics and the metrics look up precomputed."""
    plan = _plans()[name]
    cells = np.array(plan["cells"])
    # Two empty rings around the maze, so that a leaked agent finds no walls there.
    origin = cells.min(0) - 2
    shape = tuple(cells.max(0) - origin + 3)
    inside, wall_right, wall_above = (np.zeros(shape, bool) for _ in range(3))
    inside[tuple((cells - origin).T)] = True
    walls = []
    for x, low, high in plan["walls_v"]:
        walls.append([[x, low], [x, high]])
        wall_right[int(x - 0.5) - origin[0], int((low + high) / 2) - origin[1]] = True
    for low, high, y in plan["walls_h"]:
        walls.append([[low, y], [high, y]])
        wall_above[int((low + high) / 2) - origin[0], int(y - 0.5) - origin[1]] = True
    walls = np.array(walls)

    def open_sides(cell) -> dict[tuple[int, int], bool]:
        i, j = np.asarray(cell) - origin
        return {
            (1, 0): not wall_right[i, j],
            (-1, 0): not wall_right[i - 1, j],
            (0, 1): not wall_above[i, j],
            (0, -1): not wall_above[i, j - 1],
        }

    start = tuple(plan["start"])
    distance = {start: 0}
    queue = [start]
    for cell in queue:
        for (dx, dy), is_open in open_sides(cell).items():
            other = (cell[0] + dx, cell[1] + dy)
            if is_open and other not in distance:
                distance[other] = distance[cell] + 1
                queue.append(other)
    sides = open_sides(start)
    half = {side: 0.5 - START_MARGIN * (not is_open) for side, is_open in sides.items()}
    low, high = walls.min((0, 1)), walls.max((0, 1))
    return Geometry(
        name=name,
        cells=cells,
        walls=walls,
        distance=np.array([distance[tuple(cell)] for cell in cells]),
        start_low=np.subtract(start, [half[-1, 0], half[0, -1]]),
        start_high=np.add(start, [half[1, 0], half[0, 1]]),
        figure_start=np.array(start, float) - [0, 0.5 * sides[0, -1]],
        bounds=(float(low[0]), float(high[0]), float(low[1]), float(high[1])),
        origin=origin,
        inside=inside,
        wall_right=wall_right,
        wall_above=wall_above,
    )


class MazeState(NamedTuple):
    position: Float[Array, "*batch 2"]
    time: Int[Array, "*batch"]


@dataclass(frozen=True)
class Maze:
    """A maze as an environment: actions in [-1, 1], observation (x, y), episodes cut after `episode_length` steps."""

    name: str = "square_a"
    leak: bool = False
    episode_length: int = 50

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(obs_dim=2, action_dim=2, episode_length=self.episode_length)

    @property
    def geometry(self) -> Geometry:
        return geometry(self.name)

    def reset(self, key: PRNGKeyArray, *batch: int) -> MazeState:
        """Start uniformly in the start cell, away from its walls."""
        plan = self.geometry
        position = jax.random.uniform(key, (*batch, 2), minval=plan.start_low, maxval=plan.start_high)
        return MazeState(position, jnp.zeros(batch, jnp.int32))

    def noise(self, key: PRNGKeyArray, *batch: int) -> Float[Array, "*batch 2"]:
        """The random numbers of one step: pull-backs after a first and a second hit."""
        return jax.random.uniform(key, (*batch, 2), maxval=REBOUND)

    def step(
        self,
        state: MazeState,
        action: Float[Array, "*batch 2"],
        noise: Float[Array, "*batch 2"],
    ) -> MazeState:
        displacement = REACH * jnp.clip(action, -1.0, 1.0)
        position = move(self.geometry, state.position, displacement, noise, leak=self.leak)
        return MazeState(position, state.time + 1)


def move(
    plan: Geometry,
    position: Float[Array, "*batch 2"],
    displacement: Float[Array, "*batch 2"],
    rebound: Float[Array, "*batch 2"],
    leak: bool = False,
) -> Float[Array, "*batch 2"]:
    """Moves by a displacement of less than one cell per axis, blocked by walls.

    Each hit zeroes one component of what remains of the displacement, so two passes are all there can be.
    """
    resolve = _first_hit_leaking if leak else _first_hit
    for hit in range(2):
        position, displacement = resolve(plan, position, displacement, rebound[..., hit])
    return position + displacement


def _blocked(
    plan: Geometry, cell: Int[Array, "*batch 2"], direction: Float[Array, "*batch 2"]
) -> Bool[Array, "*batch 2"]:
    """Whether the edge of `cell` in the direction of travel is a wall, for each axis."""
    last = jnp.array(plan.inside.shape) - 1
    index = cell - plan.origin
    backward = (direction < 0).astype(index.dtype)
    right = jnp.clip(index - backward * jnp.array([1, 0]), 0, last)
    above = jnp.clip(index - backward * jnp.array([0, 1]), 0, last)
    return jnp.stack(
        [
            jnp.asarray(plan.wall_right)[right[..., 0], right[..., 1]],
            jnp.asarray(plan.wall_above)[above[..., 0], above[..., 1]],
        ],
        axis=-1,
    )


def _crossings(position, displacement):
    """Cells before and after, the line crossed on each axis and when (as a fraction of the move; 2 = never)."""
    before = jnp.round(position)
    after = jnp.round(position + displacement)
    direction = jnp.sign(displacement)
    line = before + 0.5 * direction
    crosses = after != before
    # A move that ends on a line crosses it at 1, not at a rounding error more.
    when = jnp.where(crosses, jnp.minimum((line - position) / jnp.where(crosses, displacement, 1.0), 1.0), 2.0)
    return before.astype(jnp.int32), after.astype(jnp.int32), direction, line, when


def _first_hit(plan, position, displacement, rebound):
    """Advances to the first wall in the way, testing each crossing in the cell that the move has reached by then."""
    before, after, direction, line, when = _crossings(position, displacement)
    x_first = when[..., 0] <= when[..., 1]
    # The axis crossed second is tested from the cell entered by crossing the first.
    between = jnp.where(jnp.stack([x_first, ~x_first], -1), after, before)  # The cell after the earlier crossing.
    test_x = jnp.where(x_first[..., None], before, between)
    test_y = jnp.where(x_first[..., None], between, before)
    wall = jnp.stack([_blocked(plan, test_x, direction)[..., 0], _blocked(plan, test_y, direction)[..., 1]], -1)
    hit = wall & (when <= 1.0)
    when_hit = jnp.where(hit, when, 2.0)
    return _stop_at_wall(position, displacement, rebound, when_hit, direction, line, cells=(before, after, when))


def _first_hit_leaking(plan, position, displacement, rebound):
    """The published rule: each crossing is tested in the cell 0.1 % before it, which is wrong near corners."""
    _, _, direction, line, when = _crossings(position, displacement)
    just_before = position[..., None, :] + 0.999 * when[..., :, None] * displacement[..., None, :]
    cell = jnp.round(just_before).astype(jnp.int32)
    wall = jnp.stack(
        [
            _blocked(plan, cell[..., 0, :], direction)[..., 0],
            _blocked(plan, cell[..., 1, :], direction)[..., 1],
        ],
        axis=-1,
    )
    when_hit = jnp.where(wall & (when <= 1.0), when, 2.0)
    return _stop_at_wall(position, displacement, rebound, when_hit, direction, line, cells=None)


def _stop_at_wall(position, displacement, rebound, when_hit, direction, line, cells):
    """Stops the axis that hits first at its wall; the other axis keeps the rest of its displacement."""
    # Ties go to down, left, right, up in this order.
    x_hits = (when_hit[..., 0] < when_hit[..., 1]) | ((when_hit[..., 0] == when_hit[..., 1]) & (direction[..., 1] > 0))
    is_axis = jnp.stack([x_hits, ~x_hits], -1)
    time = jnp.min(when_hit, -1, keepdims=True)
    hits = time <= 1.0
    stopped = line - direction * jnp.maximum(rebound, CLEARANCE)[..., None]
    slid = position + time * displacement
    if cells is not None:
        # Rounding must not carry the sliding axis over a line whose crossing was not tested yet.
        before, after, when = cells
        cell = jnp.where(when < time, after, before)
        slid = jnp.clip(slid, cell - (0.5 - CLEARANCE), cell + (0.5 - CLEARANCE))
    new_position = jnp.where(is_axis, stopped, slid)
    remaining = jnp.where(is_axis, 0.0, (1.0 - time) * displacement)
    return (
        jnp.where(hits, new_position, position),
        jnp.where(hits, remaining, displacement),
    )
