"""The robots against dm_control itself, recorded URLB trajectories and formulas written out by hand."""

import functools
import importlib.util
import math
import warnings
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any, NamedTuple

import mujoco
import numpy as np
import pytest
from mujoco.batch import Batch

import becl.envs.domain
from becl.envs import DOMAINS, EnvSpec, Simulations, State, Step, make, names
from becl.envs.simulations import random_of
from becl.envs.tolerance import tolerance
from becl.errors import UserError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # On import it looks for a display.
    from dm_control import manipulation, suite
    from dm_control.utils import rewards

GOLDEN = Path(__file__).parent / "golden" / "env_seed1.npz"
WHOLE = mujoco.mjtState.mjSTATE_INTEGRATION
STOCK = ["walker_stand", "walker_walk", "walker_run", "quadruped_walk", "quadruped_run"]
SIZES = {"walker": (24, 6, 1000), "quadruped": (78, 12, 1000), "jaco": (55, 9, 250)}
ONE_OF_EACH = ["walker_flip", "quadruped_jump", "jaco_reach_top_left"]
PINCH, BRICK = "jaco_arm/jaco_hand/pinchsite", "duplo2x4/"

every_task = pytest.mark.parametrize("name", names())
every_robot = pytest.mark.parametrize("name", ONE_OF_EACH)


@pytest.fixture(autouse=True, scope="module")
def _models_built_once():
    """Building one takes longer than most of these tests, and nothing writes into it."""
    with pytest.MonkeyPatch.context() as patch:
        for domain in DOMAINS.values():
            patch.setattr(domain, "model", functools.cache(domain.model))
        yield


def robot(name: str) -> str:
    return name.split("_")[0]


def load(name: str, seed: int = 3) -> Any:
    """dm_control's environment of a task, or of the same robot where it does not have the task."""
    if robot(name) == "jaco":
        return manipulation.load("reach_duplo_features", seed=seed)
    task = name.split("_")[1] if name in STOCK else "walk"
    return suite.load(robot(name), task, task_kwargs={"random": seed})


def flat(observation: dict) -> np.ndarray:
    return np.concatenate([np.ravel(part) for part in observation.values()]).astype(np.float32)


def row(model: Any, data: Any) -> np.ndarray:
    """MuJoCo's state as our simulations keep it."""
    state = np.empty(mujoco.mj_stateSize(model, WHOLE))
    mujoco.mj_getState(model, data, state, WHOLE)
    return state


def start_from(reference: Any, state: np.ndarray) -> np.ndarray:
    """Resets dm_control's environment to a given state; its first observation."""

    def initialize(physics, *_):
        mujoco.mj_setState(physics.model.ptr, physics.data.ptr, state, WHOLE)

    reference.task.initialize_episode = initialize
    return flat(reference.reset().observation)


def scaled(reference: Any, action: np.ndarray) -> np.ndarray:
    """An action in [-1, 1] as dm_control's actuators take it."""
    spec = reference.action_spec()
    return spec.minimum + (spec.maximum - spec.minimum) / 2 * (action + 1)


def put(env: Simulations, physics: np.ndarray) -> None:
    env.reset()
    env.set_state(env.get_state()._replace(physics=physics))


def starts(env: Simulations, keys: Any) -> tuple[np.ndarray, np.ndarray]:
    """Start states and first observations by seed, number of the simulation and episode, made where all are made."""
    return env._starts.request(np.array(keys)).result()


def actions(env: Simulations, step: int) -> np.ndarray:
    """Random, but the first rows are the same for any number of simulations."""
    return np.random.default_rng(step).uniform(-1, 1, (env.num_envs, env.spec.action_dim))


def play(env: Simulations, steps: int, begin: int = 0) -> Step:
    """What some steps returned, stacked: time first."""
    taken = [env.step(actions(env, t)) for t in range(begin, begin + steps)]
    return Step(*(np.array(field) for field in zip(*taken, strict=True)))


def some(steps: Step, ids: Any) -> Step:
    """Some simulations of stacked steps."""
    return Step(*(field[:, ids] for field in steps))


