"""Where skills go in environments from outside the package: squares of a plane, named positions, and the picture."""

import csv
import json

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict

import becl
from becl.envs.external import hand_over
from becl.experiments.environments import position_of
from becl.measure.skills import per_skill, rollout, squares, summary
from becl.views.trajectories import moving

LENGTH = 12


class Table(gymnasium.Env):
    """A hand on a table goes where it is pushed, from a drawn place; there is a part that says nothing."""

    observation_space = Dict({"noise": Box(-1, 1, (1,)), "xy": Box(-99, 99, (2,))})
    action_space = Box(-1.0, 1.0, (2,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.time = self.np_random.uniform(-1, 1, 2), 0
        return self._seen(), {}

    def step(self, action):
        self.place, self.time = self.place + action, self.time + 1
        return self._seen(), 0.0, False, self.time == LENGTH, {}

    def _seen(self):
        return {"noise": np.zeros(1, np.float32), "xy": self.place.astype(np.float32)}


def pushing(x):
    """Where the skill points."""
    return x[:, -2:]


SKILLS = np.array([[0.5, 0.0], [0.0, -0.7], [0.0, 0.0]])


@pytest.fixture(scope="module")
def played():
    env = hand_over(Table, "py:test_places:Table")
    return env, rollout(pushing, env, SKILLS, 2, episode_length=LENGTH, position=(1, 2))


def test_the_named_numbers_are_the_place(played):
    _, done = played
    assert done.place.shape == (3, 2, LENGTH + 1, 2)
    np.testing.assert_array_equal(done.place, done.obs[..., 1:].astype(np.float64))
    steps = np.diff(done.place, axis=2)
    np.testing.assert_allclose(steps, np.broadcast_to(SKILLS[:, None, None], steps.shape), atol=1e-5)


@pytest.mark.parametrize("side", [1.0, 0.25])
def test_squares_by_loops(played, side):
    env, done = played
    rows = per_skill(done, env, range(3), side)
    every = set()
    for number, row in enumerate(rows):
        own = {tuple(int(np.floor(one / side)) for one in place) for place in done.place[number].reshape(-1, 2)}
        every |= own
        assert row["squares"] == len(own)
        assert row["distance"] == pytest.approx(LENGTH * np.linalg.norm(SKILLS[number]), abs=1e-4)
        assert "cells" not in row
    whole = summary(done, env, side)
    assert whole["squares"] == len(every)
    assert whole["squares_per_skill"] == pytest.approx(np.mean([row["squares"] for row in rows]))


def test_squares_on_both_sides_of_zero_are_different_ones():
    assert squares(np.array([[-0.1], [0.1], [0.9]]), 1.0) == 2
    assert squares(np.array([[-0.1, 0.0], [-0.1, -0.1]]), 1.0) == 2


def test_what_lives_in_a_plane_is_drawn_against_time():
    random = np.random.default_rng(0).normal(size=(2, 3, 4, 2))
    assert moving(random).shape == random.shape
    assert moving(random * [1, 0]).shape == (2, 3, 4, 1)


@pytest.fixture(scope="module")
def ant(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "ant"
    becl.pretrain("gym:becl/Ant-v0", "diayn", steps=60, skills=2, hidden=8, envs=2, out=out, quiet=True,
                  set=["batch=8", "random_steps=20", "replay.capacity=100"])  # fmt: skip
    return out


def test_an_ants_squares_distance_and_picture(ant, capsys):
    assert becl.main(["evaluate", str(ant), "--episodes", "2", "--square", "0.5"]) == 0
    assert "squares per skill" in " ".join(capsys.readouterr().out.split())
    (row,) = csv.DictReader((ant / "evaluation" / "skills-60.csv").open())
    assert int(row["squares"]) >= float(row["squares_per_skill"]) >= 1
    assert float(row["distance"]) > 0
    about = json.loads((ant / "evaluation" / "result-60.json").read_text())
    assert (about["square"], about["position"]) == (0.5, [])
    assert about["command"].endswith("--square 0.5")
    # x and y are the first numbers of its observation, too; bodies are brought up to date one physics step later.
    named = becl.evaluate(ant, episodes=2, square=0.5, position="0:2", out=ant / "named", quiet=True)
    assert abs(named.skills[0]["squares"] - int(row["squares"])) <= 2
    assert named.skills[0]["distance"] == pytest.approx(float(row["distance"]), rel=0.05)
    assert becl.main(["trajectories", str(ant), "--episodes", "1", "--position", "0:2"]) == 0
    assert (ant / "gallery" / "trajectories.png").exists()


def test_parts_whose_name_says_so_are_the_place(tmp_path):
    run = becl.pretrain(Table, "diayn", steps=60, skills=2, hidden=8, envs=2, out=tmp_path / "run", quiet=True,
                        set=["batch=8", "random_steps=20", "replay.capacity=100"])  # fmt: skip
    found = becl.evaluate(run, episodes=1, quiet=True)
    assert found.skills[0]["squares"] >= 1
    assert json.loads((run.folder / "evaluation" / "result-60.json").read_text())["position"] == [1, 2]
    assert becl.evaluate(run, episodes=1, position=[0], quiet=True).skills[0]["squares"] == 1
    for option, value, message in (
        ("position", "xz", "did you mean 'xy'"),
        ("position", "7", "--position 7: an observation has numbers 0 to 2"),
        ("square", 0.0, "--square 0: must be greater than 0"),
    ):
        with pytest.raises(becl.UserError, match=message):
            becl.evaluate(run, out=tmp_path / "no", **{option: value})  # type: ignore[arg-type]
        assert not (tmp_path / "no").exists()


def test_where_a_robot_is_needs_no_name():
    with pytest.raises(becl.UserError, match="--position: where square_a is, is known; leave it out"):
        position_of("square_a", "0:2")
