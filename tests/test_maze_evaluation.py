"""Maze metrics: paths drawn by hand, invariances, and a random policy's published numbers."""

import functools
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from becl.envs.maze import Geometry, Maze, MazeState, geometry
from becl.measure.estimators import particle_entropy
from becl.measure.maze import maze_metrics

SQUARE = geometry("square_a")
VOID = (1.0, 0.0)  # Between two corridors of square_a.


@functools.cache
def random_runs(name: str) -> np.ndarray:
    """Uniform random actions from the start of the papers' figures: 5 runs of 10 "skills"."""
    env = Maze(name)
    batch = (5, 10, 20)
    start = jnp.broadcast_to(jnp.asarray(env.geometry.figure_start, jnp.float32), (*batch, 2))

    def step(state, key):
        action_key, noise_key = jax.random.split(key)
        action = jax.random.uniform(action_key, (*batch, 2), minval=-1.0, maxval=1.0)
        state = env.step(state, action, env.noise(noise_key, *batch))
        return state, state.position

    state = MazeState(start, jnp.zeros(batch, jnp.int32))
    keys = jax.random.split(jax.random.key(0), env.episode_length)
    _, positions = jax.lax.scan(step, state, keys)
    return np.asarray(jnp.moveaxis(jnp.concatenate([start[None], positions]), 0, 3))


def naive_metrics(paths: np.ndarray, plan: Geometry) -> dict[str, float]:
    """The parts that are not estimators, one state at a time."""
    distance = {tuple(cell): d for cell, d in zip(plan.cells.tolist(), plan.distance, strict=True)}
    edge = 2 / 3 * max(distance.values())
    everywhere, per_skill, cells, far, walked, outside = set(), [], set(), 0, [], 0
    for skill_paths in paths.astype(np.float64):
        bins, far_ends = set(), 0
        for path in skill_paths:
            for t, (x, y) in enumerate(path):
                cell = (round(x), round(y))
                if cell not in distance:
                    outside += 1
                    continue
                bins.add((int((x + 100.5) * 10), int((y + 100.5) * 10)))
                cells.add(cell)
                if t == len(path) - 1:
                    walked.append(distance[cell])
                    far_ends += distance[cell] >= edge
        everywhere |= bins
        per_skill.append(len(bins))
        far += far_ends > len(skill_paths) / 2
    total = 100 * len(distance)
    return {
        "coverage": len(everywhere) / total,
        "coverage_per_skill": float(np.mean(per_skill)) / total,
        "cells": len(cells),
        "far": far,
        "geodesic": float(np.mean(walked)),
        "outside": outside / paths[..., 0].size,
    }


@pytest.mark.parametrize("name", ["square_a", "square_tree", "square_bottleneck"])
def test_counts_are_the_definition(name):
    rng = np.random.default_rng(0)
    plan = geometry(name)
    # Positions all over the maze and somewhat beyond; the last skills mostly end in the last cells.
    cells = plan.cells[rng.integers(0, len(plan.cells), (4, 5, 30))].astype(float)
    cells[2:, :, -1] = plan.cells[np.argsort(plan.distance)[-1 - rng.integers(0, 5, (2, 5))]]
    paths = cells + rng.uniform(-0.49, 0.49, cells.shape) * np.where(rng.random((4, 5, 30, 1)) < 0.1, 3, 1)
    metrics = maze_metrics(paths, plan)
    expected = naive_metrics(paths, plan)
    assert expected["far"] >= 1
    assert expected["outside"] > 0
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)


def test_paths_drawn_by_hand():
    # Skill 0 walks down the left column one cell a step, skill 1 goes to the far corner (4, 0).
    down = [(0, -0.5), (0.05, -1), (0.05, -2), (0.05, -3), (0.05, -4)]
    across = [(0, -0.5), (0.05, -4), (2.05, -4), (4.05, -4), (4.05, 0)]
    paths = np.array([[down] * 3, [across] * 3], float) + 1e-3
    metrics = maze_metrics(paths, SQUARE)
    del metrics["knn_states"]  # Decided by ties here.
    assert metrics == pytest.approx(
        {
            # Four equally likely states a skill, of which both share the corner (0, -4).
            "entropy": np.log(8) - np.log(2) / 4,
            "mutual_information": 0.75 * np.log(2),
            "accuracy": 7 / 8,
            # Two copies of the own end, three of the other.
            "knn_final": 0.0,
            "coverage": 8 / 1700,
            "coverage_per_skill": 5 / 1700,
            "cells": 8,
            "far": 1,
            "geodesic": (4 + 12) / 2,
            "outside": 0.0,
        }
    )


