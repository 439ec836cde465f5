"""Evaluation of skills: rollouts against single simulations, hand-made policies, files, and what is refused."""

import csv
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from becl import envs
from becl.commands.evaluate import run as evaluate
from becl.envs.maze import Maze
from becl.envs.maze_batch import MazeBatch
from becl.errors import UserError
from becl.experiments import evaluation as command_file
from becl.experiments.evaluation import command_line, resolve
from becl.experiments.pretraining import make_pretraining, seed_keys
from becl.experiments.snapshots import snapshot_path
from becl.learning.ddpg import DDPG
from becl.measure.coverage import grid_of
from becl.measure.skills import (
    DRAWS,
    STARTS,
    STILL,
    Episodes,
    accuracies,
    information,
    per_skill,
    rollout,
    skills_of,
    standardised,
    summary,
    tasks_of,
    zero_shot,
)
from becl.nn.adam import without_optimizers
from becl.options import EvaluateOptions, PretrainOptions
from becl.runs.arrays import save_arrays
from becl.runs.folder import open_folder
from becl.skills import Cube, NoSkill, OneHot, Sphere

LENGTH = 12


def tiny_actor(domain: str, skills: int = 3):
    return DDPG(hidden=16).init(jax.random.key(1), envs.spec_of(domain), OneHot(skills)).actor


# --- Rollouts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("domain", envs.DOMAINS)
def test_all_tasks_priced_together_are_what_each_task_pays_apart(domain):
    actor, tasks = tiny_actor(domain), tasks_of(domain)
    assert len(tasks) == 4
    done = rollout(actor, domain, skills_of(OneHot(3)), episodes=2, episode_length=LENGTH)
    assert list(done.reward) == tasks
    for task in tasks:
        env = envs.make(task, 2, STARTS, episode_length=LENGTH)
        for skill in range(3):
            obs = env.reset()
            rewards = []
            for _ in range(LENGTH):
                code = np.tile(np.eye(3, dtype=np.float32)[skill], (2, 1))
                step = env.step(np.asarray(actor(jnp.concatenate([obs, code], axis=1))))
                obs = step.obs
                rewards.append(step.reward)
            # Products of another number of rows round differently, and contacts multiply it.
            np.testing.assert_allclose(done.reward[task][skill], np.stack(rewards, axis=1), rtol=0.05, atol=0)
        env.close()


def test_a_rollout_is_a_plain_loop_over_a_single_simulation():
    """Of the second episode of the last skill; the start is that of simulation 1 of the seed."""
    actor = tiny_actor("walker")
    done = rollout(actor, "walker", skills_of(OneHot(3)), episodes=2, seed=5, episode_length=LENGTH)
    assert done.obs.shape == (3, 2, LENGTH + 1, 24)
    env = envs.make("walker_run", 2, 5, episode_length=LENGTH + 1)
    obs = env.reset()[1]
    code = np.array([0, 0, 1], np.float32)
    joints = env.model.joint("rootx"), [env.model.joint(n).dofadr[0] for n in range(3, env.model.njnt)]
    assert env.data(1).qpos[joints[0].qposadr[0]] == done.place[2, 1, 0, 0] == 0.0
    for time in range(LENGTH):
        np.testing.assert_allclose(done.obs[2, 1, time], obs, rtol=1e-3, atol=1e-3)
        action = np.asarray(actor(jnp.concatenate([obs, code])))
        step = env.step(np.stack([np.zeros(6, np.float32), action]))
        obs, data = step.obs[1], env.data(1)
        assert done.reward["walker_run"][2, 1, time] == pytest.approx(step.reward[1], rel=1e-2)
        assert done.place[2, 1, time + 1, 0] == pytest.approx(data.qpos[joints[0].qposadr[0]], abs=1e-3)
        assert done.joint_speed is not None
        assert done.joint_speed[2, 1, time] == pytest.approx(np.abs(data.qvel[joints[1]]).mean(), rel=1e-2)
    assert len(joints[1]) == 6
    env.close()


def test_the_last_state_of_an_episode_is_priced_before_the_next_begins():
    """One step more or fewer changes nothing of what they have in common."""
    actor, skills = tiny_actor("quadruped"), skills_of(OneHot(3))
    short = rollout(actor, "quadruped", skills, 1, episode_length=4)
    long = rollout(actor, "quadruped", skills, 1, episode_length=7)
    for task in short.reward:
        np.testing.assert_array_equal(short.reward[task], long.reward[task][..., :4])
    np.testing.assert_array_equal(short.place, long.place[:, :, :5])
    np.testing.assert_array_equal(short.obs, long.obs[:, :, :5])
    assert short.place.shape[-1] == 2


