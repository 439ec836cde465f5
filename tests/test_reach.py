"""Goals without training: which skill leads there, what is measured, and what is refused."""

import csv
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import becl
from becl.commands.cli import main
from becl.envs.maze import Maze
from becl.errors import UserError
from becl.experiments.pretraining import make_pretraining, seed_keys
from becl.experiments.reach import Turning, distances, leading, read_goal, row_of, to_goal, verdict
from becl.experiments.snapshots import save_snapshots
from becl.learning.ddpg import DDPG
from becl.learning.programs import programs
from becl.measure.skills import rollout
from becl.nn.networks import MLP, Linear, Network
from becl.objectives import METHODS, find_method
from becl.objectives.temporal import METRA
from becl.options import PretrainOptions
from becl.runs.folder import open_folder
from becl.skills import OneHot, Sphere

TINY = {"envs": 2, "hidden": 8, "set": ("batch=16", "replay.capacity=400")}


def kept(folder: Path, env: str, method: str, **options: Any) -> Path:
    """A folder with networks that were never trained."""
    made = make_pretraining(PretrainOptions(env, method, (0, 3), 5000, **TINY, **options))
    open_folder(made.config(), folder)
    save_snapshots(made, folder, programs(made.run).init(seed_keys(made.seeds))[0], 100)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return kept(tmp_path_factory.mktemp("runs") / "metra", "square_a", "metra")


# --- The policy -------------------------------------------------------------------------------------------------------


class EchoState(NamedTuple):
    actor: Any = None


@dataclass(frozen=True)
class Echo(DDPG):
    """A learner whose action is the skill."""

    def best(self, actor, obs, skill):
        del actor, obs
        return skill

    def view(self, state, obs):
        del state
        return obs


def turning(space) -> Turning:
    """A policy in a maze that goes where its skill points, in features that are the observation itself."""
    run = replace(make_pretraining(PretrainOptions("square_a", "metra", **TINY)).run, learner=Echo())
    objective = METRA(space, Network(()))
    state = objective.init(jax.random.key(0), run.env)
    same = MLP((Linear(jnp.eye(2), jnp.zeros(2)),))
    return Turning(EchoState(), state._replace(features=same), run, objective)


def test_the_skill_points_at_the_goal_from_wherever_one_is():
    policy = turning(Sphere(2))
    obs = np.array([[0.0, 0.0], [3.0, 0.0], [0.0, 8.0]])
    goal = np.broadcast_to([3.0, 4.0], (3, 2))
    np.testing.assert_allclose(policy(jnp.concatenate([obs, goal], 1)), [[0.6, 0.8], [0, 1], [0.6, -0.8]], atol=1e-6)
    one_hot = turning(OneHot(2))
    np.testing.assert_array_equal(one_hot(jnp.concatenate([obs, goal], 1)), [[0, 1], [0, 1], [1, 0]])


def test_what_is_no_number_in_a_goal_stays_as_it_is():
    policy = turning(Sphere(2))
    obs, goal = np.array([[1.0, 5.0], [4.0, -5.0]]), np.array([[3.0, np.nan]] * 2)
    np.testing.assert_allclose(policy(jnp.concatenate([obs, goal], 1)), [[1, 0], [-1, 0]], atol=1e-6)


def test_a_straight_corridor_is_walked_to_the_goal():
    """In a real maze: the skill itself is the way to go, and is turned around where one has gone too far."""
    policy = turning(Sphere(2))
    goal = np.array([[0.0, -2.0]], np.float32)
    done = rollout(policy, "square_a", goal, 3)
    gaps = distances(goal[0], done.obs[0])
    assert (gaps.min(-1) < 0.6).all()
    assert (gaps[:, -1] < 1.1).all()


