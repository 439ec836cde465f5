import os
import subprocess
import sys
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium import wrappers
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import NameNotFound, ResetNeeded
from gymnasium.utils.env_checker import check_env, data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import vector as vector_wrappers

import becl.envs
from becl.envs import registration
from becl.envs.registration import RobotEnv, RobotVectorEnv
from becl.errors import UserError

WALK = "becl/walker_walk-v0"
# Gymnasium's advice, not its rule: speeds have no bounds, and its own MuJoCo environments declare none either.
UNBOUNDED = {"minimum value is -infinity", "maximum value is infinity"}


def actions(space: gymnasium.Space, count: int) -> list[np.ndarray]:
    space.seed(0)
    return [space.sample() for _ in range(count)]


@pytest.mark.parametrize("name", becl.envs.names())
def test_gymnasium_has_nothing_to_object(name: str):
    env = gymnasium.make(f"becl/{name}-v0").unwrapped
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(env, skip_render_check=True)
    env.close()
    # What dm_control does with a newer NumPy is no concern of theirs.
    messages = [str(warning.message) for warning in caught if "dm_control" not in warning.filename]
    assert [text for text in messages if not any(known in text for known in UNBOUNDED)] == []


def test_all_tasks_and_domains_are_registered_once():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        registration.register()
    ours = {key for key in gymnasium.registry if key.startswith("becl/")}
    lengths = {name: becl.envs.DOMAINS[name.partition("_")[0]].episode_length for name in becl.envs.names()}
    lengths |= {name: domain.episode_length for name, domain in becl.envs.DOMAINS.items()}
    lengths |= dict.fromkeys(["Ant", "AntGoals", "HalfCheetah", "HalfCheetahHurdles"], 200)
    assert ours == {f"becl/{name}-v0" for name in lengths}
    for key in ours:
        spec = gymnasium.spec(key)
        assert spec.max_episode_steps == lengths[spec.name]
        assert EnvSpec.from_json(spec.to_json()) == spec


def test_unknown_ids_are_left_to_gymnasium():
    with pytest.raises(NameNotFound, match="Did you mean: `walker_run`"):
        gymnasium.make("becl/walker_rum-v0")


def test_one_simulation_is_simulation_0_of_its_seed():
    env, batch = gymnasium.make(WALK), becl.envs.make("walker_walk", num_envs=3, seed=7)
    obs, info = env.reset(seed=7)
    assert data_equivalence(obs, batch.reset()[0], exact=True)
    assert info == {}
    for action in actions(env.action_space, 20):
        obs, reward, terminated, truncated, info = env.step(action)
        step = batch.step(np.tile(action, (3, 1)))
        assert data_equivalence(obs, step.next_obs[0], exact=True)
        assert (reward, terminated, truncated, info) == (step.reward[0], False, False, {})
    env.close()
    batch.close()


def test_a_native_batch_is_the_default_and_equals_our_own():
    env = gymnasium.make_vec(WALK, num_envs=4, max_episode_steps=3, threads=1)
    assert isinstance(env, RobotVectorEnv)
    assert env.simulations.threads == 1
    batch = becl.envs.make("walker_walk", num_envs=4, seed=7, episode_length=3)
    obs, _ = env.reset(seed=7)
    assert data_equivalence(obs, batch.reset(), exact=True)
    for action in actions(env.action_space, 8):
        obs, reward, terminated, truncated, _ = env.step(action)
        step = batch.step(action)
        assert data_equivalence((obs, reward, truncated), (step.obs, step.reward, step.truncated), exact=True)
        assert not terminated.any()
    env.close()
    batch.close()


def test_a_batch_with_a_seed_each_is_gymnasiums_own_batch_of_single_ones():
    native = gymnasium.make_vec(WALK, num_envs=3, max_episode_steps=4)
    assert isinstance(native, RobotVectorEnv)
    single = SyncVectorEnv(
        [lambda: gymnasium.make(WALK, max_episode_steps=4)] * 3, autoreset_mode=AutoresetMode.SAME_STEP
    )
    assert native.metadata == single.metadata
    for space in ("observation_space", "action_space", "single_observation_space", "single_action_space"):
        assert getattr(native, space) == getattr(single, space)
    # Gymnasium gives its parts seed, seed + 1, ...; seeds of runs would then overlap, so ours does not.
    assert data_equivalence(native.reset(seed=[7, 8, 9]), single.reset(seed=7), exact=True)
    ends = 0
    for action in actions(native.action_space, 10):
        ours, theirs = native.step(action), single.step(action)
        assert data_equivalence(ours, theirs, exact=True)
        ends += "final_obs" in ours[-1]
    assert ends == 2
    assert data_equivalence(native.reset(), single.reset(), exact=True)
    native.close()
    single.close()


