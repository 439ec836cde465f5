"""The mazes against the published moves, an independent scalar implementation, and their own walls."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from becl.envs import maze

# maze, position, displacement, result with a pull-back of 0.005 under the leaking and the exact rule.
MOVES = [
    ("square_a", (0, 0), (0.3, 0.2), (0.3, 0.2)),
    ("square_a", (0, 0), (0.95, 0), (0.495, 0)),
    ("square_a", (0, 0), (-0.9, -0.6), (-0.495, -0.6)),
    ("square_a", (0, -0.5), (0, -0.95), (0, -1.45)),
    ("square_a", (0, -0.5), (0.8, -0.95), (0.495, -1.45)),
    ("square_a", (0.4, -2.2), (0.5, 0.3), (0.9, -1.9)),
    ("square_a", (0.4, -2.2), (0.6, -0.9), (1.0, -2.495)),
    ("square_a", (0.2, 0.3), (0.9, 0.9), (0.495, 0.495)),
    ("square_a", (4.2, -4.2), (0.9, -0.9), (4.495, -4.495)),
    ("square_a", (2.3, -2.3), (0.7, 0.9), (2.495, -1.4)),
    ("square_a", (0.45, -3.4), (0.3, -0.4), (0.495, -3.8)),
    ("square_tree", (0.1, -1.7), (-0.95, -0.95), (-0.85, -2.495)),
    ("square_tree", (4.3, -4.2), (0.9, 0.9), (5.2, -3.505)),
    ("square_bottleneck", (4.3, 1.2), (0.6, 0.4), (4.9, 1.495)),
    ("square_bottleneck", (4.3, 1.2), (0.6, -0.1), (4.9, 1.1)),
]
LEAK = ("square_a", (0.44543, -1.55923), (0.6655, 0.7227), (1.11093, -0.83653))


def _move(name, position, displacement, leak):
    plan = maze.geometry(name)
    rebound = jnp.full(2, 0.005)
    return maze.move(plan, jnp.array(position, float), jnp.array(displacement, float), rebound, leak)


@pytest.mark.parametrize("leak", [False, True])
@pytest.mark.parametrize(("name", "position", "displacement", "expected"), MOVES)
def test_published_moves(name, position, displacement, expected, leak):
    np.testing.assert_allclose(_move(name, position, displacement, leak), expected, atol=2e-5)


def test_corner_leak_is_closed_unless_asked_for():
    name, position, displacement, void = LEAK
    np.testing.assert_allclose(_move(name, position, displacement, True), void, atol=1e-5)
    assert maze.geometry(name).locate(np.array(void)) == -1
    inside = np.asarray(_move(name, position, displacement, False))
    assert maze.geometry(name).locate(inside) >= 0


def test_a_move_that_ends_on_a_wall_is_stopped_by_it():
    """5.2 + 0.3 rounds to the wall at 5.5 itself, whose half rounds to the cell outside."""
    plan = maze.geometry("square_corridor")
    steps = np.nextafter(np.full(8, 0.3, np.float32), np.float32(1))
    for index in range(8):
        steps[index:] = np.nextafter(steps[index:], np.float32(0))
    position = jnp.broadcast_to(jnp.array([5.2, 0.0]), (8, 2))
    displacement = jnp.stack([jnp.asarray(steps), jnp.zeros(8)], 1)
    after = maze.move(plan, position, displacement, jnp.full((8, 2), 0.005))
    assert np.all(plan.locate(np.asarray(after)) >= 0)


def _walk(plan, position, displacement, rebound):
    """Float64 reference: cut the segment at every wall edge by plain geometry, nothing of the grid is used."""
    position, displacement = np.array(position, float), np.array(displacement, float)
    for hit in range(2):
        best, axis, at = 2.0, None, 0.0
        for (x0, y0), (x1, y1) in plan.walls:
            normal = 0 if x0 == x1 else 1
            level, low, high = (x0, y0, y1) if normal == 0 else (y0, x0, x1)
            if displacement[normal] == 0:
                continue
            time = (level - position[normal]) / displacement[normal]
            along = position[1 - normal] + time * displacement[1 - normal]
            if 0 <= time <= 1 and low <= along <= high and time < best:
                best, axis, at = time, normal, level
        if axis is None:
            break
        sign = np.sign(displacement[axis])
        position = position + best * displacement
        position[axis] = at - sign * rebound[hit]
        displacement = (1 - best) * displacement
        displacement[axis] = 0.0
    return position + displacement


@pytest.mark.parametrize("name", maze.names())
def test_moves_equal_segment_against_wall_geometry(name):
    plan = maze.geometry(name)
    rng = np.random.default_rng(0)
    count = 400
    cell = plan.cells[rng.integers(len(plan.cells), size=count)]
    position = cell + rng.uniform(-0.49, 0.49, (count, 2))
    displacement = rng.uniform(-0.95, 0.95, (count, 2))
    rebound = rng.uniform(0.001, 0.01, (count, 2))
    inputs = [jnp.array(x, jnp.float32) for x in (position, displacement, rebound)]
    got = maze.move(plan, inputs[0], inputs[1], inputs[2])
    expected = [_walk(plan, *row) for row in zip(position, displacement, rebound, strict=True)]
    np.testing.assert_allclose(got, np.array(expected), atol=1e-4)


@pytest.mark.parametrize("name", maze.names())
def test_a_million_random_steps_never_leave(name):
    env = maze.Maze(name)
    walkers, steps = 2000, 500

    def step(state, key):
        action_key, noise_key = jax.random.split(key)
        # Corners and walls are met more often with large moves: half of the actions are saturated.
        action = jnp.clip(jax.random.uniform(action_key, (walkers, 2), minval=-2.0, maxval=2.0), -1, 1)
        state = env.step(state, action, env.noise(noise_key, walkers))
        return state, state.position

    start = env.reset(jax.random.key(0), walkers)
    assert np.all(env.geometry.locate(np.asarray(start.position)) >= 0)
    keys = jax.random.split(jax.random.key(1), steps)
    _, positions = jax.jit(lambda s: jax.lax.scan(step, s, keys))(start)
    positions = np.asarray(positions)
    cells = env.geometry.locate(positions)
    assert cells.min() >= 0
    # No walker jumps through a wall either: consecutive cells are at most two open edges apart.
    distance = env.geometry.distance[cells]
    assert np.abs(np.diff(distance, axis=0)).max() <= 2


@pytest.mark.parametrize("leak", [False, True])
def test_jit_changes_nothing_and_same_key_same_path(leak):
    env = maze.Maze("square_tree", leak=leak)

    def rollout(key):
        state = env.reset(key, 64)
        for step_key in jax.random.split(key, 20):
            action = jax.random.uniform(step_key, (64, 2), minval=-1.0, maxval=1.0)
            state = env.step(state, action, env.noise(step_key, 64))
        return state.position

    plain, compiled = rollout(jax.random.key(3)), jax.jit(rollout)(jax.random.key(3))
    np.testing.assert_array_equal(jax.jit(rollout)(jax.random.key(3)), compiled)
    np.testing.assert_allclose(plain, compiled, atol=1e-5)


def test_start_regions_and_distances():
    square = maze.geometry("square_a")
    np.testing.assert_allclose([square.start_low, square.start_high], [(-0.45, -0.5), (0.45, 0.45)])
    assert np.bincount(square.distance).tolist() == [1, 1, 1, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1]
    tree = maze.geometry("square_tree")
    assert np.bincount(tree.distance).tolist() == [1, 1, 1, 2, 2, 2, 2, 2, 2, 4, 4, 4, 4]
    bottleneck = maze.geometry("square_bottleneck")
    np.testing.assert_allclose([bottleneck.start_low, bottleneck.start_high], [(-0.45, -0.45), (0.5, 0.5)])
    assert bottleneck.distance.max() == 23
    corridor = maze.geometry("square_corridor")
    np.testing.assert_allclose([corridor.start_low, corridor.start_high], [(-0.5, -0.45), (0.5, 0.45)])
    np.testing.assert_allclose(square.figure_start, (0, -0.5))