def test_features_see_what_the_objective_sees(tmp_path):
    """Numbers that the objective does not look at do not turn the skill."""
    folder = kept(tmp_path / "run", "walker", "metra-discrete", skills=3, objective_obs="height,0:2")
    run: Any = becl.load(folder)
    goal, other = np.zeros((2, 24))
    goal[[0, 1, 14]] = other[[0, 1, 14]] = (0.3, 1.0, 2.0)
    other[5:10] = 9.0
    obs = np.random.default_rng(0).normal(size=(7, 24)).astype(np.float32)
    np.testing.assert_array_equal(run.towards(goal)(obs), run.towards(other)(obs))
    np.testing.assert_allclose(run.towards([2.0, 0.3, 1.0])(obs), run.towards(goal)(obs))  # In their order.
    np.testing.assert_allclose(run.towards("height,0,1=2,0.3,1")(obs), run.towards(goal)(obs))
    with pytest.raises(UserError, match=r"see numbers 14, 0, 1 \(--objective-obs\), not 5"):
        run.towards("5=1")


def test_from_python_it_is_a_policy(folder):
    run: Any = becl.load(folder)
    towards = run.towards([2, -1], seed=3)
    obs = np.array([[0.1, 0.2], [0.3, -1.0]], np.float32)
    actions = towards(obs)
    assert actions.shape == (2, 2)
    np.testing.assert_allclose(towards(obs[1]), actions[1], atol=1e-6)
    assert (towards(obs) != run.towards([2, -1], seed=0)(obs)).any()
    with pytest.raises(UserError, match="2 numbers are needed"):
        towards(np.zeros(3))


def test_actions_are_in_the_environments_own_range(tmp_path):
    run: Any = becl.load(kept(tmp_path / "run", "gym:Pendulum-v1", "csf"))
    towards = run.towards("0=1")
    assert towards.goal.tolist()[0] == 1
    assert np.isnan(towards.goal[1:]).all()
    action = np.abs(towards(np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)))
    assert action.max() <= 2.0
    assert action.dtype == np.float32


def test_actions_are_the_environments_own_choices(tmp_path):
    run: Any = becl.load(kept(tmp_path / "run", "gym:CartPole-v1", "metra"))
    towards = run.towards("0=1")
    obs = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    choices = towards(obs)
    assert choices.shape == (50,)
    assert {*choices.tolist()} <= {0, 1}
    one = towards(obs[0])
    assert isinstance(one, np.integer)
    assert one == choices[0]


# --- Numbers ----------------------------------------------------------------------------------------------------------


def test_distances_are_in_the_numbers_that_a_goal_names():
    goal = np.array([1.0, np.nan, 2.0], np.float32)
    obs = np.array([[[4.0, 9.0, 6.0], [1.0, -9.0, 2.0]]])
    np.testing.assert_allclose(distances(goal, obs), [[5.0, 0.0]])


def test_a_row_by_loops():
    rng = np.random.default_rng(0)
    goal, turned, held = (
        rng.normal(size=2).astype(np.float32),
        rng.normal(size=(3, 5, 2)),
        rng.normal(size=(4, 3, 5, 2)),
    )

    def gap(state) -> float:
        return float(np.sqrt(sum((a - b) ** 2 for a, b in zip(state, goal, strict=True))))

    closest = [np.mean([min(gap(state) for state in way) for way in ways]) for ways in held]
    row = row_of(goal, turned, held, within=0.5)
    assert row["closest"] == pytest.approx(np.mean([min(gap(state) for state in way) for way in turned]))
    assert row["final"] == pytest.approx(np.mean([gap(way[-1]) for way in turned]))
    assert row["start"] == pytest.approx(np.mean([gap(way[0]) for way in turned]))
    assert (row["held_closest"], row["best_held_closest"]) == pytest.approx((np.mean(closest), min(closest)))
    assert row["reached"] == pytest.approx(np.mean([min(gap(state) for state in way) <= 0.5 for way in turned]))


@pytest.mark.parametrize(
    ("own", "says"), [(0.1, "than holding any one"), (0.5, "not than the best"), (2.0, "no nearer")]
)
def test_the_last_sentence_says_whether_turning_helps(own, says):
    row = {"closest": own, "held_closest": 1.0, "best_held_closest": 0.3, "start": 3.0}
    assert says in verdict([row])


# --- The command ------------------------------------------------------------------------------------------------------