def assert_same(a: Step | State, b: Step | State) -> None:
    """Bit for bit."""
    for field, x, y in zip(a._fields, a, b, strict=True):
        np.testing.assert_array_equal(x, y, err_msg=field)


def naive_reward(name: str, physics: Any) -> float:
    """Rewards as the facts sheet of URLB writes them, from dm_control's raw quantities."""
    data = physics.named.data
    task = name.split("_", 1)[1]
    if robot(name) == "jaco":
        distance = math.dist(data.site_xpos[PINCH], data.xpos[BRICK])
        return 1.0 if distance <= 0.05 else 0.1 ** (((distance - 0.05) / 0.05) ** 2)
    up = data.xmat["torso", "zz"]
    if robot(name) == "walker":
        height = data.xpos["torso", "z"]
        standing = 1.0 if height >= 1.2 else 0.1 ** (((1.2 - height) / 0.6) ** 2)
        stand = (3 * standing + (1 + up) / 2) / 4
        if task == "stand":
            return stand
        speed = data.sensordata["torso_subtreelinvel"][0]
        reached = {"walk": speed / 1, "run": speed / 8, "flip": data.subtree_angmom["torso"][1] / 5}[task]
        return stand * (5 * min(max(reached, 0.0), 1.0) + 1) / 6
    upright = (1 + up) / 2
    if task == "stand":
        return upright
    speed, height = data.sensordata["velocimeter"][0], data.sensordata["center_of_mass"][2]
    reached = {"walk": speed / 0.5, "run": speed / 5, "jump": height / 1}[task]
    return upright * (0.5 + 0.5 * min(max(reached, -1.0), 1.0))


def towards_brick(physics: Any) -> np.ndarray:
    """Jaco's joint speeds, in units of the largest, that take the hand to the brick: random ones never touch it."""
    model = physics.model.ptr
    jacobian = np.empty((3, model.nv))
    mujoco.mj_jacSite(model, physics.data.ptr, jacobian, None, model.site(PINCH).id)
    way = physics.named.data.xpos[BRICK] - physics.named.data.site_xpos[PINCH]
    return 3 * np.linalg.pinv(jacobian[:, :6]) @ way / model.actuator_ctrlrange[:6, 1]


class Recording(NamedTuple):
    """Episodes of dm_control, or their beginnings; episode first, then time."""

    physics: np.ndarray
    action: np.ndarray
    obs: np.ndarray
    reward: np.ndarray
    last: np.ndarray
    naive: dict[str, np.ndarray]
    """Rewards of all the robot's tasks."""


def record(name: str, states: list[np.ndarray | None], length: int) -> Recording:
    """Episodes from given states, or from dm_control's own (None)."""
    reference, random = load(name), np.random.default_rng(0)
    tasks = [task for task in names() if robot(task) == robot(name)]
    episodes = []
    for state in states:
        reference.reset() if state is None else start_from(reference, state)
        start = row(reference.physics.model.ptr, reference.physics.data.ptr)
        steps = []
        for _ in range(length):
            action = random.uniform(-1, 1, reference.action_spec().shape)
            if robot(name) == "jaco":
                action[:6] = np.clip(0.3 * action[:6] + towards_brick(reference.physics), -1, 1)
            taken = reference.step(scaled(reference, action))
            naive = [naive_reward(task, reference.physics) for task in tasks]
            steps.append((action, flat(taken.observation), taken.reward, taken.last(), naive))
        episodes.append((start, *(np.array(field) for field in zip(*steps, strict=True))))
    *fields, naive = (np.array(field) for field in zip(*episodes, strict=True))
    return Recording(*fields, naive={task: naive[..., i] for i, task in enumerate(tasks)})