def test_every_skill_has_the_same_starts_whatever_the_others_are():
    actor = tiny_actor("walker")
    every = rollout(actor, "walker", skills_of(OneHot(3)), 2, episode_length=3)
    one = rollout(actor, "walker", skills_of(OneHot(3))[1:2], 2, episode_length=3)
    for skill in range(3):
        np.testing.assert_array_equal(every.obs[skill, :, 0], one.obs[0, :, 0])
    np.testing.assert_allclose(every.obs[1], one.obs[0], rtol=1e-3, atol=1e-3)
    assert not np.allclose(every.obs[0, 0, 0], every.obs[0, 1, 0])
    assert not np.allclose(every.obs[0, 0, -1], every.obs[1, 0, -1])


def test_only_the_tasks_asked_for_are_priced():
    done = rollout(tiny_actor("walker"), "walker_run", skills_of(OneHot(3)), 1, tasks=["walker_flip"], episode_length=2)
    assert list(done.reward) == ["walker_flip"]


def test_a_diverged_simulation_stays_where_it_was_and_earns_nothing(monkeypatch):
    plain = envs.Simulations._advance

    def failing(self):
        failed = plain(self)
        failed[1] |= self._step[0] == 2  # In the third step.
        return failed

    actor, skills = tiny_actor("walker"), skills_of(OneHot(3))
    good = rollout(actor, "walker", skills, 1, episode_length=6)
    monkeypatch.setattr(envs.Simulations, "_advance", failing)
    with pytest.warns(UserWarning, match="diverged"):
        done = rollout(actor, "walker", skills, 1, episode_length=6)
    assert done.diverged.ravel().tolist() == [False, True, False]
    assert done.reward["walker_stand"][1, 0, :2].all()
    assert not done.reward["walker_stand"][1, 0, 2:].any()
    assert (done.obs[1, 0, 3:] == done.obs[1, 0, 2]).all()
    assert (done.place[1, 0, 3:] == done.place[1, 0, 2]).all()
    np.testing.assert_array_equal(done.obs[2], good.obs[2])
    assert summary(done, "walker")["diverged"] == 1


def test_mazes_are_those_of_training():
    def policy(x):
        return jnp.concatenate([x[:, 2:3], -x[:, 3:4]], axis=1)

    done = rollout(policy, "square_a", skills_of(OneHot(2)), 3, seed=4)
    batch = MazeBatch(Maze("square_a"), 3, 4)
    obs = [batch.reset()]
    obs += [batch.step(np.tile(np.array([1, 0], np.float32), (3, 1))).next_obs for _ in range(50)]
    np.testing.assert_allclose(done.obs[0], np.stack(obs, axis=1), atol=1e-5)
    assert done.reward == {}
    assert done.joint_speed is None


# --- Numbers ----------------------------------------------------------------------------------------------------------


def left_and_right(x):
    """Skill 0 goes right, skill 1 left; from the middle of a corridor one step parts them for good."""
    return jnp.stack([x[:, 2] - x[:, 3], 0 * x[:, 2]], axis=1)


def test_skills_that_part_are_told_apart_and_skills_that_do_nothing_are_not():
    """Four corners as final states; then a policy that does not look at its skill."""
    rng = np.random.default_rng(0)
    corners = np.array([[0.0, 0.0], [3.0, 0.0], [0.0, 3.0], [3.0, 3.0]])
    apart = corners[:, None, None] + rng.uniform(0.1, 0.9, (4, 6, 20, 2))
    found = information("square_a", apart)
    assert found["mutual_information"] == pytest.approx(np.log(4))
    assert found["chance_information"] < 0.5
    assert accuracies(standardised(apart)) == {"knn_accuracy": 1.0, "centroid_accuracy": 1.0}

    same = np.broadcast_to(apart[:1], apart.shape)
    found = information("square_a", same)
    assert found["mutual_information"] == pytest.approx(0, abs=1e-9)
    assert found["chance_information"] == pytest.approx(0, abs=1e-9)
    # As good as guessing, also though all skills have the same starts.
    assert accuracies(standardised(same)) == pytest.approx({"knn_accuracy": 0.25, "centroid_accuracy": 0.25})