def test_the_command_writes_a_table_and_a_picture(folder, tmp_path, capsys):
    out = tmp_path / "reach"
    goals = ["2,-1", "x=3", "y,x=-1,2"]
    assert main(["reach", str(folder), "--goal", *goals, "--episodes", "2", "--within", "1", "--out", str(out)]) == 0
    with open(out / "reach-100.csv") as file:
        rows = list(csv.DictReader(file))
    assert [(row["seed"], row["goal"]) for row in rows] == [(seed, goal) for seed in "03" for goal in goals]
    assert rows[0]["closest"] == rows[2]["closest"]  # The same goal in other words.
    assert all(0 <= float(row["closest"]) <= float(row["start"]) + 1e-6 for row in rows)
    assert {path.name for path in out.iterdir()} == {f"reach-100.{end}" for end in ("csv", "png", "svg")}
    assert "turning the skill" in capsys.readouterr().out
    run: Any = becl.load(folder)
    again = run.reach("2,-1", episodes=2, seeds=[3], out=tmp_path / "again", quiet=True)
    assert again.obs.shape == (1, 1, 2, Maze("square_a").spec.episode_length + 1, 2)
    assert again.rows[0]["closest"] == pytest.approx(float(rows[3]["closest"]), rel=1e-5)


@pytest.mark.parametrize(
    ("goal", "message"),
    [
        ("1,2,3", "--goal 1,2,3: an observation of square_a has 2 numbers"),
        ("", "--goal : expected numbers"),
        ("x", "--goal x: expected numbers"),
        ("1,nan", "--goal 1,nan: expected numbers"),
        ("inf,0", "expected numbers"),
        ("x=1,2", "--goal x=1,2: 2 values for 1 number"),
        ("z=1", "unknown part of the observation 'z'"),
        ("0:3=1,2,3", "--goal 0:3: an observation has numbers 0 to 1"),
        ("9,9", "--goal 9,9: square_a has no such place; it lies within x -0.5 to 4.5"),
    ],
)
def test_goals_that_are_none_are_refused(goal, message, folder, tmp_path, capsys):
    assert main(["reach", str(folder), f"--goal={goal}", "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_numbers_from_python_have_a_shape():
    made = make_pretraining(PretrainOptions("square_a", "metra", **TINY))
    np.testing.assert_array_equal(to_goal([1, float("nan")], made), [1, np.nan])
    np.testing.assert_array_equal(read_goal("y=1", made), [np.nan, 1])
    for goal in ([1.0], [[1.0, 2.0]], [float("inf"), 0], [float("nan")] * 2):
        with pytest.raises(UserError, match="a goal of shape"):
            to_goal(goal, made)


def test_methods_without_such_features_are_refused(tmp_path, capsys):
    assert main(["reach", str(kept(tmp_path / "run", "square_a", "diayn", skills=4)), "--goal", "1,1"]) == 2
    said = capsys.readouterr().err
    assert "diayn has no features that lead to a goal; metra, metra-discrete, lsd" in said
    able = [name for name, method in METHODS.items() if leading(method.objective)]
    assert len(able) == 8


def test_the_part_of_a_sum_that_knows_the_way_leads(tmp_path):
    folder = kept(tmp_path / "run", "square_a", "rnd+metra")
    run: Any = becl.load(folder)
    action = run.towards([2, -1])(np.zeros((3, 2), np.float32))
    assert action.shape == (3, 2)
    found: Any = leading(find_method("rnd+metra").objective)
    assert found[0] == METRA()


def test_a_folder_of_the_former_example_opens_as_metra(tmp_path):
    """It was trained with --plugin examples/metra.py, whose method had this name."""
    made = make_pretraining(PretrainOptions("square_a", "metra", **TINY))
    config = made.config()
    assert "length" not in config["run"]["objective"]
    open_folder({**config, "plugins": {"metra": "examples/metra.py"}}, tmp_path / "run")
    assert becl.load(tmp_path / "run").spec == made
    assert jax.eval_shape(made.run.init, jax.random.key(0))
