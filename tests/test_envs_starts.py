"""Start states against dm_control's own resets: their distribution, and each rule they follow."""

import functools
import warnings
from typing import Any

import mujoco
import numpy as np
import pytest
from mujoco.batch import Batch
from scipy.stats import ks_2samp

from becl.envs import Simulations, make
from becl.envs.jaco import reach, settle_brick, solve

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # On import it looks for a display.
    from dm_control import manipulation, suite
    from dm_control.manipulation.shared.workspaces import DOWN_QUATERNION
    from dm_control.suite.quadruped import _find_non_contacting_height
    from dm_control.utils.inverse_kinematics import qpos_from_site_pose

SIGNIFICANCE = 0.01  # Of all coordinates together: each is tested at this over their number.
CONSTANT = 1e-6  # What varies less does not vary.
JACO = "jaco_reach_top_left"
TASKS = ["walker_run", "quadruped_run", JACO]
QUICK = {"walker_run": (2000, 2000), "quadruped_run": (2000, 400), JACO: (400, 80)}
FULL = dict.fromkeys(TASKS, (2000, 2000))
TOP_LEFT = (-0.09, 0.09, 0.001)  # Where the brick is dropped, m.
LOW, HIGH = (-0.1, -0.1, 0.2), (0.1, 0.1, 0.4)  # Box the hand starts in, m.
PINCH = "jaco_arm/jaco_hand/pinchsite"
DOWN = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, -1.0]])


@functools.cache
def simulations(name: str) -> Simulations:
    return make(name)