def test_an_episode_ends_after_its_steps_with_its_last_observation():
    env, batch = gymnasium.make(WALK, max_episode_steps=3), becl.envs.make("walker_walk", seed=1, episode_length=3)
    env.reset(seed=1)
    batch.reset()
    steps = [(env.step(action), batch.step(action[None])) for action in actions(env.action_space, 3)]
    assert [ours[3] for ours, _ in steps] == [False, False, True]
    (obs, *_), end = steps[-1]
    assert data_equivalence(obs, end.next_obs[0], exact=True)
    assert not np.array_equal(obs, end.obs[0])
    assert data_equivalence(env.reset()[0], end.obs[0], exact=True)
    env.close()
    batch.close()


@pytest.mark.parametrize("limit", [None, 1500])
def test_max_episode_steps_is_the_length_whether_longer_or_not(limit: int | None):
    env = gymnasium.make("becl/walker_stand-v0", max_episode_steps=limit)
    env.reset(seed=0)
    idle = np.zeros(6, np.float32)
    assert next(count for count in range(1, 3000) if env.step(idle)[3]) == (limit or 1000)
    env.close()


@pytest.mark.parametrize("steps", [0, 2])
def test_a_further_reset_begins_the_next_episode(steps: int):
    env, batch = RobotEnv("walker_run"), becl.envs.make("walker_run", seed=5, episode_length=1)
    starts = [batch.reset()[0], *(batch.step(np.zeros((1, 6))).obs[0] for _ in range(2))]
    for _ in range(2):
        for number, start in enumerate(starts):
            obs, _ = env.reset(seed=None if number else 5)
            assert data_equivalence(obs, start, exact=True)
            for _ in range(steps):
                env.step(np.ones(6))
    env.close()
    batch.close()


@pytest.mark.parametrize("make", [RobotEnv, RobotVectorEnv])
def test_without_a_seed_every_environment_is_another(make: type):
    first, second = make("walker_run"), make("walker_run")
    assert not np.array_equal(first.reset()[0], second.reset()[0])
    first.close()
    second.close()


@pytest.mark.filterwarnings("ignore:simulation 0 diverged")
def test_a_diverged_simulation_ends_its_episode_and_wants_a_reset():
    env, batch = RobotEnv("walker_run"), becl.envs.make("walker_run", seed=3, episode_length=1)
    before, _ = env.reset(seed=3)
    batch.reset()
    env.simulations._batch.state[:] = np.nan
    obs, reward, terminated, truncated, _ = env.step(np.zeros(6))
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert np.array_equal(obs, before)
    with pytest.raises(ResetNeeded, match="reset before"):
        env.step(np.zeros(6))
    assert np.array_equal(env.reset()[0], batch.step(np.zeros((1, 6))).obs[0])
    assert not env.step(np.zeros(6))[3]
    env.close()
    batch.close()


def test_a_mask_resets_some_of_a_batch():
    env = RobotVectorEnv("walker_run", num_envs=3)
    mask = np.array([False, True, False])
    with pytest.raises(UserError, match="reset all simulations first"):
        env.reset(options={"reset_mask": mask})
    env.reset(seed=0)
    later = env.step(np.zeros((3, 6)))[0]
    kept = later.copy()
    obs, _ = env.reset(options={"reset_mask": mask})
    assert np.array_equal(obs[~mask], later[~mask])
    assert not np.array_equal(obs[1], later[1])
    assert np.array_equal(later, kept)
    assert env.simulations.get_state().step.tolist() == [1, 0, 1]
    for wrong in (np.zeros(3, bool), np.ones(2, bool), np.ones(3)):
        with pytest.raises(UserError, match="3 booleans"):
            env.reset(options={"reset_mask": wrong})
    env.close()


def test_a_wrong_number_of_seeds_is_refused():
    env = RobotVectorEnv("walker_run", num_envs=4)
    with pytest.raises(UserError, match="2 seeds for 4 simulations"):
        env.reset(seed=[1, 2])
    env.close()


def test_common_wrappers_of_one_environment():
    env = wrappers.RecordEpisodeStatistics(gymnasium.make("becl/quadruped_walk-v0", max_episode_steps=5))
    env = wrappers.ClipAction(wrappers.FlattenObservation(env))
    env = wrappers.NormalizeReward(wrappers.NormalizeObservation(env))
    env = wrappers.FrameStackObservation(env, 3)
    env.reset(seed=0)
    steps = [env.step(np.full(12, 3.0, np.float32)) for _ in range(5)]
    obs, _, _, truncated, info = steps[-1]
    assert obs.shape == (3, 78)
    assert np.isfinite(obs).all()
    assert truncated
    assert info["episode"]["l"] == 5
    assert 0 <= info["episode"]["r"] <= 5
    env.close()