def test_a_policy_with_known_skills_in_a_maze():
    skills = skills_of(OneHot(2))
    parting = summary(rollout(left_and_right, "square_corridor", skills, 6), "square_corridor")
    assert parting["mutual_information"] == pytest.approx(np.log(2))
    assert parting["chance_information"] < 0.5
    assert parting["knn_accuracy"] == parting["centroid_accuracy"] == 1.0
    assert parting["distance"] == pytest.approx(5, abs=0.6)  # Eleven cells, from the middle one.
    assert 0 < parting["coverage"] < 1

    alike = summary(rollout(lambda x: 0.3 * jnp.ones((len(x), 2)), "square_corridor", skills, 6), "square_corridor")
    assert alike["mutual_information"] == pytest.approx(0, abs=1e-9)
    assert alike["knn_accuracy"] == alike["centroid_accuracy"] == 0.5

    resting = summary(rollout(lambda x: jnp.zeros((len(x), 2)), "square_corridor", skills, 6), "square_corridor")
    assert resting["distance"] == resting["speed"] == 0.0
    assert resting["cells"] <= 6


def test_information_where_nothing_can_be_said():
    row = summary(rollout(left_and_right, "square_corridor", skills_of(OneHot(2))[:1], 2), "square_corridor")
    assert np.isnan([row[name] for name in ("mutual_information", "knn_accuracy", "centroid_accuracy")]).all()
    row = summary(rollout(left_and_right, "square_corridor", skills_of(OneHot(2)), 1), "square_corridor")
    assert np.isnan([row[name] for name in ("knn_accuracy", "centroid_accuracy")]).all()
    assert row["mutual_information"] >= 0


def made_up(places, joint_speed=None, step_seconds=0.5) -> Episodes:
    """Positions of a robot on a line, [skills, episodes, states]."""
    places = np.asarray(places, float)[..., None]
    obs = np.zeros((*places.shape[:3], 24), np.float32)
    obs[..., 14] = places[..., 0]  # The walker's height, so that cells differ too.
    speed = np.zeros((*places.shape[:2], places.shape[2] - 1)) if joint_speed is None else np.asarray(joint_speed)
    return Episodes(obs, {}, places, speed, step_seconds, np.zeros(places.shape[:2], bool))


def test_distance_and_speed_by_hand():
    there_and_back = [[0.05, 1.05, 0.05, 1.05, 0.05]]
    backwards = [[0.05, -0.95, -1.95, -2.95, -3.95]]
    rows = per_skill(made_up([there_and_back, backwards]), "walker", ["a", "b"])
    assert [row["skill"] for row in rows] == ["a", "b"]
    assert [row["distance"] for row in rows] == pytest.approx([0, 4])
    assert [row["speed"] for row in rows] == pytest.approx([2, 2])
    assert [row["velocity"] for row in rows] == pytest.approx([0, -2])
    assert [row["cells"] for row in rows] == [2, 1]  # Below the grid is its lowest cell.
    assert summary(made_up([there_and_back, backwards]), "walker")["cells"] == 2


def test_stillness_is_of_the_second_half():
    speed = [[[9, 9, 0, 0]], [[0, 0, 9, STILL / 2]]]
    rows = per_skill(made_up(np.zeros((2, 1, 5)), speed), "walker", [0, 1])
    assert [row["still"] for row in rows] == [1.0, 0.5]
    assert [row["joint_speed"] for row in rows] == pytest.approx([4.5, (9 + STILL / 2) / 4])


def test_returns_and_their_errors_by_hand():
    reward = np.array([[[1.0, 2.0], [3.0, 4.0]], [[0.0, 0.0], [0.0, 2.0]]])
    rows = zero_shot(made_up(np.zeros((2, 2, 3)))._replace(reward={"walker_run": reward}), [7, 9])
    assert rows[0] == {"skill": 7, "task": "walker_run", "return": 5.0, "stderr": pytest.approx(2.0)}
    assert rows[1] == {"skill": 9, "task": "walker_run", "return": 1.0, "stderr": pytest.approx(1.0)}
    rows = zero_shot(made_up(np.zeros((1, 1, 3)))._replace(reward={"walker_run": reward[:1, :1]}), [0])
    assert np.isnan(rows[0]["stderr"])


def test_cells_are_those_of_training():
    done = rollout(tiny_actor("quadruped"), "quadruped", skills_of(OneHot(3)), 2, episode_length=20)
    cells = grid_of("quadruped").cells(done.obs.reshape(-1, 78))
    assert summary(done, "quadruped")["cells"] == len(np.unique(cells))


def test_skills_of_every_space():
    np.testing.assert_array_equal(skills_of(OneHot(5)), np.eye(5))
    assert skills_of(NoSkill()).shape == (1, 0)
    assert skills_of(Cube(64)).shape == (DRAWS, 64)
    np.testing.assert_array_equal(skills_of(Sphere(10)), skills_of(Sphere(10)))
    np.testing.assert_allclose(np.linalg.norm(skills_of(Sphere(10)), axis=1), 1, rtol=1e-5)