@functools.cache
def whole_episodes(name: str) -> Recording:
    """1,000 steps: one episode, or four of jaco's; the time limit ends them."""
    length = SIZES[robot(name)][2]
    return record(name, [None] * (1000 // length), length)


@functools.cache
def flung(name: str) -> Recording:
    """A walker or quadruped thrown through the air in 40 ways: left to itself it soon lies down, at one reward."""
    env, random = make(name, num_envs=40), np.random.default_rng(1)
    env.reset()
    physics, nq, nv = env.get_state().physics, env.model.nq, env.model.nv
    height = 1 if robot(name) == "walker" else 3
    physics[:, height] += random.uniform(-0.2, 0.5, 40)
    physics[:, 1 + nq : 1 + nq + nv] = random.normal(0, 5, (40, nv))
    return record(name, list(physics), 5)


def replay(name: str, recording: Recording, steps: int | None = None) -> Step:
    """Our simulations, each following one of the recorded episodes."""
    env = make(name, num_envs=len(recording.physics))
    put(env, recording.physics)
    taken = [env.step(action) for action in recording.action.swapaxes(0, 1)[:steps]]
    return Step(*(np.array(field).swapaxes(0, 1) for field in zip(*taken, strict=True)))


@pytest.mark.parametrize("name", [*STOCK, "jaco_reach_top_left"])
def test_whole_episodes_equal_dm_control(name):
    expected = whole_episodes(name)
    got = replay(name, expected)
    np.testing.assert_allclose(got.next_obs, expected.obs, rtol=0, atol=1e-5)
    np.testing.assert_allclose(got.reward, expected.reward, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(got.truncated, expected.last)
    assert np.ptp(expected.obs, axis=(0, 1)).min() > 1e-3  # Every entry tells something, also of jaco's brick.


@every_task
def test_rewards_equal_their_formulas(name):
    recording = whole_episodes("jaco_reach_top_left") if robot(name) == "jaco" else flung(name)
    steps = 100
    got, expected = replay(name, recording, steps), recording.naive[name][:, :steps]
    np.testing.assert_allclose(got.reward, expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(got.next_obs, recording.obs[:, :steps], rtol=0, atol=1e-5)
    assert np.ptp(expected) > 0.5
    if name in STOCK:  # The formulas themselves.
        np.testing.assert_allclose(recording.naive[name], recording.reward, rtol=0, atol=1e-9)


@every_task
def test_first_observation_and_steps_equal_dm_control_from_the_same_start(name):
    env, reference = make(name, num_envs=3), load(name)
    obs = env.reset()
    physics = env.get_state().physics
    taken = play(env, 20)
    for i, start in enumerate(physics):
        np.testing.assert_allclose(obs[i], start_from(reference, start), rtol=0, atol=1e-5)
        for t in range(20):
            step = reference.step(scaled(reference, actions(env, t)[i]))
            np.testing.assert_allclose(taken.next_obs[t, i], flat(step.observation), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", [*STOCK, "jaco_reach_top_left"])
def test_model_is_dm_controls(name):
    reference = load(name)
    reference.reset()  # Jaco's brick gets its studs then.
    ours, theirs = DOMAINS[robot(name)].model(), reference.physics.model.ptr
    floor = ours.geom("floor").id if robot(name) == "quadruped" else None
    compared = 0
    assert ours.stat.meaninertia == theirs.stat.meaninertia  # The solver's scale; the others are for drawing.
    for a, b in ((ours, theirs), (ours.opt, theirs.opt)):
        for field in dir(a):
            if field.startswith("_") or not isinstance(value := getattr(a, field), np.ndarray | int | float):
                continue
            value, expected = np.array(value), np.array(getattr(b, field))
            if field == "disableflags" and robot(name) != "jaco":
                value &= ~int(mujoco.mjtDisableBit.mjDSBL_ISLAND)  # Changes no bit: a robot alone is one island.
            if field == "geom_size" and floor is not None:
                value[floor], expected[floor] = 0, 0  # Half its side as drawn; it is felt as endless.
            np.testing.assert_array_equal(value, expected, err_msg=field)
            compared += 1
    assert compared > 500


def golden(name: str) -> dict[str, np.ndarray]:
    """100 steps of the released environments with MuJoCo 2.3.7; actions are sines."""
    with np.load(GOLDEN) as file:
        return {field: file[f"{name}/{field}"] for field in ("action", "obs", "reward", "qpos", "qvel", "act")}


def golden_rows(model: Any, expected: dict[str, np.ndarray]) -> np.ndarray:
    """The recorded states; how the solver started at each is not known and left at 0."""
    data = mujoco.MjData(model)
    rows = []
    for qpos, qvel, act in zip(expected["qpos"], expected["qvel"], expected["act"], strict=True):
        data.qpos[:], data.qvel[:], data.act[:] = qpos, qvel, act
        rows.append(row(model, data))
    return np.array(rows)


# Largest difference of observations and rewards; found: 0, 1.2e-7 and 2.4e-7 in observations. All depends on scaling
# float32 actions in float32, as URLB does: in float64 the quadruped's contacts make 10 of the difference in 100 steps.
FREE_RUNNING = {"walker": (1e-6, 1e-6), "quadruped": (1e-6, 1e-8), "jaco": (1e-6, 1e-6)}


@every_task
def test_golden_trajectory_from_its_start(name):
    expected = golden(name)
    obs_error, reward_error = FREE_RUNNING[robot(name)]
    env = make(name)
    start = golden_rows(env.model, expected)[:1]
    batch = Batch(env._starts.model, 1)
    view = env.domain.view(batch)
    batch.state[:] = start
    batch.forward()
    np.testing.assert_allclose(env.domain.observe(view)[0], expected["obs"][0], rtol=0, atol=1e-6)
    put(env, start)
    for t in range(100):
        taken = env.step(expected["action"][t, None])
        np.testing.assert_allclose(taken.next_obs[0], expected["obs"][t + 1], rtol=0, atol=obs_error)
        np.testing.assert_allclose(taken.reward[0], expected["reward"][t + 1], rtol=0, atol=reward_error)


# Torque sensors show the last substep's solution, which depends a little on where the solver started.
ONE_STEP = {"walker": (1e-7, 1e-12), "quadruped": (1e-6, 1e-9), "jaco": (1e-6, 1e-12)}


@every_task
def test_golden_trajectory_step_by_step(name):
    """From each recorded state one step to the next: errors do not add up."""
    expected = golden(name)
    obs_error, reward_error = ONE_STEP[robot(name)]
    times = np.arange(0, 100, 4 if robot(name) == "jaco" else 1)  # Jaco's simulations take long to make.
    env = make(name, num_envs=len(times))
    put(env, golden_rows(env.model, expected)[times])
    taken = env.step(expected["action"][times])
    np.testing.assert_allclose(taken.next_obs, expected["obs"][times + 1], rtol=0, atol=obs_error)
    np.testing.assert_allclose(taken.reward, expected["reward"][times + 1], rtol=0, atol=reward_error)
    qpos = env.get_state().physics[:, 1 : 1 + env.model.nq]
    np.testing.assert_allclose(qpos, expected["qpos"][times + 1], rtol=0, atol=1e-7)


@pytest.mark.parametrize(("task", "total"), [("stand", 33.8699), ("walk", 7.7208), ("run", 5.9045), ("flip", 7.7410)])
def test_published_sums_of_rewards(task, total):
    env, expected = make(f"walker_{task}"), golden(f"walker_{task}")
    put(env, golden_rows(env.model, expected)[:1])
    got = sum(env.step(action[None]).reward[0] for action in expected["action"])
    assert got == pytest.approx(total, abs=5e-5)


@pytest.mark.parametrize(("lower", "upper"), [(0.0, 0.05), (1.2, math.inf), (-2.0, 3.0), (-math.inf, 0.5)])
@pytest.mark.parametrize("margin", [0.05, 0.6, 5.0])
@pytest.mark.parametrize(
    ("shape", "value"), [("gaussian", 0.1), ("gaussian", 0.7), ("linear", 0.0), ("linear", 0.1), ("linear", 0.5)]
)
def test_tolerance_equals_dm_control(lower, upper, margin, shape, value):
    x = np.concatenate([np.linspace(-12, 12, 401), np.linspace(-0.2, 0.2, 81), [lower, upper]])
    x = x[np.isfinite(x)]
    got = tolerance(x, lower, upper, margin=margin, value_at_margin=value, shape=shape)
    expected = rewards.tolerance(x, (lower, upper), margin, shape, value)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-14)


def test_twelve_tasks_and_the_pretraining_task_of_each_robot():
    assert len(names()) == 12
    primal = {"walker": "stand", "quadruped": "walk", "jaco": "reach_top_left"}
    assert {domain: make(domain).task for domain in DOMAINS} == primal


@every_task
def test_sizes_types_and_ranges(name):
    env = make(name, num_envs=5, seed=1, episode_length=7)
    assert make(name).spec == EnvSpec(*SIZES[robot(name)], discrete=False)
    first, taken = env.reset(), play(env, 16)
    assert first.dtype == taken.obs.dtype == taken.next_obs.dtype == np.float32
    assert first.shape == taken.obs[0].shape == (5, env.spec.obs_dim)
    assert taken.reward[0].shape == taken.truncated[0].shape == (5,)
    assert taken.truncated.dtype == bool
    assert taken.reward.min() >= 0
    assert taken.reward.max() <= 1
    assert np.isfinite(taken.next_obs).all()
    # No entry is constant, but for the brick's: its yaw is random, and it lies still until it is touched.
    still = np.flatnonzero(np.ptp(taken.next_obs, axis=(0, 1)) < 1e-6)
    assert still.tolist() == ([42, 43, 44, 45, 46, 49, 50, 52, 53, 54] if robot(name) == "jaco" else [])


@every_task
def test_bits_depend_on_nothing_but_seed_and_number(name):
    """Not on the number of simulations and threads, also across an automatic reset."""

    def outcome(num_envs: int, threads: int) -> tuple[Step, State]:
        env = make(name, num_envs, seed=5, episode_length=5, threads=threads)
        first = env.reset()
        taken = play(env, 8)
        return taken._replace(obs=np.concatenate([first[None], taken.obs])), env.get_state()

    steps, state = outcome(5, threads=2)
    for count, threads in ((5, 1), (3, 2)):
        other_steps, other_state = outcome(count, threads)
        assert_same(other_steps, some(steps, slice(count)))
        assert_same(other_state, State(*(field[:count] for field in state)))


@every_task
def test_starts_are_random_and_those_of_their_seed_simulation_and_episode(name):
    keys = np.array([(seed, i, episode) for seed in (0, 9) for i in range(3) for episode in range(3)])
    env = make(name, num_envs=3, seed=9, episode_length=4)
    physics, obs = starts(env, keys)
    assert len(np.unique(physics[:, 1 : 1 + env.model.nq], axis=0)) == len(keys)
    assert len(np.unique(obs, axis=0)) == len(keys)
    # Made one by one or all together, in any order.
    alone = [starts(env, key[None]) for key in keys[::-5]]
    np.testing.assert_array_equal(np.concatenate([start[0] for start in alone]), physics[::-5])
    np.testing.assert_array_equal(np.concatenate([start[1] for start in alone]), obs[::-5])
    first, taken = env.reset(), play(env, 8)
    begun = obs.reshape(2, 3, 3, -1)[1]
    np.testing.assert_array_equal(first, begun[:, 0])
    np.testing.assert_array_equal(taken.obs[3], begun[:, 1])
    np.testing.assert_array_equal(taken.obs[7], begun[:, 2])


@every_task
def test_seeds_share_the_simulations(name):
    together = make(name, num_envs=4, seed=[3, 8], episode_length=4)
    obs = together.reset()
    taken = play(together, 6)
    for i, seed in enumerate((3, 8)):
        alone = make(name, num_envs=2, seed=seed, episode_length=4)
        ids = slice(2 * i, 2 * i + 2)
        np.testing.assert_array_equal(alone.reset(), obs[ids])
        steps = [alone.step(actions(together, t)[ids]) for t in range(6)]
        assert_same(Step(*(np.array(field) for field in zip(*steps, strict=True))), some(taken, ids))


@every_task
def test_state_round_trip(name):
    """All simulations, some, and those of another environment go on bit for bit, beyond the next reset."""
    env = make(name, num_envs=4, seed=2, episode_length=4)
    env.reset()
    play(env, 2)
    state = env.get_state()
    expected = play(env, 5, begin=2)

    env.set_state(state)
    assert_same(env.get_state(), state)
    assert_same(play(env, 5, begin=2), expected)

    fresh = make(name, num_envs=4, seed=77, episode_length=4)
    fresh.set_state(state)
    assert_same(fresh.get_state(), state)
    assert_same(play(fresh, 5, begin=2), expected)

    undisturbed = env.get_state([0, 2])
    env.set_state(State(*(field[[3, 1]] for field in state)), [3, 1])
    assert_same(env.get_state([0, 2]), undisturbed)
    assert_same(some(play(env, 5, begin=2), [1, 3]), some(expected, [1, 3]))


@every_task
def test_episodes_end_on_their_own(name):
    env = make(name, num_envs=4, seed=4, episode_length=7)
    env.reset()
    env.set_state(env.get_state()._replace(step=np.array([6, 0, 4, 5])))
    taken = play(env, 9)
    ends = [np.flatnonzero(taken.truncated[:, i]).tolist() for i in range(4)]
    assert ends == [[0, 7], [6], [2], [1, 8]]
    running = ~taken.truncated
    np.testing.assert_array_equal(taken.obs[running], taken.next_obs[running])
    restarts = [(t, i, episode) for i, times in enumerate(ends) for episode, t in enumerate(times, 1)]
    _, begun = starts(env, [(4, i, episode) for _, i, episode in restarts])
    for (t, i, _), obs in zip(restarts, begun, strict=True):
        np.testing.assert_array_equal(taken.obs[t, i], obs)
        assert np.abs(taken.next_obs[t, i] - obs).max() > 1e-3


@every_robot
def test_some_begin_their_next_episode_early(name):
    """In groups, and in another order than they were prepared in."""
    env = make(name, num_envs=5, seed=4)
    env.reset()
    _, begun = starts(env, [(4, i, episode) for episode in range(3) for i in range(5)])
    begun = begun.reshape(3, 5, -1)
    episodes = np.zeros(5, int)
    for group in ([0, 1], [2, 3], [2, 3], [4, 0, 1]):
        before = env.get_state()
        episodes[group] += 1
        obs = env.restart(group)
        others = np.setdiff1d(np.arange(5), group)
        np.testing.assert_array_equal(obs, begun[episodes, np.arange(5)])
        np.testing.assert_array_equal(env.get_state().episode, episodes)
        assert_same(env.get_state(others), State(*(field[others] for field in before)))


@every_robot
def test_old_end_is_what_a_longer_episode_shows(name):
    short, long = (make(name, num_envs=2, seed=4, episode_length=length) for length in (5, 50))
    short.reset()
    long.reset()
    np.testing.assert_array_equal(play(short, 5).next_obs, play(long, 5).obs)


@every_task
def test_episodes_have_their_full_length(name):
    env = make(name, num_envs=2)
    env.reset()
    env.set_state(env.get_state()._replace(step=np.full(2, SIZES[robot(name)][2] - 2)))
    assert play(env, 3).truncated.tolist() == [[False] * 2, [True] * 2, [False] * 2]


@every_robot
def test_reset_begins_again_and_seed_begins_another(name):
    env = make(name, num_envs=2, seed=1, episode_length=3)
    first, taken = env.reset(), play(env, 4)
    np.testing.assert_array_equal(env.reset(), first)
    assert_same(play(env, 4), taken)
    env.seed(6)
    np.testing.assert_array_equal(env.reset(), make(name, num_envs=2, seed=6).reset())


@every_robot
def test_writing_into_what_was_returned_changes_nothing(name):
    env, twin = (make(name, num_envs=2, episode_length=3) for _ in range(2))
    env.reset()[:] = 7
    twin.reset()
    for t in range(5):
        got, expected = env.step(actions(env, t)), twin.step(actions(twin, t))
        assert_same(got, expected)
        for array in (*got, *env.get_state()):
            array[:] = 1
    assert_same(env.get_state(), twin.get_state())


@every_robot
def test_data_of_one_simulation(name):
    env = make(name, num_envs=3)
    env.reset()
    play(env, 2)
    for i in range(3):
        np.testing.assert_array_equal(row(env.model, env.data(i)), env.get_state().physics[i])


def assert_refused(error: pytest.ExceptionInfo, *words: str) -> None:
    message = str(error.value)
    assert "\n" not in message
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "walker_rum"}, ["walker_rum", "did you mean 'walker_run'?"]),
        ({"name": "jaco_reach_top_lef"}, ["did you mean 'jaco_reach_top_left'?"]),
        ({"name": "walker_"}, ["did you mean 'walker'?"]),
        ({"num_envs": 0}, ["num_envs 0"]),
        ({"num_envs": -3}, ["num_envs -3"]),
        ({"episode_length": 0}, ["episode_length 0"]),
        ({"threads": 0}, ["threads 0"]),
        ({"seed": -1}, ["seed -1"]),
        ({"num_envs": 2, "seed": [1, -4]}, ["-4"]),
        ({"seed": []}, ["seed []"]),
        ({"seed": 2**63}, [f"seed {2**63}"]),
        ({"num_envs": 3, "seed": [1, 2]}, ["num_envs 3", "2 seeds"]),
    ],
)
def test_what_cannot_be_made_is_refused(options, words):
    with pytest.raises(UserError) as error:
        make(**{"name": "walker_run", **options})
    assert_refused(error, *words)


