"""The loop: a function of its key, compiled once, seeds together as alone, and it learns."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from becl.envs.maze import Maze
from becl.experiments.maze_study import make_run
from becl.learning.onpolicy import OnPolicy, to_batch
from becl.learning.ppo import PPO
from becl.nn.networks import Network
from becl.objectives.registry import STUDIED
from becl.skills import Cube, NoSkill, OneHot, Sphere, skill_index

TINY = ["learner.network.hidden=16,16", "network.hidden=16,16", "episodes=20"]


def tiny(method: str, **changes) -> OnPolicy:
    return dataclasses.replace(make_run(method, "square_a", 4, TINY), **changes)


def leaves(tree):
    return [np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x)
            for x in jax.tree.leaves(tree)]  # fmt: skip


@pytest.mark.parametrize("method", STUDIED)
def test_a_run_is_a_function_of_its_key(method):
    run = tiny(method)
    train = jax.jit(lambda key: run.run(run.init(key), 3))
    one, again = (leaves(train(jax.random.key(5))) for _ in range(2))
    other = leaves(train(jax.random.key(6)))
    assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    assert all(np.all(np.isfinite(leaf)) for leaf in one)


def test_cycles_in_two_parts_equal_one():
    run = tiny("becl")
    train = jax.jit(run.run, static_argnums=1)
    whole, _ = train(run.init(jax.random.key(0)), 4)
    part, _ = train(run.init(jax.random.key(0)), 2)
    part, _ = train(part, 2)
    for a, b in zip(leaves(whole), leaves(part), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_seeds_together_equal_seeds_alone_for_a_cycle():
    run = tiny("becl")
    keys = jax.random.split(jax.random.key(0), 2)
    cycle = jax.jit(lambda key: run.update(run.init(key)))
    together, _ = jax.jit(jax.vmap(cycle))(keys)
    for index in range(2):
        alone, _ = cycle(keys[index])
        for a, b in zip(leaves(alone.learner), leaves(together.learner), strict=True):
            np.testing.assert_allclose(a, b[index], rtol=1e-3, atol=1e-4)


def test_one_trace_serves_all_seeds_and_cycles():
    traces = 0

    @dataclasses.dataclass(frozen=True)
    class Counting(Maze):
        def step(self, state, action, noise):
            nonlocal traces
            traces += 1
            return super().step(state, action, noise)

    run = tiny("diayn", env=Counting())
    train = jax.jit(run.run, static_argnums=1)
    for seed in range(3):
        state, _ = train(run.init(jax.random.key(seed)), 2)
        train(state, 2)
    assert traces == 2  # One for each of the two collections of a cycle.


def test_batch_rows_belong_together():
    run = tiny("becl")
    rollout = run.collect(run.init(jax.random.key(0)).learner, jax.random.key(1))
    batch = to_batch(rollout)
    for row in (0, 49, 50, 555, 999):
        episode, time = divmod(row, 50)
        assert batch.trajectory[row] == episode
        np.testing.assert_allclose(batch.progress[row], (time + 1) / 50)
        np.testing.assert_array_equal(batch.obs[row], rollout.obs[time, episode])
        expected = rollout.obs[time + 1, episode] if time < 49 else rollout.last_obs[episode]
        np.testing.assert_array_equal(batch.next_obs[row], expected)
        np.testing.assert_array_equal(batch.skill[row], rollout.skill[episode])
        np.testing.assert_allclose(batch.action[row], 2 * rollout.sample[time, episode] - 1, atol=1e-6)


def test_paths_start_where_told_and_belong_to_their_skill():
    run = tiny("becl")
    state = run.init(jax.random.key(0))
    paths = run.paths(state.learner, jax.random.key(1), 5, jnp.array([0.1, -0.2]))
    assert paths.shape == (4, 5, 51, 2)
    np.testing.assert_allclose(paths[:, :, 0], np.broadcast_to([0.1, -0.2], (4, 5, 2)), atol=1e-6)


def test_diayn_learns_to_be_told_apart():
    """Reward starts near 0 and must pass half of its maximum log 4 within 60 short cycles."""
    run = tiny("diayn", learner=PPO(network=Network((64, 64), "uniform")))
    _, metrics = jax.jit(run.run, static_argnums=1)(run.init(jax.random.key(0)), 60)
    assert metrics["reward"][0] < 0.2
    assert metrics["reward"][-5:].mean() > 0.5 * np.log(4)


@pytest.mark.parametrize("space", [NoSkill(), OneHot(7), Cube(5), Sphere(5)])
def test_every_skill_space(space):
    for draw in (space.sample, space.spread):
        skills = draw(jax.random.key(0), 500)
        assert skills.shape == (500, space.dim)
        np.testing.assert_array_equal(skills, draw(jax.random.key(0), 500))
        if isinstance(space, OneHot):
            np.testing.assert_array_equal(skills.sum(1), 1)
            assert np.bincount(skill_index(skills), minlength=7).min() > 40
        if isinstance(space, Cube):
            assert skills.min() >= 0
            assert skills.max() <= 1
            np.testing.assert_allclose(skills.mean(0), 0.5, atol=0.06)
        if isinstance(space, Sphere):
            np.testing.assert_allclose(np.linalg.norm(skills, axis=1), 1, rtol=1e-5)


def test_spread_is_even_and_favours_no_skill():
    counts = [np.bincount(skill_index(OneHot(7).spread(jax.random.key(k), 50)), minlength=7) for k in range(200)]
    assert {c for row in counts for c in row} == {7, 8}
    assert np.ptp(np.mean(counts, 0)) < 0.3