# --- The command ------------------------------------------------------------------------------------------------------


def run_folder(
    out: Path, env="square_a", method="diayn", skills: int | None = 4, seeds=(3, 7), kept=(100, 200)
) -> Path:
    """A run with fresh networks for snapshots."""
    made = make_pretraining(
        PretrainOptions(env, method, seeds, 5000, skills=skills, hidden=8, set=["replay.capacity=1000"])
    )
    open_folder(made.config(), out)
    for seed, key in zip(seeds, seed_keys(seeds), strict=True):
        state, _ = made.run.init(key)
        networks = without_optimizers({"learner": state.learner, "objective": state.objective})
        for step in kept:
            snapshot_path(out, seed, step).parent.mkdir(exist_ok=True)
            save_arrays(snapshot_path(out, seed, step), networks, {})
    return out


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.open()))


@pytest.fixture(scope="module")
def maze_run(tmp_path_factory) -> Path:
    return run_folder(tmp_path_factory.mktemp("runs") / "maze")


@pytest.fixture(scope="module")
def walker_run(tmp_path_factory) -> Path:
    return run_folder(tmp_path_factory.mktemp("runs") / "walker", "walker", "becl", skills=2, seeds=(0,))


def test_a_robots_files(walker_run, tmp_path, capsys):
    out = tmp_path / "results" / "deep"
    assert evaluate(EvaluateOptions(walker_run, episodes=2, out=out)) == 0
    assert sorted(path.name for path in out.iterdir()) == [
        "per-skill-200.csv", "result-200.json", "result-200.sha256", "skills-200.csv", "zero-shot-200.csv"
    ]  # fmt: skip
    table = rows_of(out / "zero-shot-200.csv")
    assert list(table[0]) == ["seed", "skill", "task", "return", "stderr"]
    assert [(row["skill"], row["task"]) for row in table] == [
        (skill, f"walker_{task}") for skill in "01" for task in ("stand", "walk", "run", "flip")
    ]
    assert all(0 < float(row["return"]) < 1000 for row in table)
    table = rows_of(out / "per-skill-200.csv")
    columns = ["seed", "skill", "cells", "distance", "speed", "velocity", "joint_speed", "still"]
    assert [list(row) for row in table] == [columns, columns]
    table = rows_of(out / "skills-200.csv")
    assert len(table) == 1
    assert list(table[0]) == [
        "seed", "skills", "episodes", "cells", "cells_per_skill", "entropy", "mutual_information", "chance_information",
        "knn_accuracy", "centroid_accuracy", "distance", "speed", "joint_speed", "still", "diverged",
    ]  # fmt: skip
    result = json.loads((out / "result-200.json").read_text())
    assert result["tasks"] == tasks_of("walker")
    assert (result["snapshot"], result["episodes"], result["starts"]) == (200, 2, STARTS)
    assert {"becl", "jax", "mujoco", "python", "seconds"} <= result.keys()
    assert not (walker_run / "evaluation").exists()
    shown = capsys.readouterr().out
    assert "walker_flip" in shown
    assert "I(S;Z)" in shown


def test_a_mazes_files_and_chosen_parts(maze_run, capsys):
    command = EvaluateOptions(maze_run, snapshot=100, episodes=2, skills=(3, 1), seeds=(7,))
    assert evaluate(command) == 0
    out = maze_run / "evaluation"
    assert sorted(path.name for path in out.iterdir()) == [
        "per-skill-100.csv", "result-100.json", "result-100.sha256", "skills-100.csv"
    ]  # fmt: skip
    table = rows_of(out / "per-skill-100.csv")
    assert [(row["seed"], row["skill"]) for row in table] == [("7", "3"), ("7", "1")]
    assert list(table[0]) == ["seed", "skill", "cells", "distance", "speed"]
    assert "coverage" in rows_of(out / "skills-100.csv")[0]
    line = json.loads((out / "result-100.json").read_text())["command"]
    assert line == f"becl evaluate .../{maze_run.name} --episodes 2 --snapshot 100 --skills 3 1 --seeds 7,"
    assert "skills-100" not in capsys.readouterr().err
    # All of it, twice, is the same: nothing is drawn anew.
    assert evaluate(EvaluateOptions(maze_run, episodes=2)) == 0
    whole = (out / "per-skill-200.csv").read_bytes()
    assert evaluate(EvaluateOptions(maze_run, episodes=2)) == 0
    assert (out / "per-skill-200.csv").read_bytes() == whole
    picked = [row for row in rows_of(out / "per-skill-200.csv") if row["seed"] == "7" and row["skill"] in "31"]
    assert sorted(picked, key=str) == sorted(table, key=str)


