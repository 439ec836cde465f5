"""Pretraining from the command to its folder: what is kept, what is refused, and how a run ends before its time."""

import contextlib
import csv
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from distinct import distinct_runs, marked

from becl.commands.cli import main
from becl.envs.simulations import Step
from becl.errors import Failed, UserError
from becl.experiments import memory as memory_file
from becl.experiments import pretraining as pretrain_file
from becl.experiments.environments import make_envs
from becl.experiments.memory import memory
from becl.experiments.pretrainer import Pretrainer, check_memory, pretrain
from becl.experiments.pretraining import load_pretraining, make_pretraining, seed_keys
from becl.experiments.snapshots import load_snapshot, snapshot_path
from becl.experiments.trial import operations
from becl.learning.offpolicy import Activity
from becl.learning.programs import programs
from becl.learning.training import train
from becl.measure.coverage import Coverage, grid_of
from becl.nn.adam import without_optimizers
from becl.objectives import METHODS, Method
from becl.options import PretrainOptions
from becl.runs import session as session_file
from becl.runs.arrays import load_arrays, named_arrays, save_arrays
from becl.runs.folder import open_folder
from becl.runs.log import Log
from becl.runs.progress import Progress, clock, interrupts, progress
from becl.skills import OneHot
from becl.views.poses import look_at, motion_of

# One run for most tests: its programs are compiled once.
TINY = ["batch=16", "replay.capacity=400", "random_steps=40"]
COMMAND = ["pretrain", "square_a", "--method", "diayn", "--seeds", "3,7", "--steps", "120", "--skills", "4"]
COMMAND += ["--envs", "2", "--hidden", "8", "--log-every", "40", "--set", *TINY]


def tiny(method="diayn", seeds=(3, 7), steps=120, skills: int | None = 4, settings=(), **options):
    options = {"envs": 2, "hidden": 8, "log_every": 40, **options}
    settings = [*TINY, *settings]
    return make_pretraining(PretrainOptions("square_a", method, seeds, steps, skills, set=settings, **options))


def opened(made, out: Path) -> Path:
    open_folder(made.config(), out)
    return out


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def rows(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "metrics.csv").open()))


def steps_kept(folder: Path) -> list[int]:
    return sorted(int(path.stem.partition("-")[2]) for path in folder.glob("snapshot-*.safetensors"))


def assert_same_networks(*paths: Path) -> None:
    """To the bit. The files may differ in the order of what they say about themselves."""
    one, two = (safetensors.numpy.load(path.read_bytes()) for path in paths)
    jax.tree.map(np.testing.assert_array_equal, one, two)


class Watching(Progress):
    """Does something once so many steps are done."""

    def __init__(self, at: int, act):
        super().__init__(1000, "steps", lambda line: None, 1e9)
        self.at, self.act = at, act

    def advance(self, amount: int, seeds: int = 1) -> None:
        before = self.done
        super().advance(amount, seeds)
        if before < self.at <= self.done:
            self.act()


# --- The command ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "finished"
    assert main([*COMMAND, "--out", str(out)]) == 0
    return out


def test_a_run_leaves_plain_files(finished):
    names = set(files(finished))
    events = {name for name in names if name.startswith("tensorboard")}
    assert names - events == {
        "config.json",
        "metrics.csv",
        "result.json",
        "seed-3/snapshot-120.safetensors",
        "seed-7/snapshot-120.safetensors",
        "SHA256SUMS",
        "seed-3/SHA256SUMS",
        "seed-7/SHA256SUMS",
    }
    assert sorted(Path(name).parent.name for name in events) == ["seed-3", "seed-7"]
    assert all("tfevents" in name for name in events)
    result = json.loads((finished / "result.json").read_text())
    assert result["steps"] == 120
    assert result["steps_per_second"] > 0
    newest = max(path.stat().st_mtime_ns for path in finished.rglob("*") if path.is_file())
    assert (finished / "result.json").stat().st_mtime_ns == newest


def test_metrics_are_one_row_an_interval_and_seed(finished):
    table = rows(finished)
    # Of the first interval, all random, there is nothing to tell.
    assert [(row["step"], row["seed"]) for row in table] == [("80", "3"), ("80", "7"), ("120", "3"), ("120", "7")]
    columns = ["step", "seed", "steps_per_second", "cells", "cells_now", "coverage", "return"]
    assert list(table[0])[:7] == columns
    assert {"actor_loss", "critic_loss", "objective_loss", "reward"} <= set(table[0])
    for row in table:
        assert 0 < int(row["cells_now"]) <= int(row["cells"])
        assert 0 < float(row["coverage"]) < 1
        assert all(np.isfinite(float(row[name])) for name in row if name != "return")
    assert [row["return"] for row in table] == ["", "", "0", "0"]  # No episode of 50 steps ends before step 100.
    assert table[0]["reward"] != table[1]["reward"]