def test_common_wrappers_of_a_batch():
    recorded = vector_wrappers.RecordEpisodeStatistics(
        gymnasium.make_vec("becl/quadruped_walk-v0", num_envs=2, max_episode_steps=3)
    )
    env = vector_wrappers.DictInfoToList(vector_wrappers.NormalizeReward(vector_wrappers.ClipAction(recorded)))
    env.reset(seed=0)
    steps = [env.step(np.full((2, 12), 3.0, np.float32)) for _ in range(6)]
    assert [step[3].tolist() for step in steps] == [[False] * 2, [False] * 2, [True] * 2] * 2
    for info in steps[-1][-1]:
        assert info["episode"]["l"] == 3
        assert info["final_obs"].shape == (78,)
    assert list(recorded.length_queue) == [3] * 4
    env.close()


def test_rendering_is_refused_before_anything_is_simulated():
    with pytest.raises(UserError, match="unknown render_mode 'ansi': allowed: rgb_array"):
        RobotEnv("walker_run", render_mode="ansi")
    with pytest.raises(UserError, match="height 0: at least 1 pixel"):
        RobotVectorEnv("walker_run", render_mode="rgb_array", height=0)
    env = RobotEnv("walker_run")
    with pytest.warns(UserWarning, match="render_mode='rgb_array'"):
        assert env.render() is None
    env.close()


def test_every_domain_has_its_camera_and_its_speed():
    import mujoco

    for name, speed in {"walker": 40, "quadruped": 50, "jaco": 25}.items():
        env = RobotEnv(name)
        camera = env.simulations.domain.camera
        assert mujoco.mj_name2id(env.simulations.model, mujoco.mjtObj.mjOBJ_CAMERA.value, camera) >= 0
        assert env.metadata == {"render_modes": ["rgb_array"], "render_fps": speed}
        env.close()


def in_new_python(code: str, gl: str) -> subprocess.CompletedProcess[str]:
    """MuJoCo looks at the environment when it is first imported."""
    variables = {key: value for key, value in os.environ.items() if key not in ("DISPLAY", "WAYLAND_DISPLAY")}
    return subprocess.run(
        [sys.executable, "-c", code], env={**variables, "MUJOCO_GL": gl}, capture_output=True, text=True, timeout=600
    )


NO_DISPLAY = """
import sys
import warnings
import gymnasium
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    env, another = (gymnasium.make("becl.envs.registration:becl/walker_run-v0", render_mode="rgb_array") for _ in "12")
print(*(warning.message for warning in caught))
env.reset()
env.step(env.action_space.sample())
for _ in range(2):
    try:
        env.render()
    except ValueError as error:
        print(error)
print("jax" in sys.modules)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems bring their own OpenGL")
def test_without_opengl_one_line_says_what_to_do():
    result = in_new_python(NO_DISPLAY, gl="glfw")
    assert (result.returncode, result.stderr) == (0, "")
    warned, *raised, jax = result.stdout.splitlines()
    assert warned.startswith("rendering needs OpenGL")
    assert "MUJOCO_GL=egl" in warned
    assert "libosmesa6" in warned
    assert raised == [warned, warned]
    assert jax == "False"


TWO_CAMERAS = """
import gymnasium
import numpy as np
make = lambda: gymnasium.make("becl.envs.registration:becl/walker_run-v0", render_mode="rgb_array", width=64, height=48)
first, second, unseen = make(), make(), gymnasium.make("becl/walker_run-v0")
for env in (first, second, unseen):
    env.reset(seed=0)
image = second.render()
assert image.shape == (48, 64, 3) and image.dtype == np.uint8 and image.std() > 10
assert (first.render() == image).all()
first.close()
first.close()
assert (second.render() == image).all()
action = np.ones(6, np.float32)
seen, expected = second.step(action)[0], unseen.step(action)[0]
assert (seen == expected).all() and (second.render() != image).any()
batch = gymnasium.make_vec("becl/walker_run-v0", num_envs=2, render_mode="rgb_array", width=64, height=48)
batch.reset(seed=0)
assert len(batch.render()) == 2 and (batch.render()[0] == image).all()
print("done")
"""


def test_cameras_do_not_disturb_each_other_or_the_simulation():
    result = in_new_python(TWO_CAMERAS, gl="egl")
    if "rendering needs OpenGL" in result.stderr:
        pytest.skip("no EGL here")
    assert (result.stdout, result.stderr) == ("done\n", "")