@every_robot
def test_bad_actions_are_refused_and_nothing_moves(name):
    env = make(name, num_envs=3)
    env.reset()
    play(env, 2)
    before = env.get_state()
    good = actions(env, 2)
    not_a_number, infinite = good.copy(), good.copy()
    not_a_number[1, 2], infinite[2, 0] = np.nan, -np.inf
    for action, words in (
        (not_a_number, ["simulation 1", "step 2", "nan"]),
        (infinite, ["simulation 2", "step 2", "inf"]),
        (infinite.astype(np.float32), ["simulation 2", "step 2", "inf"]),
        (good[0], [str(good[0].shape), str(good.shape)]),
        (good.T, [str(good.T.shape), str(good.shape)]),
        (good[:2], [str(good[:2].shape), str(good.shape)]),
        (good[:, :-1], [str(good[:, :-1].shape), str(good.shape)]),
        (good.astype(int), ["int64"]),
        (good > 0, ["bool"]),
        (good.astype(object), ["object"]),
    ):
        with pytest.raises(UserError) as error:
            env.step(action)
        assert_refused(error, *words)
        assert_same(env.get_state(), before)
    undisturbed = make(name, num_envs=3)
    undisturbed.reset()
    play(undisturbed, 2)
    assert_same(env.step(good), undisturbed.step(good))