def test_the_same_command_again_changes_nothing(finished, capsys):
    before = files(finished)
    assert main([*COMMAND, "--out", str(finished)]) == 0
    assert "already finished" in capsys.readouterr().out
    assert files(finished) == before


def test_another_configuration_is_refused(finished, capsys):
    before = files(finished)
    assert main([*COMMAND, "--hidden", "9", "--out", str(finished)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "another configuration" in error
    assert "hidden" in error
    assert files(finished) == before


def test_the_same_seed_gives_the_same_networks(finished, tmp_path):
    assert main([*COMMAND, "--out", str(tmp_path / "again")]) == 0
    for seed in (3, 7):
        assert_same_networks(*(snapshot_path(out, seed, 120) for out in (finished, tmp_path / "again")))
    with pytest.raises(AssertionError):
        assert_same_networks(*(snapshot_path(finished, seed, 120) for seed in (3, 7)))


def test_robots_have_no_fraction_and_their_returns_are_sums(tmp_path):
    log = Log(tmp_path, [{"seed": 0}, {"seed": 1}], 2, 5000, Coverage(grid_of("walker"), 2))
    for number in range(3):
        end = np.full(4, number == 1)
        log.add({"reward": jnp.array([1.0, 2.0]), "loss": jnp.ones(2)},
                Step(np.zeros((4, 24)), np.arange(4.0), end, np.zeros((4, 24))))  # fmt: skip
    log.write(6)
    log.close()
    table = rows(tmp_path)
    assert "coverage" not in table[0]
    # Two steps of reward 0 and 1 for the environments of the first seed, 2 and 3 for those of the second.
    assert [float(row["return"]) for row in table] == [1.0, 5.0]
    assert [float(row["reward"]) for row in table] == [1.0, 2.0]
    assert [row["cells"] for row in table] == ["1", "1"]
    assert log.note == "reward 1.5, loss 1"


def test_a_dry_run_tells_and_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*COMMAND, "--dry-run"]) == 0
    text = capsys.readouterr().out
    config, end = json.JSONDecoder().raw_decode(text)
    assert config == json.loads(json.dumps(tiny().config()))
    memory_line, time_line = text[end:].strip().splitlines()
    assert memory_line.startswith("memory: replay ")
    assert "2 × 120 transitions" in memory_line
    assert time_line.startswith("time: about 0:0")
    assert "steps/s" in time_line
    assert not list(tmp_path.iterdir())


# --- Every method -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", marked(distinct_runs(METHODS, "square_a")))
def test_every_method_pretrains_in_a_maze(method, tmp_path):
    made = tiny(method, (0,), steps=48, skills=None, log_every=8)
    assert pretrain(made, opened(made, tmp_path / "run"))
    (row,) = rows(tmp_path / "run")
    assert all(np.isfinite(float(value)) for name, value in row.items() if name != "return")
    path = snapshot_path(tmp_path / "run", 0, 48)
    arrays = safetensors.numpy.load(path.read_bytes())
    assert all(np.isfinite(array).all() for array in arrays.values())
    assert any(name.startswith("learner.actor") for name in arrays)
    assert any(name.startswith("objective.") for name in arrays) == (method != "ddpg")
    assert not any("opt" in name for name in arrays)
    state, _ = jax.eval_shape(made.run.init, jax.random.key(0))
    load_arrays(path, without_optimizers({"learner": state.learner, "objective": state.objective}))


@pytest.mark.parametrize("skills", [None, 5])
def test_critics_of_successor_features_are_as_wide_as_skills(skills):
    made = make_pretraining(PretrainOptions("square_a", "aps", skills=skills, hidden=8))
    state, choice = jax.eval_shape(made.run.init, jax.random.key(0))
    expected = skills or 10
    assert state.learner.critic.weight.shape[-1] == choice.skill.shape[-1] == expected
    other, _ = jax.eval_shape(
        make_pretraining(PretrainOptions("square_a", "becl", skills=skills)).run.init, jax.random.key(0)
    )
    assert other.learner.critic.weight.shape[-1] == 1