@functools.cache
def own_starts(name: str, count: int) -> np.ndarray:
    """Positions of several episodes of many simulations."""
    env = simulations(name)
    keys = np.array([(7, i % 50, i // 50) for i in range(count)])
    physics, _ = env._starts.request(keys).result()
    return physics[:, 1 : 1 + env.model.nq]


def load_jaco(seed: int) -> Any:
    """dm_control's task with the brick at one of URLB's places instead of anywhere."""
    reference: Any = manipulation.load("reach_duplo_features", seed=seed)
    reference.task._prop_placer._position = TOP_LEFT
    return reference


def dm_control_starts(name: str, count: int) -> np.ndarray:
    domain, task = name.split("_", 1)
    reference: Any = load_jaco(11) if domain == "jaco" else suite.load(domain, task, task_kwargs={"random": 11})
    positions = []
    for _ in range(count):
        reference.reset()
        positions.append(reference.physics.data.qpos.copy())
    return np.array(positions)


def kinematics(model: Any, qpos: np.ndarray) -> Any:
    data = mujoco.MjData(model)
    data.qpos[:] = qpos
    mujoco.mj_forward(model, data)
    return data


def pinch_positions(qpos: np.ndarray) -> np.ndarray:
    return np.array([kinematics(simulations(JACO).model, row).site(PINCH).xpos.copy() for row in qpos])


def compare(name: str, own: int, theirs: int) -> None:
    """Kolmogorov and Smirnov's test of every coordinate that varies; the others must be the same number."""
    got, expected = own_starts(name, own), dm_control_starts(name, theirs)
    if name == JACO:  # Angles may be right one by one and the hand in the wrong place.
        got = np.concatenate([got, pinch_positions(got)], axis=1)
        expected = np.concatenate([expected, pinch_positions(expected)], axis=1)
    varies = np.ptp(expected, axis=0) > CONSTANT
    np.testing.assert_allclose(got[:, ~varies] - expected[0, ~varies], 0, atol=CONSTANT)
    chance = {int(i): float(np.asarray(ks_2samp(got[:, i], expected[:, i]))[1]) for i in np.flatnonzero(varies)}
    assert min(chance.values()) > SIGNIFICANCE / len(chance), chance


@pytest.mark.parametrize("name", TASKS)
def test_starts_are_distributed_as_dm_controls(name):
    compare(name, *QUICK[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_starts_are_distributed_as_dm_controls_with_2000_each(name):
    compare(name, *FULL[name])


def test_walker_starts_fill_their_ranges_and_keep_within():
    """2,000 uniform numbers leave out 1 % at an end once in 500 million times."""
    qpos = own_starts("walker_run", 2000)
    leg = [(-20, 100), (-150, 0), (-45, 45)]  # Hip, knee, ankle.
    low, high = np.radians([(-180, 180), *leg, *leg]).T
    share = (qpos[:, 2:] - low) / (high - low)
    assert (qpos[:, :2] == 0).all()
    assert (share.min(0) >= 0).all()
    assert (share.min(0) < 0.01).all()
    assert (share.max(0) > 0.99).all()
    assert (share.max(0) <= 1).all()


def test_quadruped_starts_as_low_as_it_can():
    model = simulations("quadruped_run").model
    reference: Any = suite.load("quadruped", "run")
    for i, qpos in enumerate(own_starts("quadruped_run", 2000)[:100]):
        assert kinematics(model, qpos).ncon == 0
        if qpos[2] > 0:
            lower = qpos - 0.01 * (np.arange(model.nq) == 2)
            assert kinematics(model, lower).ncon > 0
        if i < 40:
            _find_non_contacting_height(reference.physics, qpos[3:7])
            np.testing.assert_array_equal(reference.physics.data.qpos, qpos)


def test_inverse_kinematics_takes_the_same_way_as_dm_controls():
    """To the same joint angles, not just to the same place."""
    env, reference, random = simulations(JACO), load_jaco(0), np.random.default_rng(3)
    reference.reset()
    joints = [joint.full_identifier for joint in reference.task.arm.joints]
    batch, slots = Batch(env._starts.model, 30), np.arange(30)
    batch.reset(stage=0)
    qpos = batch.bind("qpos")
    qpos[:, :6] = random.uniform(0, 2 * np.pi, (30, 6))
    qpos[0, :6] = 0.0  # Where every reset begins; never solved from there.
    begin = qpos.copy()
    goals = random.uniform(LOW, HIGH, (30, 3))
    solved = solve(batch, slots, goals)
    expected = []
    for i in slots:
        reference.physics.data.qpos[:] = begin[i]
        found = qpos_from_site_pose(reference.physics, PINCH, goals[i], DOWN_QUATERNION, joints, rot_weight=2)
        expected.append(found.success)
        if found.success:
            np.testing.assert_allclose(qpos[i], found.qpos, rtol=0, atol=1e-9)
    assert solved.tolist() == expected
    assert 10 < solved.sum() < 30


def test_hand_is_put_exactly_at_its_goal_pointing_down():
    env, random = simulations(JACO), np.random.default_rng(4)
    batch, slots = Batch(env._starts.model, 20), np.arange(20)
    batch.reset(stage=0)
    goals = random.uniform(LOW, HIGH, (20, 3))
    reached = reach(batch, slots, goals, [np.random.default_rng(i) for i in slots])
    qpos = batch.bind("qpos")[reached]
    assert len(qpos) > 15
    low, high = env.model.jnt_range[:6].T
    limited = env.model.jnt_limited[:6].astype(bool)
    assert (qpos[:, :6][:, limited] >= low[limited]).all()
    assert (qpos[:, :6][:, limited] <= high[limited]).all()
    np.testing.assert_allclose(pinch_positions(qpos), goals[reached], rtol=0, atol=1e-12)
    for row in qpos:
        turn = kinematics(env.model, row).site(PINCH).xmat.reshape(3, 3)
        np.testing.assert_allclose(turn, DOWN, rtol=0, atol=1e-12)


def test_jaco_starts_touching_nothing():
    """By dm_control's own notion of a collision that matters; the brick touches only the table."""
    model, reference = simulations(JACO).model, load_jaco(0)
    reference.reset()
    for qpos in own_starts(JACO, 400)[:40]:
        data = kinematics(model, qpos)
        pinch = data.site(PINCH)
        np.testing.assert_allclose(pinch.xmat.reshape(3, 3), DOWN, rtol=0, atol=1e-12)
        reference.physics.data.qpos[:] = qpos
        reference.physics.forward()
        assert not reference.task._tcp_initializer._has_relevant_collisions(reference.physics)
        touching = [{model.geom(int(i)).name.split("/")[0] for i in pair} for pair in data.contact.geom]
        assert {"duplo2x4", "ground"} in touching
        assert {"duplo2x4", "jaco_arm"} not in touching


def test_jaco_starts_fill_their_ranges_and_keep_within():
    """400 uniform numbers leave out 3 % at an end once in 200,000 times."""
    qpos = own_starts(JACO, 400)
    low, high = simulations(JACO).model.jnt_range[6:9].T
    closed = (qpos[:, 6:9] - low) / (high - low)
    np.testing.assert_allclose(closed, closed[:, :1].repeat(3, 1), rtol=0, atol=1e-12)  # All fingers equally far.
    place = (pinch_positions(qpos) - LOW) / np.subtract(HIGH, LOW)
    yaw = 2 * np.arctan2(qpos[:, 15], qpos[:, 12]) / (2 * np.pi) + 0.5
    for share in (*closed.T, *place.T, yaw):
        assert 0 <= share.min() < 0.03
        assert 0.97 < share.max() <= 1


@pytest.mark.parametrize("yaw", [-3.0, -1.0, 0.0, 2.2])
def test_brick_comes_to_rest_as_in_dm_control(yaw):
    reference = load_jaco(5)
    turned = (np.cos(yaw / 2), 0.0, 0.0, np.sin(yaw / 2))
    reference.task._prop_placer._quaternion = turned
    reference.reset()
    expected = reference.physics.data
    batch, slots = Batch(simulations(JACO)._starts.model, 1), np.arange(1)
    batch.reset(stage=0)
    qpos, qvel = batch.bind("qpos"), batch.bind("qvel")
    qpos[0, :9] = expected.qpos[:9]
    qpos[0, 9:] = (*TOP_LEFT, *turned)
    settle_brick(batch, slots)
    # A step of 2 ms more or less would be 2e-7 m and 2e-5 m/s.
    np.testing.assert_allclose(qpos[0], expected.qpos, rtol=0, atol=1e-9)
    np.testing.assert_allclose(qvel[0], expected.qvel, rtol=0, atol=1e-7)
    assert batch.bind("time")[0] == expected.time


@pytest.mark.parametrize(
    ("place", "x", "y"),
    [
        ("top_left", -0.09, 0.09),
        ("top_right", 0.09, 0.09),
        ("bottom_left", -0.09, -0.09),
        ("bottom_right", 0.09, -0.09),
    ],
)
def test_brick_lies_in_its_place(place, x, y):
    """And all else is as for any other task of the same seed."""
    qpos = own_starts(f"jaco_reach_{place}", 5)
    np.testing.assert_allclose(qpos[:, 9:12], np.broadcast_to([x, y, 0], (5, 3)), rtol=0, atol=1e-5)
    np.testing.assert_array_equal(qpos[:, :9], own_starts(JACO, 5)[:, :9])
