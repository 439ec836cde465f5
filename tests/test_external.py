"""Environments that nobody here wrote, and one whose every number is known."""

import csv
import json
import re
import sys
import warnings
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env.specs import DiscreteArray
from gallery_runs import make_run
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from run_folders import forget_sums

import becl
from becl.commands.cli import main
from becl.envs import watchdog
from becl.envs.dm_env import DmEnvironment
from becl.envs.external import (
    LENGTH,
    GymBatch,
    Layout,
    actions_of,
    external_spec,
    gym_maker,
    is_external,
    make_external,
)
from becl.envs.spec import EnvSpec
from becl.errors import UserError
from becl.export.files import load_policy
from becl.learning.ddpg import DDPG
from becl.learning.offpolicy import OffPolicy
from becl.learning.replay import Replay
from becl.learning.training import check_outcome, train
from becl.nn.adam import Adam
from becl.objectives.extrinsic import Extrinsic
from becl.trust import trust

TINY = ["--hidden", "8", "--envs", "2", "--set", "batch=16", "random_steps=40", "replay.capacity=400"]


class Corridor(gymnasium.Env):
    """Counts steps, in the third number of the vector, as Gymnasium sorts a Dict. Ends for good after `goal` steps, or
    is cut off after 7; unequal ranges of actions, float64."""

    observation_space = Dict(
        {"time": Box(-np.inf, np.inf, (1,)), "inner": Dict({"seed": Box(0, 1, (2, 1), np.float64)})}
    )
    action_space = Box(np.array([-2.0, 0.0]), np.array([4.0, 0.5]), dtype=np.float64)

    def __init__(self, goal: int = 5):
        self.goal = goal
        self.actions: list[np.ndarray] = []

    def _observed(self) -> dict[str, Any]:
        return {"time": np.array([self.time], np.float32), "inner": {"seed": self.marks}}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.marks = 0, self.np_random.random((2, 1))
        return self._observed(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        assert action.dtype == np.float64
        self.actions.append(action)
        self.time += 1
        return self._observed(), 10.0 * self.time, self.time == self.goal, self.time == 7, {}


def test_ends_are_told_apart_and_final_observations_are_right():
    batch = GymBatch(Corridor, 2, 0)
    first = batch.reset()
    assert first.dtype == np.float32
    assert batch.spec.obs_dim == 3
    assert batch.spec.action_dim == 2
    np.testing.assert_array_equal(first[:, 2], [0, 0])
    marks = first[:, :2].copy()
    for time in range(1, 5):
        step = batch.step(np.zeros((2, 2), np.float32))
        np.testing.assert_array_equal(step.obs, step.next_obs)
        np.testing.assert_array_equal(step.obs[:, 2], [time, time])
        np.testing.assert_array_equal(step.reward, [10 * time] * 2)
        assert not step.truncated.any()
    step = batch.step(np.zeros((2, 2), np.float32))
    assert step.truncated.all()
    assert step.terminated.all()
    np.testing.assert_array_equal(step.next_obs[:, 2], [5, 5])
    np.testing.assert_allclose(step.next_obs[:, :2], marks)
    np.testing.assert_array_equal(step.obs[:, 2], [0, 0])
    assert (step.obs[:, :2] != marks).all()  # Another episode.
    batch.close()


def test_a_time_limit_is_no_end_for_good():
    batch = GymBatch(lambda: Corridor(goal=100), 1, 0)
    batch.reset()
    steps = [batch.step(np.zeros((1, 2), np.float32)) for _ in range(7)]
    assert [bool(step.truncated[0]) for step in steps] == [False] * 6 + [True]
    assert not any(step.terminated.any() for step in steps)
    batch.close()


def test_actions_are_scaled_to_their_ranges():
    batch = GymBatch(Corridor, 1, 0)
    batch.reset()
    for action in ([-1, -1], [1, 1], [0, 0], [0.5, -0.5], [3, -3]):
        batch.step(np.array([action], np.float32))
    found = batch._envs.envs[0].unwrapped.actions
    np.testing.assert_allclose(found, [[-2, 0], [4, 0.5], [1, 0.25], [2.5, 0.125], [4, 0]])
    batch.close()


class Levers(gymnasium.Env):
    """Three levers, numbered from 5; the middle one pays. Ends after four steps."""

    observation_space = Box(0.0, 1.0, (1,), np.float32)
    action_space = Discrete(3, start=5)

    def __init__(self):
        self.pulled: list[Any] = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 4
        return np.ones(1, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.pulled.append(int(action))
        self.left -= 1
        return np.ones(1, np.float32), float(action == 6), False, self.left == 0, {}


def test_the_choice_with_the_largest_number_is_taken():
    batch = GymBatch(Levers, 2, 0)
    assert batch.spec == EnvSpec(1, 3, LENGTH, discrete=True)
    batch.reset()
    batch.step(np.array([[1, 0, 0], [0, 0, 1]], np.float32))
    batch.step(np.array([[-0.9, -0.2, -0.3], [0.1, 0.2, 0.1]], np.float32))
    assert [env.unwrapped.pulled for env in batch._envs.envs] == [[5, 6], [7, 6]]
    assert batch.to_action(np.array([0.0, 0.0, 0.1])) == 7
    batch.close()


def test_choices_of_dm_env_are_choices():
    spec = DiscreteArray(4, dtype=np.int32)
    inner = SimpleNamespace(action_spec=lambda: spec, observation_spec=dict)
    assert DmEnvironment(lambda seed: inner).action_space == Discrete(4)


def test_one_hot_choices_are_stored_and_the_one_that_pays_is_learned():
    """And the same choice is pulled as is stored."""
    run = OffPolicy(
        GymBatch(Levers, 1).spec, Extrinsic(), DDPG(hidden=16, optimizer=Adam(1e-2)),
        Replay(2000, nstep=1), envs=4, batch=32, random_steps=80,
    )  # fmt: skip
    batch = GymBatch(Levers, 4, 0)
    *_, last = train(run, batch, jnp.stack([jax.random.key(0)]), 800)
    rows = jax.tree.map(lambda leaf: np.asarray(leaf[0][:199]), last.state.replay.steps)
    assert set(np.unique(rows.action)) == {0.0, 1.0}
    np.testing.assert_array_equal(rows.action.sum(-1), np.ones((199, 4)))  # The last step is stored with the next.
    pulled = np.stack([env.unwrapped.pulled for env in batch._envs.envs], axis=1)[:199]
    np.testing.assert_array_equal(5 + rows.action.argmax(-1), pulled)
    first = np.bincount(pulled[:20].ravel() - 5, minlength=3)
    assert first.min() > 10  # Of 80 at random.
    learner = jax.tree.map(lambda leaf: leaf[0], last.state.learner)
    assert np.asarray(learner.actor(jnp.ones(1))).argmax() == 1
    batch.close()


def test_seeds_are_passed_on_and_share_the_copies():
    both = GymBatch(Corridor, 4, [3, 9])
    starts = both.reset()[:, :2]
    alone = GymBatch(Corridor, 2, 9)
    np.testing.assert_array_equal(alone.reset()[:, :2], starts[2:])
    assert len(np.unique(starts[:, 0])) == 4
    np.testing.assert_array_equal(both.reset()[:, :2], starts)
    assert (both.restart()[:, :2] != starts).all()
    both.close()
    alone.close()


def test_what_follows_an_end_for_good_is_worth_nothing():
    """The stored discount is 0 exactly where the task ended."""
    run = OffPolicy(
        GymBatch(Corridor, 1).spec, Extrinsic(), DDPG(hidden=8), Replay(400), envs=2, batch=16, random_steps=10**6
    )
    *_, last = train(run, GymBatch(Corridor, 2, 0), jnp.stack([jax.random.key(0)]), 60)
    stored = jax.tree.map(lambda leaf: np.asarray(leaf[0][:29]), last.state.replay.steps)
    ends = (np.arange(29) + 1) % 5 == 0
    np.testing.assert_array_equal(stored.last, np.stack([ends, ends], 1))
    np.testing.assert_array_equal(stored.discount, np.where(stored.last, 0.0, 1.0))
    np.testing.assert_array_equal(stored.next_obs[..., 2], np.stack([np.arange(29) % 5 + 1] * 2, 1))


def test_parts_of_a_dict_have_their_places():
    layout = Layout(Corridor.observation_space)
    obs = {"time": np.array([7.0]), "inner": {"seed": np.array([[0.25], [0.5]])}}
    vector = layout.one(obs)
    assert set(layout.parts) == {"time", "inner.seed"}
    np.testing.assert_array_equal(vector[layout.parts["time"]], [7])
    np.testing.assert_array_equal(vector[layout.parts["inner.seed"]], [0.25, 0.5])


def test_dm_control_is_what_it_is():
    """The same numbers as a plain loop over dm_control."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from dm_control import suite

    wrapped = DmEnvironment(lambda seed: suite.load("point_mass", "easy", {"random": seed}))
    obs, _ = wrapped.reset(seed=4)
    plain = suite.load("point_mass", "easy", {"random": 4})
    expected = plain.reset()
    rng = np.random.default_rng(0)
    for _ in range(20):
        for name, value in expected.observation.items():
            np.testing.assert_array_equal(obs[name], value)
        action = rng.uniform(-1, 1, 2)
        obs, reward, terminated, truncated, _ = wrapped.step(action)
        expected = plain.step(action)
        assert reward == expected.reward
        assert not terminated
        assert not truncated


def test_names():
    assert is_external("gym:Pendulum-v1")
    assert is_external("dmc:cheetah_run")
    assert not is_external("walker")
    assert not is_external("gymnast")
    assert external_spec("gym:Pendulum-v1")[:3] == (3, 1, 200)


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ("gym:Pendulum-v2", "did you mean 'Pendulum-v1'"),
        ("gym:no_such_package/Arm-v0", "no_such_package cannot be imported"),
        ("dmc:cheetah_ran", "did you mean 'cheetah_run'"),
        ("gym:", "unknown Gymnasium environment"),
    ],
)
def test_what_cannot_be_used_is_said_in_one_line(env, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert main(["pretrain", env]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert words in error
    assert not list(tmp_path.iterdir())


def test_spaces_that_are_no_numbers_are_refused():
    with pytest.raises(UserError, match="no bounds"):
        actions_of(Box(-np.inf, np.inf, (2,)))
    with pytest.raises(UserError, match=r"actions are MultiDiscrete: numbers \(Box\) and a single choice \(Discrete\)"):
        actions_of(MultiDiscrete([3, 2]))
    with pytest.raises(UserError, match="'words' is Text"):
        Layout(Dict({"words": gymnasium.spaces.Text(5)}))


def test_spaces_without_numbers_are_refused():
    with pytest.raises(UserError, match="actions have no numbers"):
        actions_of(Box(-1, 1, (0,)))
    with pytest.raises(UserError, match="observations have no numbers"):
        Layout(Dict({"a": Box(-1, 1, (0,))}))


@pytest.mark.parametrize("reward", [1e300, -1e39, np.inf, np.nan])
def test_a_reward_that_float32_cannot_hold_is_the_environment_s(reward):
    step = make_external("gym:Pendulum-v1", 2, 0)
    step.reset()
    given = step.step(np.zeros((2, 1)))._replace(reward=np.array([1.0, reward]))
    with pytest.raises(ValueError, match=re.escape(f"a reward is {reward:g}")) as refused:
        check_outcome(given)
    assert ("more than float32 can hold" in str(refused.value)) == np.isfinite(reward)
    step.close()


class Stuck(Corridor):
    """Has the watchdog look at it while its last copy takes a step, as if hours had passed."""

    made = 0
    said: list[str] = []  # noqa: RUF012

    def __init__(self):
        super().__init__()
        Stuck.made += 1
        self.number = Stuck.made

    def step(self, action):
        if self.number == Stuck.made:
            for later in (30, 3600, 7200):
                watchdog.look(self.said.append, monotonic() + later)
        return super().step(action)


def test_an_environment_that_hangs_is_named():
    batch = GymBatch(Stuck, 2, 0, name="py:arms:make")
    Stuck.made = max(env.unwrapped.number for env in batch._envs.envs)
    batch.reset()
    batch.step(np.zeros((2, 2)))
    batch.close()
    (line,) = Stuck.said  # Once, and not before its time.
    where = r"copy 2 of 2, in step \(test_external.py, line \d+\);"
    assert re.match(rf"py:arms:make has not answered for 3600 s, {where}", line)
    watchdog.look(Stuck.said.append, monotonic() + 3600)
    assert len(Stuck.said) == 1


@pytest.mark.parametrize("command", [["evaluate"], ["resume"], ["finetune", "--steps", "0"]])
def test_an_environment_of_other_sizes_is_one_line(command, tmp_path, capsys):
    """It was changed since the run was made."""
    run = make_run(tmp_path / "run", "gym:Pendulum-v1", snapshots=(4000,))
    forget_sums(run)
    config = (run / "config.json").read_text()
    (run / "config.json").write_text(config.replace("Pendulum-v1", "MountainCarContinuous-v0"))
    words = [command[0], str(run), *command[1:]] + (["--out", str(tmp_path / "out")] if "resume" not in command else [])
    assert main(words) == 2
    error = capsys.readouterr().err
    assert "gym:MountainCarContinuous-v0 has observations of 2 numbers, and this run was made with 3" in error


def test_a_package_is_imported_for_its_environments(tmp_path, monkeypatch):
    (tmp_path / "armory.py").write_text(
        "import gymnasium\ngymnasium.register('armory/Arm-v0', 'gymnasium.envs.classic_control:PendulumEnv')\n"
    )
    monkeypatch.setattr("sys.path", list(sys.path))
    monkeypatch.chdir(tmp_path)  # Where the program is started is looked in too.
    trust("gym:armory/Arm-v0")
    env = gym_maker("armory/Arm-v0")()
    assert env.observation_space.shape == (3,)
    batch = make_external("gym:armory/Arm-v0", 1, 0)
    assert batch.spec.episode_length == 1000  # It has no limit of its own.


@pytest.mark.parametrize("env", ["gym:Pendulum-v1", "dmc:point_mass_easy", "gym:CartPole-v1"])
def test_from_pretraining_to_scores(env, tmp_path, capsys):
    run, tuned = tmp_path / "run", tmp_path / "tuned"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert main(["pretrain", env, "--steps", "120", "--log-every", "60", "--out", str(run), *TINY]) == 0
        words = [
            "--steps",
            "100",
            "--eval-every",
            "50",
            "--eval-episodes",
            "1",
            "--final-episodes",
            "2",
            "--out",
            str(tuned),
        ]
        assert main(["finetune", str(run), *words]) == 0
        assert main(["finetune", str(run), "--task", "walker_run", "--out", str(tmp_path / "other")]) == 2
    assert "has one task, its own reward" in capsys.readouterr().err
    with (tuned / "scores.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["task"], row["step"]) for row in rows] == [(env, "0"), (env, "50"), (env, "100")]
    assert all(np.isfinite(float(row["return"])) for row in rows)
    assert "cells" not in (run / "metrics.csv").read_text().splitlines()[0]


def test_scores_are_those_of_whole_episodes(tmp_path, monkeypatch):
    """Episodes of unequal length: each counts up to its own first end."""
    from becl.envs import external

    lengths = iter(range(2, 100))
    monkeypatch.setattr(external, "gym_maker", None)
    monkeypatch.setitem(external.KINDS, "gym", lambda name: lambda: Corridor(goal=3 + next(lengths) % 3))
    external.external_spec.cache_clear()
    out = tmp_path / "run"
    assert main(["finetune", "--scratch", "--task", "gym:corridor", "--steps", "0", "--hidden", "8",
                 "--eval-episodes", "6", "--out", str(out)]) == 0  # fmt: skip
    external.external_spec.cache_clear()
    row = next(csv.DictReader((Path(out) / "scores.csv").open()))
    # Lengths 3, 4 and 5, twice each: 60, 100 and 150.
    assert float(row["return"]) == pytest.approx(np.mean([60, 100, 150]), rel=1e-5)


@pytest.mark.parametrize("env", ["gym:HalfCheetah-v5", "dmc:cheetah_run"])
def test_a_body_is_where_its_model_says(env):
    """The cheetah's first joint is its place along x; positions of bodies are those before the last of the substeps."""
    batch = make_external(env, 2, 0)
    batch.reset()
    for _ in range(20):
        batch.step(np.array([[1.0] * 6, [-1.0] * 6]))
    inner = [getattr(one.unwrapped, "physics", one.unwrapped).data for one in batch._envs.envs]
    places = batch.places()
    assert places.shape == (2, 2)
    np.testing.assert_allclose(places[:, 0], [data.qpos[0] for data in inner], atol=0.05)
    assert abs(places[0, 0] - places[1, 0]) > 0.1
    batch.close()


def test_what_is_no_model_has_no_place():
    batch = make_external("gym:Pendulum-v1", 2, 0)
    batch.reset()
    assert batch.places().shape == (2, 0)


def test_a_skill_of_choices_is_a_function_of_observations_and_exports_a_number_for_each(tmp_path):
    run = make_run(tmp_path / "run", "gym:CartPole-v1", skills=2)
    env = gymnasium.make("CartPole-v1")
    loaded = becl.load(run)
    assert isinstance(loaded, becl.Run)
    skill = loaded.skill(1)
    obs, _ = env.reset(seed=0)
    chosen = [skill(obs)]
    for _ in range(5):
        obs, *_ = env.step(chosen[-1])
        chosen.append(skill(obs))
    assert all(env.action_space.contains(action) for action in chosen)
    assert main(["export", str(run), "--skill", "1", "--out", str(tmp_path / "skill.npz")]) == 0
    with np.load(tmp_path / "skill.npz") as file:
        about = json.loads(str(file["about"]))
    assert about["action_dim"] == 2
    assert about["action_range"] == "one number in [-1, 1] for each choice; the action is the choice with the largest"
    numbers = load_policy(tmp_path / "skill.npz")(np.asarray(obs))
    assert numbers.shape == (2,)
    assert numbers.argmax() == chosen[-1]