def test_bad_states_and_ids_are_refused_and_nothing_moves():
    env = make("walker_run", num_envs=3)
    env.reset()
    before = env.get_state()
    columns = before.physics.shape[1]
    for state, ids, words in (
        (before._replace(physics=before.physics[:, 1:]), None, ["state.physics", f"(3, {columns - 1})"]),
        (before._replace(obs=before.obs[:2]), None, ["state.obs", "(2, 24)", "(3, 24)"]),
        (before._replace(key=before.key[:, 0]), None, ["state.key"]),
        (before._replace(step=before.step[:, None]), None, ["state.step"]),
        (before, [0, 1], ["state.physics", f"(2, {columns})"]),
        (env.get_state([1]), [3], ["[3]", "0 to 2"]),
        (env.get_state([1]), [-1], ["[-1]", "0 to 2"]),
        (env.get_state([1]), np.array([0.0]), ["0 to 2"]),
        (env.get_state([1]), np.array([[0]]), ["0 to 2"]),
        (env.get_state([1]), np.array([True, False]), ["0 to 2"]),
    ):
        with pytest.raises(UserError) as error:
            env.set_state(state, ids)
        assert_refused(error, *words)
        assert_same(env.get_state(), before)
    with pytest.raises(UserError) as error:
        env.get_state([5])
    assert_refused(error, "[5]", "0 to 2")


