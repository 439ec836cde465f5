"""Hurdles and goals: Gymnasium's robots with their position, what the tasks pay, and what they add to observations."""

from typing import Any

import gymnasium
import mujoco
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import becl.envs
from becl.envs.courses import GAP, HEIGHT, HURDLES, RADIUS, REACH
from becl.envs.external import make_external

FIELDS = {"becl/HalfCheetah-v0": 18, "becl/HalfCheetahHurdles-v0": 19, "becl/Ant-v0": 29, "becl/AntGoals-v0": 31}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "size"), FIELDS.items())
def test_they_are_gymnasiums(name, size):
    env: Any = gymnasium.make(name)
    assert env.observation_space.shape == (size,)
    assert env.spec.max_episode_steps == 200
    check_env(env.unwrapped, skip_render_check=True)
    env.close()


@pytest.mark.parametrize(("task", "field"), [("HalfCheetahHurdles", "HalfCheetah"), ("AntGoals", "Ant")])
def test_observations_begin_with_those_that_skills_know(task, field):
    """Until a hurdle is met, the robots do the same, and at every step their first numbers are the same."""
    task, field = (make_external(f"gym:becl/{name}-v0", 2, 3) for name in (task, field))
    size = field.spec.obs_dim
    np.testing.assert_array_equal(task.reset()[:, :size], field.reset())
    rng = np.random.default_rng(0)
    for _ in range(30):
        action = rng.uniform(-1, 1, (2, field.spec.action_dim))
        np.testing.assert_array_equal(task.step(action).next_obs[:, :size], field.step(action).next_obs)


def test_the_first_numbers_of_the_ant_are_its_position():
    env: Any = gymnasium.make("becl/AntGoals-v0")
    obs, _ = env.reset(seed=0)
    np.testing.assert_array_equal(obs[:2], env.unwrapped.data.qpos[:2])


def move(env: Any, x: float) -> tuple[np.ndarray, float]:
    """A step of no action from another place; gravity and joints hardly move x."""
    data = env.unwrapped.data
    data.qpos[0], data.qvel[:] = x, 0
    mujoco.mj_forward(env.unwrapped.model, data)
    obs, reward, *_ = env.step(np.zeros(env.action_space.shape, np.float32))
    return obs, reward


def test_a_hurdle_pays_once():
    env: Any = gymnasium.make("becl/HalfCheetahHurdles-v0")
    env.reset(seed=0)
    paid = [move(env, x)[1] for x in (1.0, GAP + 1, 1.0, GAP + 1, 4 * GAP + 1, 1e4)]
    assert paid == [0, 1, 0, 0, 3, HURDLES - 4]
    env.reset(seed=0)
    obs, reward = move(env, GAP + 1)
    assert reward == 1
    assert obs[-1] == pytest.approx(2 * GAP - env.unwrapped.data.qpos[0])


def test_a_hurdle_stands_in_the_way():
    """A cheetah that comes down on one touches it."""
    env: Any = gymnasium.make("becl/HalfCheetahHurdles-v0")
    env.reset(seed=0)
    inner, touched = env.unwrapped, set()
    inner.data.qpos[0] = GAP - 0.5  # Where its front foot comes down.
    for _ in range(20):
        env.step(np.zeros(6, np.float32))
        touched |= {number for contact in inner.data.contact for number in contact.geom.tolist()}
    box, last = (inner.model.geom(f"hurdle {number}") for number in (1, HURDLES))
    assert box.id in touched
    assert last.id not in touched
    assert [box.pos[0], last.pos[0]] == [GAP, GAP * HURDLES]
    assert box.pos[2] + box.size[2] == pytest.approx(HEIGHT)


def test_goals_pay_what_the_way_gets_shorter():
    env: Any = gymnasium.make("becl/AntGoals-v0")
    obs, _ = env.reset(seed=4)
    inner, total, legs, info = env.unwrapped, 0.0, [], {}
    begin = np.linalg.norm(obs[-2:])
    rng = np.random.default_rng(0)
    for _ in range(100):
        goal = inner.goal.copy()
        obs, reward, terminated, _, info = env.step(rng.uniform(-1, 1, 8).astype(np.float32))
        total += reward
        assert not terminated
        if (inner.goal != goal).any():
            legs.append(begin - total)
            begin, total = np.linalg.norm(obs[-2:]), 0.0
        np.testing.assert_allclose(obs[-2:], inner.goal - obs[:2])
        assert np.linalg.norm(obs[-2:]) == pytest.approx(begin - total)
    assert info["goals"] == len(legs)


def test_another_goal_appears_where_one_is_reached():
    env: Any = gymnasium.make("becl/AntGoals-v0")
    env.reset(seed=0)
    inner = env.unwrapped
    seen = []
    for number in range(1, 6):
        goal = inner.goal.copy()
        inner.data.qpos[:2] = goal - RADIUS / 2
        mujoco.mj_forward(inner.model, inner.data)
        *_, info = env.step(np.zeros(8, np.float32))
        assert info["goals"] == number
        away = inner.goal - inner.data.qpos[:2]
        assert (np.abs(away) <= REACH).all()
        seen.append(inner.goal.copy())
    assert len(np.unique(seen, axis=0)) == 5
    env.reset(seed=0)
    assert env.step(np.zeros(8, np.float32))[-1]["goals"] == 0


def test_they_are_registered_once():
    becl.envs.registration.register()
    assert {*FIELDS} <= {*gymnasium.registry}