def test_smm_draws_skills_only_with_episodes():
    for method in ("smm", "smm-paper"):
        assert make_pretraining(PretrainOptions("square_a", method)).run.skill_interval is None
    run = tiny("smm", skills=None).run
    shapes, _ = jax.eval_shape(run.init, jax.random.key(0))
    actor = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), shapes.learner.actor)
    act = jax.jit(run.act)
    before = Activity(jnp.full((2, 4), 0.5), jnp.array([6, 6]), jnp.zeros((2, 2)))
    began = jnp.array([False, True])
    for number in (50, 100):
        choice = act(jax.random.key(1), actor, (), before, jnp.zeros((2, 2)), began, jnp.int32(number))
        np.testing.assert_array_equal(choice.skill[0], before.skill[0])
        assert sorted(np.asarray(choice.skill[1])) == [0, 0, 0, 1]
        np.testing.assert_array_equal(choice.since, [7, 0])


def test_becl_as_released_has_its_schedule():
    run = make_pretraining(PretrainOptions("square_a", "becl-released")).run
    assert run.replay.released_skill
    assert run.fits_per_update == 3
    assert [
        name for name in METHODS if make_pretraining(PretrainOptions("square_a", name)).run.replay.released_skill
    ] == [
        "becl",  # What transfers best: docs/transfer.md.
        "becl-released",
    ]


@pytest.mark.parametrize(("env", "length"), [("square_a", 7), ("jaco", 249)])
def test_episodes_may_have_another_length(env, length):
    """In the authors' dm_control, jaco's had 249 steps."""
    made = make_pretraining(PretrainOptions(env, "becl", envs=2, set=[f"env.episode_length={length}"]))
    assert made.run.env.episode_length == made.episode_length == length
    with contextlib.ExitStack() as stack:
        environments = Pretrainer(made, Path()).open(stack)
        environments.reset()
        still = np.zeros((2, made.run.env.action_dim), np.float32)
        over = [environments.step(still).truncated for _ in range(length + 1)]
    np.testing.assert_array_equal(over, [[step == length] * 2 for step in range(1, length + 2)])


def test_a_run_is_looked_at_in_episodes_as_long_as_it_had(tmp_path):
    made = tiny(settings=["env.episode_length=7"], seeds=(3,), steps=48)
    assert pretrain(made, opened(made, tmp_path / "run"))
    assert load_pretraining(tmp_path / "run") == made
    assert tiny().episode_length is None
    motion = motion_of(look_at(tmp_path / "run"), frames=100)
    assert motion.poses.shape[1] == 1 + 7
    assert main(["evaluate", str(tmp_path / "run"), "--episodes", "1"]) == 0
    (moved,) = csv.DictReader((tmp_path / "run/evaluation/skills-48.csv").open())
    ends = np.linalg.norm(motion.poses[:, -1] - motion.poses[:, 0], axis=-1).mean()
    assert float(moved["distance"]) == pytest.approx(ends, rel=0.05)


# --- Snapshots --------------------------------------------------------------------------------------------------------


def test_a_snapshot_gives_back_the_networks_bit_by_bit(finished):
    made = tiny()
    environments = make_envs(made.env, 4, made.seeds)
    *_, last = train(made.run, environments, seed_keys(made.seeds), made.steps)
    for index, seed in enumerate(made.seeds):
        learner, objective = load_snapshot(made, snapshot_path(finished, seed, 120))
        for name in ("actor", "critic", "target"):
            trained = jax.tree.map(lambda leaf, i=index: leaf[i], getattr(last.state.learner, name))
            jax.tree.map(np.testing.assert_array_equal, getattr(learner, name), trained)
        trained = jax.tree.map(lambda leaf, i=index: leaf[i], last.state.objective)
        jax.tree.map(np.testing.assert_array_equal, objective.classifier, trained.classifier)
        # Optimisers begin anew.
        np.testing.assert_array_equal(learner.actor_opt.decay, 1)
        np.testing.assert_array_equal(objective.opt.decay, 1)
        assert jax.tree.structure((learner, objective)) == jax.tree.structure(
            (last.state.learner, last.state.objective)
        )


def test_a_snapshot_tells_what_it_is_of(finished):
    with safetensors.safe_open(snapshot_path(finished, 7, 120), "numpy") as opened_file:
        about = opened_file.metadata()
    assert about == {"env": "square_a", "method": "diayn", "seed": "7", "step": "120"}


def test_a_snapshot_of_another_run_is_refused(finished, tmp_path):
    path = snapshot_path(finished, 3, 120)
    with pytest.raises(UserError, match=r"learner\.actor\.\S+ has shape \(.*8.*\), not \(.*9.*\)"):
        load_snapshot(tiny(hidden=9), path)
    with pytest.raises(UserError, match="is of another run: method diayn, not becl"):
        load_snapshot(tiny("becl"), path)
    # Where it does not say what it is of: with networks of the same size the learner's would fit; the objective's are
    # others.
    nameless = tmp_path / "snapshot-120.safetensors"
    nameless.write_bytes(safetensors.numpy.save(safetensors.numpy.load_file(path)))
    with pytest.raises(UserError, match=r"objective\.\S+ is missing"):
        load_snapshot(tiny("becl"), nameless)
    like = {"a": jnp.zeros(2)}
    other = path.with_name("other.safetensors")
    save_arrays(other, {"a": jnp.ones(2), "b": jnp.ones(3)}, {})
    with pytest.raises(UserError, match="b has no place"):
        load_arrays(other, like)
    other.unlink()