def test_a_mask_chooses_simulations():
    """Or none, which changes nothing."""
    env, undisturbed = (make("walker_run", num_envs=3, episode_length=3) for _ in range(2))
    env.reset()
    everything = env.get_state()
    assert_same(env.get_state(np.array([True, False, True])), State(*(field[[0, 2]] for field in everything)))
    nobody = np.zeros(3, bool)
    env.set_state(env.get_state(nobody), nobody)
    env.restart(nobody)
    assert_same(env.get_state(), everything)
    undisturbed.reset()
    assert_same(play(env, 7), play(undisturbed, 7))


def test_before_reset_there_is_nothing_to_step():
    env = make("walker_run")
    for ask in (lambda: play(env, 1), env.get_state, env.restart):
        with pytest.raises(UserError) as error:
            ask()
        assert_refused(error, "reset the environment before")


def test_what_is_closed_stays_closed():
    env = make("walker_run")
    env.reset()
    env.close()
    env.close()
    with pytest.raises(UserError) as error:
        env.reset()
    assert_refused(error, "closed")
    with pytest.raises(UserError):
        play(env, 1)


@pytest.mark.parametrize("found", ["4.0.0", "3.16.2", "2.3.7", "10.0"])
def test_unsuitable_mujoco_is_named(monkeypatch, found):
    monkeypatch.setattr(becl.envs.domain, "version", lambda package: found)
    with pytest.raises(UserError) as error:
        make("walker_run")
    assert_refused(error, f"mujoco {found} is installed", "pip install 'mujoco>=3.17,<4'")


