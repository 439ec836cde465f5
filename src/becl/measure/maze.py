"""Measures skills in a maze: how well they can be told apart, and how much of the maze they reach.

No number stands alone. A random policy covers most of a maze, and skills that hardly move are easy
to tell apart: read `mutual_information` or `accuracy` together with `coverage_per_skill`, `far` and
`geodesic`.

States outside the maze (the published dynamics leak through corners) are dropped everywhere except
from `outside`, which counts them, and from `far`: ending outside is not far.
"""

import numpy as np
from jaxtyping import Bool, Float, Int

from becl.envs.maze import FAR, Geometry
from becl.measure.estimators import knn_accuracy, plug_in

BINS_PER_CELL = 10  # Along an axis: coverage counts bins of 0.1 x 0.1.


def maze_metrics(paths: Float[np.ndarray, "skills episodes time 2"], geometry: Geometry) -> dict[str, float]:
    """All metrics of some episodes of every skill; the first state of an episode is its start.

    mutual_information, entropy, accuracy: `plug_in` of the states after the start.
    knn_states, knn_final: `knn_accuracy` of the states after the start, and of the final ones.
    coverage, coverage_per_skill: fraction of the maze's 0.1-bins visited by all skills together,
        and by one skill on average.
    cells: number of unit cells visited.
    far: number of skills most of whose episodes end at least FAR of the maze's largest distance
        from the start cell.
    geodesic: mean distance of final states from the start cell, in cells walked.
    outside: fraction of states outside the maze.

    With fewer than six episodes in all, `knn_final` is NaN; so is `geodesic` when every episode ends
    outside.
    """
    paths = np.asarray(paths, np.float64)
    cell = geometry.locate(paths)
    inside = cell >= 0
    skill, episode = _labels(paths.shape[:3])

    moved = inside.copy()
    moved[:, :, 0] = False
    final = np.zeros_like(inside)
    final[:, :, -1] = inside[:, :, -1]
    states = plug_in(paths[moved], skill[moved])

    visited = _visited(paths, cell, geometry)
    ends = cell[:, :, -1]
    distance = np.where(ends >= 0, geometry.distance[ends], np.nan)
    return {
        "mutual_information": states.mutual_information,
        "entropy": states.entropy,
        "accuracy": states.accuracy,
        "knn_states": knn_accuracy(paths[moved], skill[moved], episode[moved]),
        "knn_final": knn_accuracy(paths[final], skill[final], episode[final]),
        "coverage": float(visited.any(0).mean()),
        "coverage_per_skill": float(visited.mean()),
        "cells": float(len(np.unique(cell[inside]))),
        "far": float(_is_far(distance, geometry).sum()),
        "geodesic": float(distance[ends >= 0].mean()) if (ends >= 0).any() else float("nan"),
        "outside": float(1.0 - inside.mean()),
    }


def _labels(
    shape: tuple[int, int, int],
) -> tuple[Int[np.ndarray, "skills episodes time"], Int[np.ndarray, "skills episodes time"]]:
    """The skill, and the number of the episode among all skills', of every state."""
    skills, episodes, _ = shape
    episode = np.arange(skills * episodes).reshape(skills, episodes, 1)
    return np.broadcast_to(episode // episodes, shape), np.broadcast_to(episode, shape)


def _visited(
    paths: Float[np.ndarray, "skills episodes time 2"],
    cell: Int[np.ndarray, "skills episodes time"],
    geometry: Geometry,
) -> Bool[np.ndarray, "skills cells x y"]:
    """Which bins of which cells each skill has been in, including the start.

    Bins are counted from the corner of the state's own cell: a state on the cell's edge stays in it.
    """
    inside = cell >= 0
    corner = geometry.cells[cell] - 0.5
    bins = np.floor((paths - corner) * BINS_PER_CELL).astype(int)
    x, y = np.moveaxis(np.clip(bins, 0, BINS_PER_CELL - 1), -1, 0)
    visited = np.zeros((len(paths), len(geometry.cells), BINS_PER_CELL, BINS_PER_CELL), bool)
    skill, _ = _labels(cell.shape)
    visited[skill[inside], cell[inside], x[inside], y[inside]] = True
    return visited


def _is_far(distance: Float[np.ndarray, "skills episodes"], geometry: Geometry) -> Bool[np.ndarray, " skills"]:
    """Whether more than half of a skill's episodes end far away; a missing distance is not far."""
    return (distance >= FAR * geometry.distance.max()).mean(1) > 0.5