def test_far_needs_most_episodes_two_thirds_of_the_way():
    ends = np.array([[(4, -4)] * 2 + [(3, -4)], [(4, 0)] + [(0, 0)] * 2, [VOID] * 2 + [(4, 0)]], float)
    paths = np.stack([np.broadcast_to(SQUARE.figure_start, ends.shape), ends], axis=2)
    # Distances 8 and 7 of 12: the first skill is far; two ends in the void leave the third near.
    assert maze_metrics(paths, SQUARE)["far"] == 1
    tie = paths[:1, [0, 2]]
    assert maze_metrics(tie, SQUARE)["far"] == 0


def test_bins_of_a_cell_are_a_hundred():
    line = (np.arange(100) + 0.5) / 100 - 0.5
    grid = np.stack(np.meshgrid(line, line), axis=-1).reshape(1, 1, -1, 2)
    edges = np.array([[[[-0.5, -0.5], [0.5, 0.5], [0.5, -0.5], [-0.5, 0.5]]]])
    paths = np.concatenate([grid, edges], axis=2)
    assert maze_metrics(paths, SQUARE)["coverage"] == pytest.approx(100 / 1700)
    assert maze_metrics(paths, SQUARE)["cells"] == 1


def test_states_outside_only_count_as_outside():
    paths = random_runs("square_a")[0]
    steps = paths.shape[2]
    # Every second state a visit to the void, the starts and the ends kept.
    void = np.broadcast_to(np.array(VOID, paths.dtype), (*paths.shape[:2], steps - 1, 2))
    detours = np.concatenate([paths[:, :, :1], np.empty_like(paths[:, :, 1:]).repeat(2, 2)], axis=2)
    detours[:, :, 1::2] = void
    detours[:, :, 2::2] = paths[:, :, 1:]
    expected = maze_metrics(paths, SQUARE)
    metrics = maze_metrics(detours, SQUARE)
    assert metrics.pop("outside") == pytest.approx((steps - 1) / (2 * steps - 1))
    assert expected.pop("outside") == 0.0
    assert metrics == pytest.approx(expected)


def test_ending_outside_everywhere_gives_no_distance():
    paths = np.broadcast_to(np.array([(0, -0.5), (0, -1), VOID], float), (2, 3, 3, 2))
    metrics = maze_metrics(paths, SQUARE)
    assert metrics["far"] == 0
    assert np.isnan(metrics["geodesic"])
    assert np.isnan(metrics["knn_final"])


def test_order_of_skills_and_episodes_does_not_matter():
    paths = random_runs("square_a")[1]
    rng = np.random.default_rng(1)
    shuffled = paths[rng.permutation(10)][:, rng.permutation(20)]
    assert maze_metrics(shuffled, SQUARE) == pytest.approx(maze_metrics(paths, SQUARE))


def test_the_start_says_nothing_about_skills():
    # Skills that differ in their start alone are not told apart.
    paths = np.zeros((3, 4, 6, 2))
    paths[:, :, 0, 1] = -np.arange(3)[:, None]
    metrics = maze_metrics(paths, SQUARE)
    assert metrics["mutual_information"] == pytest.approx(0.0, abs=1e-12)
    assert metrics["accuracy"] == pytest.approx(1 / 3)


# Means of five repeats measured in the published environment, and how far one's own five may be:
# about three standard errors of the difference.
PUBLISHED = {
    "square_a": {
        "coverage": (0.654, 0.04),
        "mutual_information": (0.147, 0.02),
        "entropy": (4.73, 0.1),
        "accuracy": (0.185, 0.015),
        "geodesic": (3.16, 0.35),
        "cells": (16.8, 1.5),
        "far": (0, 0),
        "knn_states": (0.10, 0.02),
        "knn_final": (0.11, 0.04),
    },
    "square_tree": {
        "coverage": (0.425, 0.04),
        "mutual_information": (0.184, 0.03),
        "entropy": (4.86, 0.12),
        "accuracy": (0.196, 0.02),
        "geodesic": (3.59, 0.4),
        "cells": (28.0, 2.2),
        "far": (0, 0),
        "knn_states": (0.10, 0.02),
        "knn_final": (0.10, 0.05),
    },
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_random_policy_has_the_published_numbers(name):
    runs = [maze_metrics(paths, geometry(name)) for paths in random_runs(name)]
    for metric, (value, tolerance) in PUBLISHED[name].items():
        mean = np.mean([run[metric] for run in runs])
        assert mean == pytest.approx(value, abs=tolerance), metric


def test_random_policy_has_the_published_particle_entropy():
    """Ten trajectories a skill, each a vector of 51 x-values and 51 y-values."""
    vectors = [np.swapaxes(run[:, :10], -1, -2).reshape(100, 102) for run in random_runs("square_a")]
    assert np.mean([particle_entropy(v) for v in vectors]) == pytest.approx(2.32, abs=0.06)


def test_metrics_are_quick():
    paths = random_runs("square_a")[0]
    begin = time.thread_time()  # Of this process alone, however busy the machine is.
    maze_metrics(paths, SQUARE)
    assert time.thread_time() - begin < 0.5
