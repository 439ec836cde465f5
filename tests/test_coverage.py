"""Coverage against naive loops, MuJoCo's own quantities and mazes counted by hand."""

import math

import numpy as np
import pytest

from becl import envs
from becl.envs import maze
from becl.errors import UserError
from becl.measure.coverage import Axis, Coverage, Grid, grid_of


def pair(obs):
    return obs[:, :2]


SMALL = Grid((Axis("a", -1.0, 1.0, 4), Axis("b", 0.0, 3.0, 3)), pair)


def simulated(name, steps=40, num_envs=4):
    """Observations after some random steps, and MuJoCo's model and data of the same moment."""
    simulations = envs.make(name, num_envs, seed=5, threads=1)
    obs = simulations.reset()
    random = np.random.default_rng(0)
    for _ in range(steps):
        action = random.uniform(-1, 1, (num_envs, simulations.spec.action_dim)).astype(np.float32)
        obs = simulations.step(action).next_obs
    data = [simulations.data(number) for number in range(num_envs)]
    simulations.close()
    return obs, simulations.model, data


def angle_between(a, b):
    return np.abs((a - b + np.pi) % (2 * np.pi) - np.pi)


@pytest.mark.parametrize("name", [*envs.DOMAINS, "square_a", "square_tree"])
def test_cells_are_those_of_a_naive_loop(name):
    grid = grid_of(name)
    obs_dim = envs.DOMAINS[name].obs_dim if name in envs.DOMAINS else 2
    obs = np.random.default_rng(0).normal(0, 3, (500, obs_dim)).astype(np.float32)
    expected = []
    for values in grid.coordinates(obs).tolist():
        cell = 0
        for value, axis in zip(values, grid.axes, strict=True):
            number = math.floor((value - axis.low) / (axis.high - axis.low) * axis.bins)
            cell = cell * axis.bins + min(max(number, 0), axis.bins - 1)
        expected.append(cell)
    np.testing.assert_array_equal(grid.cells(obs), expected)
    assert grid.size == math.prod(axis.bins for axis in grid.axes)


def test_edges_and_values_outside():
    obs = np.array([[-1.0, 0.0], [-9.0, -9.0], [-0.5, 0.0], [-0.51, 0.99], [1.0, 3.0], [np.inf, 1e30], [0.0, 1.0]])
    np.testing.assert_array_equal(SMALL.cells(obs), [0, 0, 3, 0, 11, 11, 7])


def test_walker_coordinates_are_mujocos():
    obs, model, data = simulated("walker_run")
    height, pitch, velocity = grid_of("walker_run").coordinates(obs).T
    torso, rootx, rooty = model.body("torso").id, model.joint("rootx"), model.joint("rooty")
    np.testing.assert_allclose(height, [one.xpos[torso, 2] for one in data], rtol=1e-6)
    np.testing.assert_allclose(velocity, [one.qvel[rootx.dofadr[0]] for one in data], rtol=1e-6)
    turned = np.array([one.qpos[rooty.qposadr[0]] for one in data])
    assert np.all(angle_between(pitch, turned) < 1e-5)
    assert np.ptp(velocity) > 0.1
    assert np.ptp(pitch) > 0.1


def test_quadruped_coordinates_are_mujocos():
    obs, model, data = simulated("quadruped_walk")
    coordinates = grid_of("quadruped_walk").coordinates(obs)
    for row, one in zip(coordinates, data, strict=True):
        forward, sideways, _ = one.sensor("velocimeter").data
        np.testing.assert_allclose(row, [forward, sideways, one.xmat[model.body("torso").id, 8]], rtol=1e-6)
    assert np.ptp(coordinates, axis=0).min() > 0.1


def test_jaco_coordinates_are_mujocos_and_lie_in_the_box():
    obs, model, data = simulated("jaco_reach_top_left")
    grid = grid_of("jaco_reach_top_left")
    coordinates = grid.coordinates(obs)
    pinch = model.site("jaco_arm/jaco_hand/pinchsite").id
    np.testing.assert_allclose(coordinates, [one.site_xpos[pinch] for one in data], rtol=1e-5)
    for values, axis in zip(coordinates.T, grid.axes, strict=True):
        assert np.all((axis.low < values) & (values < axis.high))
        assert (axis.high - axis.low) / axis.bins == pytest.approx(0.04)