def test_a_damaged_or_missing_snapshot_is_refused(finished, tmp_path):
    whole = snapshot_path(finished, 3, 120).read_bytes()
    path = tmp_path / "snapshot-120.safetensors"
    for data in (whole[:-20], whole[:100], b"", b"not a snapshot at all"):
        path.write_bytes(data)
        with pytest.raises(UserError, match="damaged") as refused:
            load_snapshot(tiny(), path)
        assert "\n" not in str(refused.value)
    with pytest.raises(UserError, match="cannot read"):
        load_snapshot(tiny(), tmp_path / "nothing")


def test_arrays_come_back_as_they_were(tmp_path):
    tree = {"a": (jnp.arange(6.0).reshape(2, 3).T, jnp.array(3, jnp.int32)), "b": jnp.zeros((0, 2))}
    assert sorted(named_arrays(tree)) == ["a.0", "a.1", "b"]
    save_arrays(tmp_path / "arrays", tree, {"about": "nothing"})
    loaded = load_arrays(tmp_path / "arrays", jax.tree.map(jnp.zeros_like, tree))
    jax.tree.map(np.testing.assert_array_equal, loaded, tree)
    assert [leaf.dtype for leaf in jax.tree.leaves(loaded)] == [leaf.dtype for leaf in jax.tree.leaves(tree)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["SHA256SUMS", "arrays"]


def test_snapshots_are_kept_on_the_way(tmp_path, monkeypatch):
    monkeypatch.setattr(pretrain_file, "SNAPSHOTS", (50, 61, 120, 1000))
    made = tiny()
    assert pretrain(made, opened(made, tmp_path / "run"))
    for seed in made.seeds:
        assert steps_kept(tmp_path / "run" / f"seed-{seed}") == [50, 61, 120]
        early, late = (load_snapshot(made, snapshot_path(tmp_path / "run", seed, step))[0] for step in (50, 120))
        assert not np.array_equal(early.actor.out.weight, late.actor.out.weight)


# --- Configurations as JSON -------------------------------------------------------------------------------------------


def test_settings_may_have_their_types_already():
    text = ["batch=16", "temperature=0.2", "learner.normalize=true", "skill_interval=none", "network.hidden=8,8"]
    typed = {"batch": 16, "temperature": 0.2, "learner.normalize": True, "skill_interval": None}
    typed |= {"network.hidden": (8, 8)}
    asked = PretrainOptions("square_a", "becl", set=typed, objective_obs=(1,))
    assert make_pretraining(asked) == make_pretraining(dataclasses.replace(asked, set=text, objective_obs="1"))
    for setting in ({"batch": 1.5}, {"envs": 2}, {"nonsense": 1}, {"batch": -1}, {"temperature": float("nan")}):
        with pytest.raises(UserError, match=next(iter(setting))):
            make_pretraining(dataclasses.replace(asked, set=setting))
    for numbers in ((), (-1,), (2,)):
        with pytest.raises(UserError, match="--objective-obs"):
            make_pretraining(dataclasses.replace(asked, objective_obs=numbers))


@pytest.mark.parametrize("method", METHODS)
def test_a_folder_gives_back_its_run(method, tmp_path):
    plain = make_pretraining(PretrainOptions("walker", method))
    has_skills = METHODS[method].objective.skills.dim > 0
    changed = tiny(
        method,
        (2, 5, 11),
        skills=5 if has_skills else None,
        precision="bf16",
        settings=["learner.optimizer.learning_rate=0.003", "replay.nstep=2", "skill_interval=none"],
    )
    for number, made in enumerate((plain, changed)):
        assert load_pretraining(opened(made, tmp_path / str(number))) == made
    assert changed != plain


def test_a_folder_that_holds_no_run_is_refused(tmp_path):
    made = tiny()

    def refusal(change) -> str:
        config = json.loads(json.dumps(made.config()))
        (tmp_path / "config.json").write_text(json.dumps(change(config) or config))
        with pytest.raises(UserError) as refused:
            load_pretraining(tmp_path)
        assert "\n" not in str(refused.value)
        return str(refused.value)

    def at(*path: str, **values):
        def change(config: Any) -> None:
            for name in path:
                config = config[name]
            config.update(values)

        return change

    assert "unknown spec run.objective 'DIYAN': did you mean 'DIAYN'?" in refusal(at("run", "objective", spec="DIYAN"))
    assert "unknown option of DDPG 'run.learner.hiden': did you mean 'run.learner.hidden'?" in refusal(
        at("run", "learner", hiden=3)
    )
    assert "unknown option of Pretraining 'stepps'" in refusal(at(stepps=3))
    assert "no pretraining run" in refusal(at(command="maze"))
    assert "no pretraining run" in refusal(lambda config: [1, 2])
    assert "damaged: run is missing" in refusal(lambda config: config.pop("run") and None)
    (tmp_path / "config.json").write_text('{"command": ')
    with pytest.raises(UserError, match="damaged"):
        load_pretraining(tmp_path)
    with pytest.raises(UserError, match="holds no run"):
        load_pretraining(tmp_path / "nowhere")


# --- What is refused --------------------------------------------------------------------------------------------------

BAD = [
    (["square_q"], "unknown environment 'square_q'", "did you mean 'square_"),
    (["walker_rum"], "unknown environment 'walker_rum'", "did you mean 'walker_run'"),
    (["square_a", "--method", "bcel"], "unknown method 'bcel'", "did you mean 'becl'"),
    (["square_a", "--set", "temprature=1"], "unknown option of becl 'temprature'", "did you mean 'temperature'"),
    (["square_a", "--method", "rnd", "--set", "positive=mean"], "unknown option of rnd 'positive'", "allowed"),
    (["square_a", "--set", "learner.hiden=1"], "unknown option of DDPG 'learner.hiden'", "'learner.hidden'"),
    (["square_a", "--set", "nonsense"], "nonsense", "OPTION=VALUE"),
    (["square_a", "--set", "batch=many"], "batch=many", "expected a whole number"),
    (["square_a", "--set", "batch=16", "--set", "batch=32"], "batch=16 and batch=32", "one value"),
    (["square_a", "--set", "learner=3"], "'learner' is a group", "learner.hidden"),
    (["square_a", "--skills", "1"], "--skills 1", "at least 2"),
    (["square_a", "--method", "rnd", "--skills", "4"], "--skills 4", "rnd has no skills"),
    (["square_a", "--steps", "4000"], "--steps 4,000", "more than the 4,000 random steps"),
    (["square_a", "--steps", "-1"], "--steps -1", "random steps"),
    (["square_a", "--seeds", "3,7,3"], "--seeds", "3 given more than once"),
    (["square_a", "--seeds", "x"], "--seeds 'x'", "expected"),
    (["square_a", "--seeds", "1:2:3"], "--seeds '1:2:3'", "expected"),
    (["square_a", "--seeds", "0"], "--seeds '0'", "at least one"),
    (["square_a", "--envs", "3"], "envs 3", "a multiple or a divisor of 2"),
    (["square_a", "--envs", "0"], "--envs 0", "at least 1"),
    (["square_a", "--envs", "-2"], "--envs -2", "at least 1"),
    (["square_a", "--set", "env.obs_dim=3"], "env.obs_dim=3", "use the environment"),
    (["square_a", "--set", "env.episode_length=0"], "env.episode_length 0", "at least 1"),
    (["square_a", "--set", "env.episode_length=x"], "env.episode_length=x", "expected a whole number"),
    (["walker", "--pixels", "--set", "env.episode_length=9"], "env.episode_length=9", "not with --pixels"),
    (["gym:Pendulum-v1", "--set", "env.episode_length=9"], "env.episode_length=9", "for robots and mazes"),
    (["square_a", "--set", "skills=8"], "skills=8", "--skills"),
    (["square_a", "--set", "objective.skills.dim=8"], "objective.skills.dim=8", "--skills"),
    (["square_a", "--set", "envs=8"], "envs=8", "--envs"),
    (["square_a", "--set", "precision=bf16"], "precision=bf16", "--precision"),
    (["square_a", "--hidden", "0"], "--hidden 0", "at least 1"),
    (["square_a", "--precision", "fp16"], "fp16", "bf16"),
    (["square_a", "--log-every", "0"], "--log-every 0", "greater than 0"),
    (["square_a", "--set", "batch=0"], "batch 0", "greater than 0"),
    (["square_a", "--set", "temperature=nan"], "temperature nan", "greater than 0"),
    (["square_a", "--set", "replay.gamma=1.5"], "replay.gamma 1.5", "[0, 1]"),
    (["square_a", "--set", "replay.capacity=0"], "replay.capacity 0", "too small"),
    (["square_a", "--set", "network.hidden=-3"], "network.hidden -3", "greater than 0"),
    (["square_a", "--set", "head=0"], "head 0", "greater than 0"),
    (["square_a", "--set", "optimizer.learning_rate=nan"], "optimizer.learning_rate nan", "greater than 0"),
    (["square_a", "--method", "cic", "--set", "batch=8"], "batch 8", "16 neighbours"),
    (["square_a", "--method", "becl-paper", "--set", "denominator=all"], "denominator", "paper, batch"),
    (["square_a", "--tempreature", "1"], "--tempreature", "allowed"),
    (["square_a", "--set", "steps_per_update=0"], "steps_per_update 0", "at least 1"),
    (["square_a", "--set", "random_steps=-5"], "random_steps -5", "negative"),
    (["square_a", "--set", "learner.critic_dim=4"], "learner.critic_dim 4", "1 or the dimension"),
]  # fmt: skip


@pytest.mark.parametrize(("args", "wrong", "allowed"), BAD)
def test_bad_input_is_one_line_exit_2_and_nothing_written(args, wrong, allowed, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["pretrain", *args]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert wrong in error
    assert allowed in error
    assert not list(tmp_path.iterdir())


def test_a_replay_that_does_not_fit_is_refused_with_a_way_out(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(memory_file, "available_memory", lambda: 500_000_000)
    args = ["pretrain", "walker", "--method", "diayn", "--seeds", "2", "--hidden", "64"]
    assert main(args) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "not enough memory" in error
    assert "replay 0.6 GB (2 × 1,000,000 transitions)" in error
    assert "0.5 GB on" in error
    advice = error.partition("--set ")[2].split()[0]
    assert not list(tmp_path.iterdir())
    # The advice is good, and leaves little unused.
    assert advice.startswith("replay.capacity=")
    made = make_pretraining(PretrainOptions("walker", "diayn", (0, 1), hidden=64, set=[advice]))
    assert check_memory(made)
    assert memory(made.run, len(made.seeds)).total > 0.8 * 500_000_000
    monkeypatch.setattr(memory_file, "available_memory", lambda: 1_000_000)
    assert main(args) == 2
    assert "fewer seeds" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_folder_of_something_else_is_left_alone(tmp_path, capsys):
    (tmp_path / "thesis.tex").write_text("chapter 1")
    assert main([*COMMAND, "--out", str(tmp_path)]) == 2
    assert "not empty" in capsys.readouterr().err
    assert main([*COMMAND, "--out", str(tmp_path / "thesis.tex")]) == 2
    assert "is a file" in capsys.readouterr().err
    assert files(tmp_path) == {"thesis.tex": b"chapter 1"}


# --- Not a number -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Poisoned:
    """Rewards 1, and from the sixth fit on, which is at step 50, not a number."""

    skills: OneHot = OneHot(2)

    def init(self, key, env):
        del key, env
        return jnp.zeros(())

    def fit(self, state, batch, key):
        del batch, key
        return state + 1, {"count": state}

    def reward(self, state, batch, key):
        del key
        return state, jnp.where(state > 5, jnp.nan, jnp.ones(len(batch.progress)))


@pytest.fixture
def poisoned(monkeypatch):
    monkeypatch.setitem(METHODS, "poisoned", Method(Poisoned(), "task", "what is not a number"))


@pytest.mark.parametrize("log_every", [40, 4])
@pytest.mark.parametrize("snapshots", [(), (42, 46), (50, 52), (9, 42)])
@pytest.mark.usefixtures("poisoned")
def test_a_run_whose_numbers_are_none_stops_and_says_so(snapshots, log_every, tmp_path, monkeypatch):
    """Found in actions one step later, in metrics when they are written, or in a snapshot before it is kept."""
    monkeypatch.setattr(pretrain_file, "SNAPSHOTS", snapshots)
    made = tiny("poisoned", log_every=log_every)
    out = opened(made, tmp_path / "run")
    with pytest.raises(Failed) as failed:
        pretrain(made, out)
    message = str(failed.value)
    assert "\n" not in message
    assert re.search("seed 3, 7: (a loss|an action|a weight) is not a number after 52 steps", message)
    assert "--precision float32" in message
    assert "learner.optimizer.learning_rate=3e-05" in message
    good = [step for step in snapshots if step < 52]
    assert steps_kept(out / "seed-3") == good
    if good:
        assert f"the last good snapshot is {out}/seed-" in message
        assert f"/snapshot-{good[-1]}.safetensors" in message
        arrays = safetensors.numpy.load(snapshot_path(out, 3, good[-1]).read_bytes())
        assert all(np.isfinite(array).all() for array in arrays.values())
    else:
        assert "there is no snapshot yet" in message
    assert not (out / "result.json").exists()


@pytest.mark.usefixtures("poisoned")
def test_a_failed_command_is_exit_1(tmp_path, capsys):
    command = ["poisoned" if word == "diayn" else word for word in COMMAND]
    assert main([*command, "--out", str(tmp_path / "run")]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.match("becl: failed: seed 3, 7: an? .* is not a number after 52 steps", error)


# --- Ctrl-C -----------------------------------------------------------------------------------------------------------


def test_the_first_ctrl_c_is_noted_and_the_second_stops():
    before = signal.getsignal(signal.SIGINT)
    with interrupts() as interrupted:
        assert not interrupted()
        signal.raise_signal(signal.SIGINT)
        assert interrupted()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(ZeroDivisionError), interrupts():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is before


def test_threads_have_no_ctrl_c():
    import threading

    seen = []

    def work() -> None:
        with interrupts() as interrupted:
            seen.append(interrupted())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False]


def test_an_interrupted_run_keeps_its_networks(tmp_path):
    before = signal.getsignal(signal.SIGINT)
    made = tiny()
    out = opened(made, tmp_path / "run")
    # Both seeds' steps count: 160 are 80 each.
    assert pretrain(made, out, Watching(160, lambda: signal.raise_signal(signal.SIGINT))) is False
    assert signal.getsignal(signal.SIGINT) is before
    for seed in made.seeds:
        assert steps_kept(out / f"seed-{seed}") == [80]
        load_snapshot(made, snapshot_path(out, seed, 80))
    assert not (out / "result.json").exists()
    assert len(rows(out)) == 2


def test_an_interrupted_command_goes_on(finished, tmp_path, monkeypatch, capsys):
    out = tmp_path / "run"

    @contextlib.contextmanager
    def pressing(total, unit):
        assert (total, unit) == (240, "steps")
        yield Watching(100, lambda: signal.raise_signal(signal.SIGINT))

    with monkeypatch.context() as patched:
        patched.setattr(session_file, "progress", pressing)
        assert main([*COMMAND, "--out", str(out)]) == 130
    assert f"the same command, or becl resume {out}, continues" in capsys.readouterr().out
    assert not (out / "result.json").exists()
    assert main([*COMMAND, "--out", str(out)]) == 0
    assert (out / "result.json").exists()
    assert [row["reward"] for row in rows(out)] == [row["reward"] for row in rows(finished)]
    assert_same_networks(snapshot_path(out, 3, 120), snapshot_path(finished, 3, 120))


def test_a_second_ctrl_c_ends_the_command_at_once(tmp_path, monkeypatch, capsys):
    def press() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(session_file, "progress", lambda *_: contextlib.nullcontext(Watching(100, press)))
    assert main([*COMMAND, "--out", str(tmp_path / "run")]) == 130
    assert "becl: stopped; the same command" in capsys.readouterr().out
    assert not (tmp_path / "run" / "seed-3").exists()


@pytest.mark.parametrize("method", ["diayn", "becl"])  # The second takes the skill of the step before.
def test_a_replay_that_the_run_just_fills_learns_as_a_larger_one(method):
    made = tiny(method, steps=122)
    assert made.sized.replay.capacity == 122
    learned = []
    for run in (made.run, made.sized):
        with contextlib.closing(make_envs(made.env, 4, made.seeds)) as environments:
            (last,) = deque(train(run, environments, seed_keys(made.seeds), made.steps), maxlen=1)
            learned.append(jax.device_get((last.state.learner, last.state.objective)))
    jax.tree.map(np.testing.assert_array_equal, *learned)


def test_a_replay_is_never_larger_than_its_run():
    frames = make_pretraining(PretrainOptions("walker", pixels=True, steps=5000))
    assert memory(frames.sized, 1).replay < 2528 * 21_300 * 1.05  # Frames of 84 × 84 × 3, two steps each.
    assert tiny(steps=1000).sized == tiny(steps=1000).run  # Larger than what was asked for it never is.
    assert tiny(steps=122, envs=8).sized.replay.capacity == 128


def test_a_dry_run_on_a_cpu_trains_nothing(monkeypatch, capsys):
    def compiled(*args):
        raise AssertionError("compiled")

    monkeypatch.setattr("becl.learning.training.programs", compiled)
    assert main(["pretrain", "walker", "--dry-run"]) == 0
    assert "estimated" in capsys.readouterr().out


def test_the_arithmetic_of_an_update_is_that_of_its_products():
    made = make_pretraining(PretrainOptions("walker", "ddpg"))
    width, batch, obs, action = 1024, 1024, 24, 6
    actor = obs * width + width * width + width * action
    critic = (obs + action) * width + 2 * (width * width + width)
    # The critic: targets (an action and both heads), then forward, and back to weights and layers. The actor: forward
    # through actor and critic, and back through both; of the critic only layers.
    products = (actor + critic) + 3 * critic + 3 * actor + 2 * critic
    assert operations(made.run) == pytest.approx(2 * batch * products, rel=0.25)


# --- Memory and progress ----------------------------------------------------------------------------------------------


def test_memory_is_what_the_arrays_take():
    made = tiny()
    state, _ = programs(made.run, 1).init(seed_keys(made.seeds))
    size = lambda tree: sum(leaf.nbytes for leaf in jax.tree.leaves(tree))  # noqa: E731
    need = memory(made.run, len(made.seeds))
    assert need.replay == size(state.replay)
    assert need.networks == size((state.learner, state.objective))
    assert need.total == need.replay + need.networks + need.batches
    drawn = made.run.replay.sample(jax.tree.map(lambda leaf: leaf[0], state.replay), jax.random.key(0), made.run.batch)
    assert need.batches == pytest.approx(2 * size(drawn), rel=0.2)  # Two seeds, one update of one batch each.


def test_progress_says_how_much_how_fast_and_how_long(monkeypatch):
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    lines: list[str] = []
    shown = Progress(2000, "steps", lines.append, interval=15.0)
    assert shown.line() == "0 of 2,000 steps (0 %) · 0.0/s · left ?"
    now += 10
    shown.advance(100, seeds=2)
    assert lines == []  # Not yet time.
    now += 10
    shown.note = "reward 0.5"
    shown.advance(200)
    assert lines == ["400 of 2,000 steps (20 %) · 20.0/s · left 1:20 · reward 0.5"]
    for seed in range(5):
        shown.begin("becl", seed)
    shown.end("becl", 1)
    shown.end("becl", 9)
    shown.note = ""
    assert shown.line().endswith(" · left 1:20 · becl/0, becl/2, becl/3, becl/4")
    shown.begin("becl", 5)
    assert shown.line().endswith("becl/4, …")
    shown.running.clear()
    shown.done = 3000  # The last step of all environments may go beyond the end.
    assert shown.line() == "3,000 of 2,000 steps (150 %) · 150/s · left 0:00"
    shown.total, shown.done = 10**6, 100_000
    assert shown.line() == "100,000 of 1,000,000 steps (10 %) · 5,000/s · left 3:00"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0:00"), (59.9, "0:59"), (61.0, "1:01"), (3599.0, "59:59"), (3600.0, "1:00:00"), (90061.0, "25:01:01")],
)
def test_clock(seconds, text):
    assert clock(seconds) == text
    assert clock(float("inf")) == "?"


def test_without_a_terminal_progress_is_plain_lines(capsys):
    with progress(10, "steps") as shown:
        shown.interval = 0.0
        shown.advance(5)
    assert capsys.readouterr().err.startswith("5 of 10 steps (50 %)")


# --- Several devices --------------------------------------------------------------------------------------------------

SHARING = """
import jax, numpy as np
jax.config.update("jax_disable_most_optimizations", True)
from becl.learning import programs, training
from becl.options import PretrainOptions
from becl.experiments.environments import make_envs
from becl.experiments.pretraining import make_pretraining, seed_keys
from becl.learning import offpolicy
from becl.options import PretrainOptions
from becl.experiments.environments import make_envs
from becl.experiments.pretraining import make_pretraining, seed_keys

assert [programs.usable_devices(seeds) for seeds in (1, 2, 3, 4, 5, 6, 8)] == [1, 2, 3, 4, 1, 3, 4]
settings = ["batch=16", "replay.capacity=400", "random_steps=20"]
options = PretrainOptions("square_a", "diayn", (0, 1, 2, 3), 60, skills=3, envs=2, hidden=8, set=settings)
made = make_pretraining(options)

def final(devices):
    training.usable_devices = lambda seeds: devices
    environments = make_envs(made.env, 8, made.seeds)
    *_, last = training.train(made.run, environments, seed_keys(made.seeds), made.steps)
    for leaf in jax.tree.leaves((last.state.learner, last.state.objective, last.state.replay)):
        assert len(leaf.sharding.device_set) == devices, leaf.sharding
        assert all(len(shard.data) == 4 // devices for shard in leaf.addressable_shards)
    return jax.tree.map(np.asarray, last.state.learner.actor)

jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), final(4), final(1))
print("same")
"""


def test_seeds_are_shared_by_devices_and_learn_the_same():
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", SHARING]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "same"