def test_missing_packages_are_named(monkeypatch):
    def missing(package):
        raise PackageNotFoundError(package)

    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda package: None)
        with pytest.raises(UserError) as error:
            make("walker_run")
    assert_refused(error, "dm_control is not installed", "pip install dm_control")
    monkeypatch.setattr(becl.envs.domain, "version", missing)
    with pytest.raises(UserError) as error:
        make("walker_run")
    assert_refused(error, "mujoco is not installed", "pip install 'mujoco>=3.17,<4'")


@pytest.mark.parametrize("value", [1e12, np.nan])
@every_robot
def test_a_diverged_simulation_is_restarted_and_disturbs_no_other(name, value, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # MuJoCo writes a log into the working directory.
    env, undisturbed = (make(name, num_envs=4, seed=5, episode_length=7) for _ in range(2))
    env.reset()
    before = undisturbed.reset()
    _, second = starts(env, [(5, 2, 1)])
    state = env.get_state([2])
    state.physics[0, 1 + env.model.nq] = value
    env.set_state(state, [2])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        taken = play(env, 2)
        env.set_state(state, [2])  # Once more; said only once.
        later = play(env, 8, begin=2)
    expected, expected_later = play(undisturbed, 2), play(undisturbed, 8, begin=2)
    assert_same(some(taken, [0, 1, 3]), some(expected, [0, 1, 3]))
    assert_same(some(later, [0, 1, 3]), some(expected_later, [0, 1, 3]))
    for steps in (taken, later):
        for field in steps:
            assert np.isfinite(field).all()
        assert steps.truncated[0].tolist() == [False, False, True, False]
        assert steps.reward[0, 2] == 0
        np.testing.assert_array_equal(steps.next_obs[0, 2], before[2])  # The last that was finite.
        np.testing.assert_array_equal(steps.obs[0, 2], second[0])
    assert env.divergences.tolist() == [0, 0, 2, 0]
    assert [str(warning.message).split(" of its")[0] for warning in caught] == ["simulation 2 diverged at step 1"]


def test_a_start_that_failed_goes_on_failing(monkeypatch):
    """Rather than being replaced by the one before it."""
    env = make("walker_run", num_envs=2, episode_length=3)
    env.reset()
    for _, future in env._pending:
        future.result()
    env._pending.clear()

    def fail(keys):
        raise RuntimeError("no start")

    monkeypatch.setattr(env._starts, "make", fail)
    env._prepare(np.arange(2))
    still = np.zeros((2, 6))
    env.step(still)
    env.step(still)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no start"):
            env.step(still)


def test_large_seeds_have_starts_of_their_own():
    """NumPy's generator of (2³², 5, 0) is that of (0, 1, 5)."""
    draws = [
        random_of(seed, number, episode).random() for seed, number, episode in [(2**32, 5, 0), (0, 1, 5), (5, 0, 1)]
    ]
    assert len(set(draws)) == 3
    assert random_of(3, 1, 2).random() == np.random.default_rng([3, 1, 2]).random()