@pytest.mark.parametrize(
    ("name", "bins", "reachable"),
    [
        ("square_a", (100, 100), 6800),  # 17 of 25 squares, 400 bins each.
        ("square_d", (140, 80), 28 * 400),  # 22 squares and 6 enclosed voids.
        ("square_tree", (260, 140), 31 * 400),
        ("square_bottleneck", (100, 100), 100 * 100),
        ("square_large", (100, 100), 100 * 100),
        ("square_corridor", (220, 20), 11 * 400),
    ],
)
def test_mazes_have_the_published_bins_and_denominator(name, bins, reachable):
    grid = grid_of(name)
    assert tuple(axis.bins for axis in grid.axes) == bins
    assert grid.reachable == reachable
    (x_low, x_high, y_low, y_high), (x, y) = maze.geometry(name).bounds, grid.axes
    assert (x.low, x.high, y.low, y.high) == (x_low, x_high, y_low, y_high)


@pytest.mark.parametrize(("name", "ceiling"), [("square_a", 1.0), ("square_d", 22 / 28), ("square_large", 1.0)])
def test_a_fully_visited_maze_reaches_its_ceiling(name, ceiling):
    fine = (np.arange(40) + 0.5) / 40 - 0.5
    within = np.stack(np.meshgrid(fine, fine), -1).reshape(-1, 2)
    coverage = Coverage(grid_of(name), 1)
    for cell in maze.geometry(name).cells:
        coverage.add(within + cell)
    fraction = coverage.fraction()
    assert fraction is not None
    np.testing.assert_allclose(fraction, [ceiling])


def test_counts_are_distinct_cells_of_each_seed_apart():
    random = np.random.default_rng(1)
    coverage = Coverage(SMALL, 2)
    seen = [set(), set()]
    for _ in range(10):
        obs = random.normal(0.0, 0.4, (6, 3))
        obs[3:, 1] += 2.0  # The second seed's environments are elsewhere.
        coverage.add(obs)
        for number, cell in enumerate(SMALL.cells(obs).tolist()):
            seen[number // 3].add(cell)
        np.testing.assert_array_equal(coverage.ever(), [len(cells) for cells in seen])
        for row, cells in zip(coverage.visited, seen, strict=True):
            assert set(np.flatnonzero(row).tolist()) == cells
    assert seen[0] != seen[1]
    assert coverage.fraction() is None


def test_forgetting_clears_what_is_recent_and_nothing_else():
    random = np.random.default_rng(2)
    coverage = Coverage(SMALL, 3)
    before = coverage.ever()
    for _ in range(5):
        coverage.forget()
        np.testing.assert_array_equal(coverage.recent(), 0)
        np.testing.assert_array_equal(coverage.ever(), before)
        obs = random.uniform(-1, 3, (6, 2))
        coverage.add(obs)
        expected = [len(set(cells)) for cells in SMALL.cells(obs).reshape(3, 2).tolist()]
        np.testing.assert_array_equal(coverage.recent(), expected)
        assert np.all(coverage.ever() >= before)
        assert np.all(coverage.ever() >= coverage.recent())
        before = coverage.ever()


def test_the_two_arrays_are_all_there_is_to_save():
    random = np.random.default_rng(3)
    first, second = random.uniform(-1, 3, (2, 4, 2))
    whole, resumed = Coverage(SMALL, 2), Coverage(SMALL, 2)
    whole.add(first)
    resumed.visited[:], resumed.visited_recently[:] = whole.visited, whole.visited_recently
    for coverage in (whole, resumed):
        coverage.add(second)
    np.testing.assert_array_equal(resumed.ever(), whole.ever())
    np.testing.assert_array_equal(resumed.recent(), whole.recent())


@pytest.mark.parametrize("name", [*envs.DOMAINS, *envs.names(), *maze.names()])
def test_every_environment_has_a_grid(name):
    grid = grid_of(name)
    assert (grid.reachable is not None) == (name in maze.names())


def test_an_unknown_name_is_told_what_is_allowed():
    with pytest.raises(UserError, match="did you mean 'walker_run'"):
        grid_of("walker_runn")