def test_methods_without_skills_have_one_row(tmp_path):
    folder = run_folder(tmp_path / "rnd", method="rnd", skills=None, seeds=(0,), kept=(100,))
    assert evaluate(EvaluateOptions(folder, episodes=2)) == 0
    table = rows_of(folder / "evaluation" / "per-skill-100.csv")
    assert [row["skill"] for row in table] == [""]
    assert rows_of(folder / "evaluation" / "skills-100.csv")[0]["knn_accuracy"] == ""
    assert json.loads((folder / "evaluation" / "result-100.json").read_text())["skills"] == []
    with pytest.raises(UserError, match=r"--skills 0: rnd has no skills"):
        resolve(EvaluateOptions(folder, skills=(0,)))


def test_continuous_skills_are_numbered_draws(tmp_path):
    folder = run_folder(tmp_path / "cic", method="cic", skills=8, seeds=(0,), kept=(100,))
    request = resolve(EvaluateOptions(folder, skills=(15,)))
    np.testing.assert_array_equal(request.vectors, skills_of(Cube(8))[15:])
    with pytest.raises(UserError, match=r"--skills 16: the run has skills 0 to 15"):
        resolve(EvaluateOptions(folder, skills=(16,)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"episodes": 0}, "--episodes 0: at least 1"),
        ({"snapshot": 150}, r"--snapshot 150: .* has 100, 200"),
        ({"seeds": (3, 4)}, r"no seed 4; it has 3, 7"),
        ({"skills": (0, 4)}, "--skills 4: the run has skills 0 to 3"),
        ({"skills": (-1,)}, "--skills -1: the run has skills 0 to 3"),
        ({"skills": (1, 1)}, "1 given more than once"),
        ({"task": ("walker_run",)}, "square_a is a maze and has no tasks"),
        ({"task": ()}, "--task: at least one"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(maze_run, tmp_path, options, message):
    out = tmp_path / "out"
    with pytest.raises(UserError, match=message) as error:
        evaluate(EvaluateOptions(maze_run, out=out, **options))
    assert "\n" not in str(error.value)
    assert not out.exists()


def test_folders_that_cannot_be_used(maze_run, walker_run, tmp_path):
    with pytest.raises(UserError, match=r"unknown task of walker 'quadruped_run'.* allowed: walker_stand, walker_walk"):
        resolve(EvaluateOptions(walker_run, task=("quadruped_run",)))
    with pytest.raises(UserError, match="holds no run"):
        resolve(EvaluateOptions(tmp_path / "nothing"))
    (tmp_path / "config.json").write_text('{"command": "finetune"}')
    with pytest.raises(UserError, match="holds no pretraining run"):
        resolve(EvaluateOptions(tmp_path))
    empty = run_folder(tmp_path / "empty", kept=())
    with pytest.raises(UserError, match="has no snapshot of seed 3 yet"):
        resolve(EvaluateOptions(empty))
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is a file"):
        resolve(EvaluateOptions(maze_run, out=tmp_path / "file" / "below"))


def test_a_damaged_snapshot_shows_before_time_is_spent(tmp_path):
    folder = run_folder(tmp_path / "run", kept=(100,))
    snapshot_path(folder, 7, 100).write_bytes(b"nonsense")
    with pytest.raises(UserError, match=r"seed-7.*damaged"):
        evaluate(EvaluateOptions(folder))
    assert not (folder / "evaluation").exists()


def test_the_default_snapshot_is_the_last_all_seeds_have(tmp_path):
    folder = run_folder(tmp_path / "run")
    snapshot_path(folder, 7, 200).unlink()
    assert resolve(EvaluateOptions(folder)).snapshot == 100
    assert resolve(EvaluateOptions(folder, seeds=(3,))).snapshot == 200


def test_ctrl_c_leaves_nothing_half_done(maze_run, tmp_path, monkeypatch):
    def interrupted(request):
        raise KeyboardInterrupt

    monkeypatch.setattr(command_file, "evaluate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        evaluate(EvaluateOptions(maze_run, out=tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_the_command_can_be_typed_again():
    command = EvaluateOptions(Path("my run"), 100, ("walker_run",), 3, (1, 2), (0, 1), out=Path("out"))
    line = "becl evaluate 'my run' --episodes 3 --snapshot 100 --task walker_run --skills 1 2 --seeds 0:2 --out out"
    assert command_line(command) == line
