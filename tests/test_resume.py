"""A run that was stopped and went on is the run that was never stopped; and what happens where it cannot go on."""

import contextlib
import csv
import dataclasses
import errno
import itertools
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from event_files import curves
from run_folders import forget_sums

from becl import envs
from becl.commands.cli import main
from becl.envs.maze_batch import MazeBatch
from becl.errors import UserError
from becl.experiments import finetuner as finetune_file
from becl.experiments import maze_results as results_file
from becl.experiments import maze_trainer as study_file
from becl.experiments import pretraining as pretrain_file
from becl.experiments.finetuner import finetune
from becl.experiments.finetuning import Finetuning, make_finetuning
from becl.experiments.maze_study import Study, load_study, make_study
from becl.experiments.maze_trainer import train_seeds
from becl.experiments.pretrainer import pretrain
from becl.experiments.pretraining import Pretraining, make_pretraining, seed_keys
from becl.experiments.snapshots import save_snapshots
from becl.objectives import METHODS
from becl.options import FinetuneOptions, MazeOptions, PretrainOptions
from becl.runs import checkpoint as checkpoint_file
from becl.runs import session as session_file
from becl.runs.checkpoint import Checkpoints
from becl.runs.events import EventWriter
from becl.runs.folder import open_folder
from becl.runs.lock import locked
from becl.runs.progress import Progress
from becl.runs.tables import read_rows
from becl.skills import OneHot

# The replay is full before the end of most runs here, and goes round.
TINY = ["batch=16", "replay.capacity=100", "random_steps=20"]
LENGTH = 50  # Of the walker's episodes here.
LANES = 2  # Seeds together; steps are counted over both.


pytestmark = pytest.mark.usefixtures("short_walker")


def tiny(method="diayn", env="square_a", steps=120, settings=(), **options) -> Pretraining:
    skills = 4 if isinstance(METHODS[method].objective.skills, OneHot) else None
    options = {"envs": 2, "hidden": 8, "log_every": 20, **options}
    return make_pretraining(
        PretrainOptions(env, method, (3, 7), steps, skills=skills, set=[*TINY, *settings], **options)
    )


def opened(made: Any, out: Path) -> Path:
    open_folder(made.config(), out)
    return out


class Stopping(Progress):
    """Does something once so many steps, over all seeds, are done."""

    def __init__(self, at: int, act: Callable[[], Any] = lambda: signal.raise_signal(signal.SIGINT)):
        super().__init__(1000, "steps", lambda line: None, 1e9)
        self.acts = [(at, act)]

    def then(self, at: int) -> None:
        """Presses Ctrl-C later."""
        self.acts.append((at, lambda: signal.raise_signal(signal.SIGINT)))

    def advance(self, amount: int, seeds: int = 1) -> None:
        before = self.done
        super().advance(amount, seeds)
        for at, act in self.acts:
            if before < at <= self.done:
                act()


def stopped(made: Pretraining, out: Path, *steps: int, number: int = signal.SIGINT, **options: Any) -> list[str]:
    """Stopped after these steps of each seed, and gone on with; what was said."""
    said: list[str] = []
    for step in steps:
        shown = Stopping(LANES * step, lambda: signal.raise_signal(number))
        assert pretrain(made, out, shown, say=said.append, **options) is False
        assert not (out / "result.json").exists()
        assert not (out / "lock").exists()
    return said


# --- What must be equal -----------------------------------------------------------------------------------------------


def arrays_of(path: Path) -> dict[str, np.ndarray]:
    return safetensors.numpy.load(path.read_bytes())


def table(path: Path) -> list[dict[str, str]]:
    """Rows without the one column that a clock decides."""
    rows = list(csv.DictReader(path.open()))
    return [{name: value for name, value in row.items() if name != "steps_per_second"} for row in rows]


def events(folder: Path) -> list[tuple[int, str]]:
    """Steps and values that TensorBoard shows, without speeds, as texts in which NaN is NaN."""
    return [
        (step, repr({tag: value for tag, value in values.items() if tag != "steps_per_second"}))
        for step, values in curves(folder)
    ]


def assert_same_arrays(one: Path, other: Path) -> None:
    left, right = arrays_of(one), arrays_of(other)
    assert left.keys() == right.keys()
    for name, array in left.items():
        assert array.dtype == right[name].dtype
        np.testing.assert_array_equal(array, right[name], err_msg=f"{one.name} {name}")


def assert_same_run(one: Path, other: Path) -> None:
    """Two finished folders, to the bit; `other` may have networks of where it was stopped."""
    assert table(one / "metrics.csv") == table(other / "metrics.csv")
    assert (one / "metrics.csv").read_text().count("step,") == 1
    if (one / "scores.csv").exists():
        assert (one / "scores.csv").read_text() == (other / "scores.csv").read_text()
    lanes = sorted(path.name for path in (one / "tensorboard").iterdir())
    assert lanes == sorted(path.name for path in (other / "tensorboard").iterdir())
    for lane in lanes:
        left, right = (events(out / "tensorboard" / lane) for out in (one, other))
        assert left == right
        assert len({step for step, _ in left}) == len(left)  # No step twice.
    networks = [path.relative_to(one) for path in one.rglob("*.safetensors")]
    assert networks
    for path in networks:
        assert_same_arrays(one / path, other / path)
    for out in (one, other):
        assert (out / "result.json").exists()
        left = {path.name for path in out.iterdir()} & {"checkpoint", "lock", "error.log"}
        assert not left
        assert not list(out.rglob("*.part"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """The run of most tests, never stopped."""
    made = tiny()
    out = opened(made, tmp_path_factory.mktemp("whole") / "run")
    assert pretrain(made, out)
    return out


def test_the_comparison_sees_differences(whole, tmp_path):
    """A table with a row more or less, a number changed in the last place, events of another step."""
    for name, change in {
        "metrics.csv": lambda data: data + data.splitlines(True)[-1],
        "seed-3/snapshot-120.safetensors": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    }.items():
        other = Path(shutil.copytree(whole, tmp_path / "other"))
        (other / name).write_bytes(change((other / name).read_bytes()))
        with pytest.raises(AssertionError):
            assert_same_run(whole, other)
        shutil.rmtree(other)
    other = Path(shutil.copytree(whole, tmp_path / "other"))
    (path,) = (other / "tensorboard" / "seed-3").iterdir()
    data = path.read_bytes()
    path.write_bytes(data[:-5] + bytes([data[-5] ^ 1]) + data[-4:])
    with pytest.raises(AssertionError):
        assert_same_run(whole, other)
    path.write_bytes(data)
    with EventWriter(path.parent) as writer:  # A row twice.
        writer.scalars(120, curves(path.parent)[-1][1])
    with pytest.raises(AssertionError):
        assert_same_run(whole, other)
    with EventWriter(path.parent, purge_step=120):  # And a row less.
        pass
    with pytest.raises(AssertionError):
        assert_same_run(whole, other)


# --- Pretraining ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_was_stopped_goes_on_bit_by_bit(number, whole, tmp_path):
    made = tiny()
    out = opened(made, tmp_path / "run")
    assert stopped(made, out, 72, number=number) == []
    assert Checkpoints(out / "checkpoint", made.config()).steps() == [72]
    said: list[str] = []
    assert pretrain(made, out, say=said.append)
    assert said == ["continues after 72 steps"]
    assert_same_run(whole, out)


@pytest.mark.parametrize(
    "method", ["becl", "proto", "rnd", *(pytest.param(name, marks=pytest.mark.slow) for name in ("apt", "aps", "icm"))]
)
def test_methods_with_statistics_and_queues_go_on(method, tmp_path):
    """Stopped before anything is learned and after."""
    made = tiny(method, steps=80)
    one, other = (opened(made, tmp_path / name) for name in ("whole", "stopped"))
    assert pretrain(made, one)
    stopped(made, other, 14, 46)
    assert pretrain(made, other)
    assert_same_run(one, other)


def test_a_robot_goes_on(tmp_path, monkeypatch):
    """In the middle of an episode, and after its end; some of the snapshots before, some after."""
    monkeypatch.setattr(pretrain_file, "SNAPSHOTS", (30, 120))
    made = tiny("diayn", "walker", 150)
    one, other = (opened(made, tmp_path / name) for name in ("whole", "stopped"))
    assert pretrain(made, one)
    stopped(made, other, 38, 100, 134)
    assert pretrain(made, other)
    assert_same_run(one, other)
    assert len(list(one.glob("seed-*/snapshot-*"))) == 6


def test_it_may_be_stopped_again_and_again(whole, tmp_path):
    made = tiny()
    out = opened(made, tmp_path / "run")
    said = stopped(made, out, 2, 4, 22, 24, 50, 98, 100, 118, checkpoint_every=10)
    assert said == [f"continues after {step} steps" for step in (2, 4, 22, 24, 50, 98, 100)]
    assert pretrain(made, out, checkpoint_every=7)
    assert_same_run(whole, out)


def test_at_the_very_end_only_the_result_is_missing(whole, tmp_path):
    made = tiny()
    out = opened(made, tmp_path / "run")
    stopped(made, out, 120)
    said: list[str] = []
    assert pretrain(made, out, say=said.append)
    assert said == ["continues after 120 steps"]
    assert_same_run(whole, out)


def test_a_signal_between_two_looks_is_no_reason_to_lose_anything(whole, tmp_path, monkeypatch):
    """It may come after the decision whether to save was made."""
    made = tiny()
    out = opened(made, tmp_path / "run")
    asked = 0

    @contextlib.contextmanager
    def late() -> Iterator[Callable[[], bool]]:
        def pressed() -> bool:
            nonlocal asked
            asked += 1
            return asked > 31

        yield pressed

    with monkeypatch.context() as patched:
        patched.setattr(session_file, "interrupts", late)
        assert pretrain(made, out) is False
    assert Checkpoints(out / "checkpoint", made.config()).steps()
    assert pretrain(made, out)
    assert_same_run(whole, out)


@pytest.mark.parametrize("every", [14, 1000])
def test_a_replay_that_went_round_goes_on(every, whole, tmp_path):
    """There is room for 50 steps of the two environments; parts that are overwritten are dropped."""
    made = tiny()
    out = opened(made, tmp_path / "run")
    stopped(made, out, 118, checkpoint_every=every)
    kept = json.loads((out / "checkpoint" / "step-118.json").read_text())["parts"]
    if every == 14:
        ends = (6, 13, 20, 27, 34, 41, 48, 55, 58)
        assert kept == [f"replay-{first}-{end}.safetensors" for first, end in itertools.pairwise(ends)]
    else:
        assert kept == ["replay-8-58.safetensors"]  # Those before had been overwritten.
    assert pretrain(made, out)
    assert_same_run(whole, out)


def test_snapshots_of_stopped_runs_are_those_of_the_run(tmp_path, monkeypatch):
    made = tiny()
    monkeypatch.setattr(pretrain_file, "SNAPSHOTS", (60,))
    one, other = (opened(made, tmp_path / name) for name in ("whole", "stopped"))
    assert pretrain(made, one)
    stopped(made, other, 60)
    assert_same_arrays(other / "seed-7" / "snapshot-60.safetensors", one / "seed-7" / "snapshot-60.safetensors")


# --- Finetuning -------------------------------------------------------------------------------------------------------


def pretrained(out: Path, method: str) -> Path:
    """A folder as pretraining leaves it, with networks of random numbers."""
    made, rng = tiny(method, "walker", 100), np.random.default_rng(0)
    state, _ = jax.eval_shape(jax.vmap(made.run.init), seed_keys(made.seeds))

    def drawn(leaf: Any) -> np.ndarray:
        return (0.3 * rng.normal(size=leaf.shape)).astype(leaf.dtype)

    learner, objective = jax.tree.map(drawn, (state.learner, state.objective))
    save_snapshots(made, opened(made, out), state._replace(learner=learner, objective=objective), 100)
    return out


SKILLS = {
    "random": ("becl", ()),
    "best-first": ("becl", ("choice.steps=40", "random_steps=50")),
    "regress": ("aps", ("choice.after=24", "choice.batch=32")),
    "meta": ("becl", ()),
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("sources")
    return {method: pretrained(folder / method, method) for method in ("becl", "aps")}


def tuning(sources: dict[str, Path], skill: str) -> Finetuning:
    method, settings = SKILLS[skill]
    steps, every = (400, 100) if skill == "meta" else (90, 20)
    # Tasks or seeds: two lanes.
    tasks, seeds = (("walker_stand", "walker_run"), (3,)) if skill == "random" else (("walker_run",), (3, 7))
    return make_finetuning(
        FinetuneOptions(
            sources[method],
            tasks,
            seeds=seeds,
            steps=steps,
            skill=skill,
            set=settings,
            eval_every=every,
            eval_episodes=2,
            final_episodes=3,
        )
    )


@pytest.mark.parametrize("skill", SKILLS)
def test_finetuning_goes_on(skill, sources, tmp_path):
    """Networks, scores, and simulations of both training and evaluation."""
    made = tuning(sources, skill)
    one, other = (opened(made, tmp_path / name) for name in ("whole", "stopped"))
    assert finetune(made, one)
    for step in (made.steps // 4, made.steps // 2, made.steps):
        assert finetune(made, other, Stopping(LANES * step)) is False
    said: list[str] = []
    assert finetune(made, other, say=said.append)
    assert said == [f"continues after {made.steps} steps"]
    assert_same_run(one, other)


# --- The maze study ---------------------------------------------------------------------------------------------------


def maze_study(cycles: int = 20) -> Study:
    settings = ["learner.network.hidden=8", "network.hidden=8", "episodes=8", "env.episode_length=10"]
    return make_study(MazeOptions(("becl",), skills=4, seeds=(0, 1), cycles=cycles, set=settings))


@pytest.mark.parametrize("seeds", [(0,), pytest.param((0, 1), marks=pytest.mark.slow)])
def test_a_maze_study_goes_on(seeds, tmp_path, monkeypatch):
    monkeypatch.setattr(study_file, "CHECKPOINT_CYCLES", 4)
    monkeypatch.setattr(study_file, "CHUNK", 2)
    monkeypatch.setattr(results_file, "REPEATS", 1)
    study = maze_study()
    one, other = (opened(study, tmp_path / name) for name in ("whole", "stopped"))
    train_seeds(study, "becl", seeds, one)
    for at in (6, 14, 15):
        done = 0

        def die(cycles: int, at: int = at) -> None:
            nonlocal done
            done += cycles
            if done >= at:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train_seeds(study, "becl", seeds, other, die)
        assert max(Checkpoints(next((other / "becl").glob("*.checkpoint")), {}).steps()) == at // 4 * 4
    reported: list[int] = []
    train_seeds(study, "becl", seeds, other, reported.append)
    assert reported == [12] + 4 * [2]
    for seed in seeds:
        assert_same_arrays(*(out / "becl" / f"seed-{seed}.safetensors" for out in (one, other)))
        left, right = (out / "becl" / f"seed-{seed}" for out in (one, other))
        assert left.with_suffix(".csv").read_text() == right.with_suffix(".csv").read_text()
        with np.load(left.with_suffix(".npz")) as paths, np.load(right.with_suffix(".npz")) as others:
            np.testing.assert_array_equal(paths["paths"], others["paths"])
    assert not list(other.rglob("*.checkpoint"))


@pytest.mark.slow
def test_the_last_seed_of_a_study_is_the_same_alone(tmp_path):
    """Two are trained by two processes; the one that is left is trained by one, which has all cores."""
    words = ["maze", "--methods", "becl", "diayn", "--cycles", "50", "--skills", "4", "--workers", "2", "--set",
             "learner.network.hidden=16", "network.hidden=16", "episodes=10", "env.episode_length=20"]  # fmt: skip
    out, kept = tmp_path / "study", tmp_path / "kept"
    for _ in range(2):
        subprocess.run(
            [sys.executable, "-m", "becl", *words, "--out", str(out)],
            env=os.environ | {"JAX_PLATFORMS": "cpu"}, check=True, capture_output=True, timeout=600,
        )  # fmt: skip
        if not kept.exists():
            shutil.move(out / "becl", kept)
    assert_same_arrays(kept / "seed-0.safetensors", out / "becl" / "seed-0.safetensors")
    assert (kept / "seed-0.csv").read_text() == (out / "becl" / "seed-0.csv").read_text()


def test_a_study_gives_back_its_settings(tmp_path):
    study = maze_study()
    out = opened(study, tmp_path / "study")
    (out / "seeds.json").write_text("[0, 1]")
    assert load_study(out) == study


# --- Damaged checkpoints ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def half(tmp_path_factory) -> Path:
    """A run stopped at step 72, with two checkpoints."""
    made = tiny()
    out = opened(made, tmp_path_factory.mktemp("half") / "run")
    stopped(made, out, 72, checkpoint_every=50)
    assert Checkpoints(out / "checkpoint", {}).steps() == [50, 72]
    return out


@pytest.fixture
def halfway(half, tmp_path) -> Path:
    return Path(shutil.copytree(half, tmp_path / "run"))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["step-72.json", "step-72.safetensors", "replay-24-35.safetensors"])
def test_with_the_newest_damaged_the_one_before_is_used(name, halfway, whole):
    made, said = tiny(), []
    flip(halfway / "checkpoint" / name)
    assert pretrain(made, halfway, say=said.append, checkpoint_every=30)
    assert len(said) == 2
    assert said[0].startswith("checkpoint of step 72 is damaged (")
    assert said[1] == "continues after 50 steps"
    assert_same_run(whole, halfway)


@pytest.mark.parametrize("names", [["replay-0-24.safetensors"], ["step-50.json", "step-72.json"]])
def test_with_both_damaged_it_begins_again(names, halfway, whole):
    made, said = tiny(), []
    for name in names:
        flip(halfway / "checkpoint" / name)
    with contextlib.suppress(KeyboardInterrupt):
        assert pretrain(made, halfway, Stopping(LANES * 30), say=said.append, checkpoint_every=10) is False
    assert len(said) == 2
    assert said[1].endswith("beginning again")
    assert pretrain(made, halfway, say=said.append)
    assert said[2:] == ["continues after 30 steps"]
    assert_same_run(whole, halfway)


def test_rows_that_a_full_disk_lost_are_in_the_next_checkpoint(tmp_path, whole, monkeypatch):
    made, said = tiny(), []
    out = opened(made, tmp_path / "run")
    write, failing = checkpoint_file.write_bytes, {"step-40.safetensors", "replay-29-39.safetensors"}

    def full(path: Path, data: bytes) -> None:
        if path.name in failing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, data)

    monkeypatch.setattr(checkpoint_file, "write_bytes", full)
    shown = Stopping(LANES * 100)
    assert pretrain(made, out, shown, say=said.append, checkpoint_every=20) is False
    assert [line.partition(" could")[0] for line in said] == [f"checkpoint of step {step}" for step in (40, 80)]
    assert all("No space left on device" in line for line in said)
    monkeypatch.undo()
    assert pretrain(made, out)
    assert_same_run(whole, out)


def test_checkpoints_that_somebody_removed_are_written_again(tmp_path, whole):
    made, said = tiny(), []
    out = opened(made, tmp_path / "run")
    shown = Stopping(LANES * 50, lambda: shutil.rmtree(out / "checkpoint", ignore_errors=True))
    shown.then(LANES * 110)
    assert pretrain(made, out, shown, say=said.append, checkpoint_every=20) is False
    # The thread may have been at the checkpoint of step 40 just then.
    assert said
    assert {line.partition(" could")[0] for line in said} <= {f"checkpoint of step {step}" for step in (40, 60)}
    assert pretrain(made, out)
    assert_same_run(whole, out)


@pytest.mark.parametrize("change", [
    lambda about: about.pop("number"),
    lambda about: about.pop("log"),
    lambda about: about["log"].pop("position"),
    lambda about: about["log"].update(position="far"),
    lambda about: about["log"].update(position=10**9),
    lambda about: about["log"].update(step="far"),
    lambda about: about["log"].update(step=None),
    lambda about: about["log"].update(step=2**63),
    lambda about: about["log"].update(ended=3),
    lambda about: about["log"].update(ended=[]),
    lambda about: about["log"].update(columns=None),
    lambda about: about.pop("extra"),
    lambda about: about.update(extra={}),
])  # fmt: skip
def test_a_sealed_checkpoint_of_something_else_is_one_line(change, halfway, tmp_path, capsys):
    """As a stranger might send it. Nothing outside the folder is touched."""
    (tmp_path / "victim").write_text("precious")
    folder = halfway / "checkpoint"
    made = tiny()
    checkpoints = Checkpoints(folder, json.loads(json.dumps(made.config())))
    found = checkpoints.load(10**9, lambda line: None)
    assert found is not None
    change(found.about)
    checkpoints.save(found.step, found.arrays, found.about, None, list(found.parts))
    code = main(["resume", str(halfway)])
    error = capsys.readouterr().err
    assert (tmp_path / "victim").read_text() == "precious"
    assert code == 2
    assert error.count("\n") == 1
    assert error.startswith("becl: ")


@pytest.mark.parametrize("lost", ["metrics.csv", "changed", "tensorboard"])
def test_what_was_removed_is_written_again(lost, halfway, whole, capsys):
    before = {path: curves(path) for path in (halfway / "tensorboard").iterdir()}
    if lost == "tensorboard":
        shutil.rmtree(halfway / lost)
    elif lost == "metrics.csv":
        (halfway / lost).unlink()
    else:
        (halfway / "metrics.csv").write_text("step,seed\n")
    assert main(["resume", str(halfway)]) == 0
    assert "written again" in capsys.readouterr().err
    if lost != "tensorboard":
        assert_same_run(whole, halfway)
        return
    rows = read_rows(halfway / "metrics.csv")
    for path, told in before.items():
        own = {row["step"]: row["reward"] for row in rows if f"seed-{row['seed']}" == path.name}
        again = {step: values["reward"] for step, values in curves(path) if "reward" in values}
        assert again == pytest.approx(own, rel=1e-5)
        assert own.keys() > {step for step, values in told if "reward" in values}


# --- The command ------------------------------------------------------------------------------------------------------

COMMAND = ["pretrain", "square_a", "--method", "diayn", "--seeds", "3,7", "--steps", "120", "--skills", "4",
           "--envs", "2", "--hidden", "8", "--log-every", "20", "--set", *TINY]  # fmt: skip


def without_result(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("again", ["resume", "pretrain"])
def test_resume_is_the_same_command(again, halfway, whole, capsys):
    words = COMMAND if again == "pretrain" else ["resume", str(halfway)]
    assert main([*words, *(["--out", str(halfway)] if again == "pretrain" else [])]) == 0
    assert capsys.readouterr().err == "becl: continues after 72 steps\n"
    assert_same_run(whole, halfway)


def test_a_finished_run_does_nothing(whole, tmp_path, capsys):
    out = Path(shutil.copytree(whole, tmp_path / "run"))
    before = without_result(out)
    (out / "checkpoint").mkdir()
    (out / "checkpoint" / "step-100.json").write_text("of a run that was killed as it ended")
    for words in (["resume", str(out)], [*COMMAND, "--out", str(out)]):
        assert main(words) == 0
        assert "already finished" in capsys.readouterr().out
        assert without_result(out) == before


def test_a_source_may_be_spelled_otherwise(sources, tmp_path, monkeypatch):
    """By the same command from another place; another folder with the same configuration is another source."""
    made = tuning(sources, "random")
    out = opened(made, tmp_path / "tuned")
    assert finetune(made, out, Stopping(LANES * 40)) is False
    monkeypatch.chdir(sources["becl"].parent)
    elsewhere = dataclasses.replace(made, source=f"../{sources['becl'].parent.name}/becl")
    said: list[str] = []
    assert finetune(elsewhere, opened(elsewhere, out), say=said.append)
    assert said == ["continues after 40 steps"]
    with pytest.raises(UserError, match="source"):
        opened(dataclasses.replace(made, source=str(tmp_path / "becl")), out)


def test_resume_of_finetuning_and_of_a_study(sources, tmp_path, monkeypatch, capsys):
    made = tuning(sources, "random")
    out = opened(made, tmp_path / "tuned")
    assert finetune(made, out, Stopping(LANES * 40)) is False
    assert main(["resume", str(out)]) == 0
    assert "becl: continues after 40 steps\n" in capsys.readouterr().err
    assert (out / "result.json").exists()
    for name in ("CHECKPOINT_CYCLES", "CHUNK"):
        monkeypatch.setattr(study_file, name, 2)
    monkeypatch.setattr(results_file, "REPEATS", 1)
    study = maze_study(6)
    out = opened(study, tmp_path / "study")
    assert main(["resume", str(out)]) == 2
    assert "seeds.json" in capsys.readouterr().err
    (out / "seeds.json").write_text("[0]")
    with monkeypatch.context() as patched:
        patched.setattr(study_file, "keep", lambda *_: signal.raise_signal(signal.SIGINT))
        assert main(["resume", str(out), "--workers", "1"]) == 130
    assert f"becl resume {out}, continues" in capsys.readouterr().out
    assert Checkpoints(out / "becl" / "seed-0.checkpoint", {}).steps() == [2, 4]
    assert main(["resume", str(out), "--workers", "1"]) == 0
    assert (out / "becl" / "seed-0.json").exists()
    assert (out / "summary.csv").exists()


def changed(out: Path, *place: str, **values: Any) -> None:
    config = json.loads((out / "config.json").read_text())
    forget_sums(out)
    inner = config
    for name in place:
        inner = inner[name]
    inner.update(values)
    (out / "config.json").write_text(json.dumps(config))


REFUSED = [
    (lambda out: changed(out, steps=140), "another configuration (steps: 120, 140 now)"),
    (lambda out: changed(out, "run", "learner", hidden=9), "another configuration (run.learner.hidden: 8, 9 now)"),
    (lambda out: changed(out, colour="blue"), "config.json: unknown option of Pretraining 'colour'"),
    (lambda out: changed(out, "run", "replay", depth=3), "unknown option of Replay 'run.replay.depth'"),
    (lambda out: changed(out, command="dance"), "holds no run that can be resumed"),
    (lambda out: (out / "config.json").write_text("[" * 100_000), "damaged"),
    (lambda out: forget_sums(out) or (out / "config.json").write_text("[]"), "holds no run"),
    (lambda out: (out / "config.json").unlink(), "holds no run"),
]


@pytest.mark.parametrize(("change", "why"), REFUSED)
def test_another_configuration_is_refused(change, why, halfway, capsys):
    change(halfway)
    before = without_result(halfway)
    assert main(["resume", str(halfway)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert why in error
    assert without_result(halfway) == before


def test_a_version_with_other_settings_is_refused(halfway, capsys):
    """A field that this version has and the one that began the run had not."""
    config = json.loads((halfway / "config.json").read_text())
    del config["run"]["precision"]
    forget_sums(halfway)
    (halfway / "config.json").write_text(json.dumps(config))
    assert main(["resume", str(halfway)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "a version with other settings (run.precision: absent, present now)" in error


# --- One process at a time --------------------------------------------------------------------------------------------


def test_a_folder_is_one_process_s(tmp_path):
    with locked(tmp_path):
        with pytest.raises(UserError, match=f"in use by process {os.getpid()} on this machine"), locked(tmp_path):
            pass
        assert (tmp_path / "lock").exists()
    assert not (tmp_path / "lock").exists()
    with locked(tmp_path):
        pass


HOLDING = """
import sys, time
from pathlib import Path
from becl.runs.lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_second_process_is_refused_until_the_first_is_killed(halfway, whole, capsys):
    holder = subprocess.Popen([sys.executable, "-c", HOLDING, str(halfway)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        before = without_result(halfway)
        assert main(["resume", str(halfway)]) == 2
        error = capsys.readouterr().err
        assert error == f"becl: {halfway} is in use by process {holder.pid} on this machine\n"
        assert without_result(halfway) == before
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()  # type: ignore[union-attr]
    assert (halfway / "lock").exists()
    assert main(["resume", str(halfway)]) == 0
    assert_same_run(whole, halfway)


@pytest.mark.parametrize("text", ["", "{", "[" * 1000, "null", '{"pid": "x", "host": 1}', "\0" * 50])
def test_a_lock_that_says_nothing_is_taken_over(text, tmp_path):
    (tmp_path / "lock").write_text(text)
    with locked(tmp_path):
        held = json.loads((tmp_path / "lock").read_text())
        assert (held["pid"], held["host"]) == (os.getpid(), socket.gethostname())


def test_a_lock_of_a_process_that_is_gone_is_taken_over_here_only(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for host, refused in ((socket.gethostname(), False), ("elsewhere", True)):
        (tmp_path / "lock").write_text(json.dumps({"pid": gone.pid, "host": host}))
        if refused:
            said = rf"in use by process {gone.pid} on elsewhere; if that has ended, remove .*lock"
            with pytest.raises(UserError, match=said), locked(tmp_path):
                pass
            assert (tmp_path / "lock").exists()
        else:
            with locked(tmp_path):
                pass


def test_a_study_is_one_process_s(tmp_path, capsys):
    study = maze_study()
    out = opened(study, tmp_path / "study")
    (out / "seeds.json").write_text("[0]")
    with locked(out):
        assert main(["resume", str(out)]) == 2
    assert "in use" in capsys.readouterr().err


# --- What can go wrong outside ----------------------------------------------------------------------------------------


def commanded(monkeypatch, at: int, act: Callable[[], Any]) -> None:
    monkeypatch.setattr(session_file, "progress", lambda *_: contextlib.nullcontext(Stopping(LANES * at, act)))


def test_a_folder_that_is_removed_ends_the_run(tmp_path, monkeypatch, capsys):
    out = tmp_path / "run"
    commanded(monkeypatch, 66, lambda: shutil.rmtree(out))
    assert main([*COMMAND, "--out", str(out)]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith(f"becl: failed: cannot write in {out}: No such file or directory")
    assert not out.exists()


@contextlib.contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """As on a disk with a limit: a longer file cannot be written."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_too_small_for_checkpoints_is_told_and_the_run_ends_well(whole, tmp_path, capsys):
    out = tmp_path / "run"
    longest = max(path.stat().st_size for path in whole.rglob("*") if path.is_file())
    with files_up_to(2 * longest):
        assert main([*COMMAND, "--checkpoint-every", "50", "--out", str(out)]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" could")[0] for line in lines] == [
        "becl: checkpoint of step 50",
        "becl: checkpoint of step 100",
    ]
    assert all("File too large" in line for line in lines)
    assert_same_run(whole, out)


def test_a_disk_too_small_for_metrics_ends_the_run_and_leaves_the_checkpoint(whole, tmp_path, monkeypatch, capsys):
    out = tmp_path / "run"
    limit = contextlib.ExitStack()

    def act() -> None:
        while not Checkpoints(out / "checkpoint", {}).steps():  # Written beside the training.
            time.sleep(0.01)
        # One row fits, the next does not.
        limit.enter_context(files_up_to((out / "metrics.csv").stat().st_size + 100))

    with monkeypatch.context() as patched:
        commanded(patched, 66, act)
        with limit:
            assert main([*COMMAND, "--checkpoint-every", "50", "--out", str(out)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"becl: failed: cannot write in {out}: File too large; becl resume {out} continues after 50 steps"]
    assert Checkpoints(out / "checkpoint", tiny().config()).load(10**9, pytest.fail) is not None
    assert main(["resume", str(out)]) == 0
    assert_same_run(whole, out)


def test_a_study_on_a_full_disk_ends_with_a_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(results_file, "REPEATS", 1)
    study = maze_study(1)
    out = opened(study, tmp_path / "study")
    (out / "seeds.json").write_text("[0]")
    # No room for the lock, for a part of it, and for the lock but not for what is trained.
    for size, code in ((0, 2), (100, 2), (500, 1)):
        with files_up_to(size):
            assert main(["resume", str(out), "--workers", "1"]) == code
        *_, line = capsys.readouterr().err.splitlines()
        assert line.startswith("becl: ")
        assert "File too large" in line


def poison(monkeypatch, at: int, place: Callable[[Any], Any]) -> None:
    """A state of the second seed that is not a number from a step on."""
    train = session_file.train

    def poisoned(*args: Any, **options: Any) -> Iterator[Any]:
        for now in train(*args, **options):
            if now.step < at:
                yield now
                continue
            yield now._replace(loop=now.loop._replace(state=place(now.loop.state)))

    monkeypatch.setattr(session_file, "train", poisoned)


def test_numbers_that_are_none_are_never_saved(tmp_path, whole, monkeypatch, capsys):
    out = tmp_path / "run"

    def place(state: Any) -> Any:
        opt = state.learner.critic_opt
        square = jax.tree.map(lambda leaf: leaf.at[1].set(jnp.inf), opt.square)
        return state._replace(learner=state.learner._replace(critic_opt=opt._replace(square=square)))

    with monkeypatch.context() as patched:
        poison(patched, 90, place)
        assert main([*COMMAND, "--checkpoint-every", "32", "--out", str(out)]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("becl: failed: seed 7: learner.critic_opt.square.")
    assert "is not a number after 96 steps" in error
    assert "the last good checkpoint of step 64" in error
    found = Checkpoints(out / "checkpoint", tiny().config()).load(10**9, pytest.fail)
    assert found is not None
    assert found.step == 64
    assert all(np.isfinite(array).all() for name, array in found.arrays.items() if array.dtype.kind == "f")
    assert main(["resume", str(out)]) == 0
    assert_same_run(whole, out)


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 5 bytes"), "on the device"),
        (MemoryError(), "on this machine"),
    ],
)
def test_no_memory_left_is_advice(error, what, tmp_path, monkeypatch, capsys):
    out = tmp_path / "run"

    def fail() -> None:
        raise error

    commanded(monkeypatch, 60, fail)
    assert main([*COMMAND, "--checkpoint-every", "50", "--out", str(out)]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"becl: failed: out of memory {what}; train fewer seeds together, or --set a smaller replay.capacity" in said
    assert f"becl resume {out} continues after 50 steps" in said


def test_other_errors_of_the_device_are_not_hidden(tmp_path, monkeypatch):
    def fail() -> None:
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")

    commanded(monkeypatch, 60, fail)
    with pytest.raises(jax.errors.JaxRuntimeError):
        main([*COMMAND, "--out", str(tmp_path / "run")])


def test_an_environment_that_fails_is_a_line_and_a_log(tmp_path, whole, monkeypatch, capsys):
    out = tmp_path / "run"
    step, taken = MazeBatch.step, 0

    def failing(self: MazeBatch, action: np.ndarray) -> Any:
        nonlocal taken
        taken += 1
        if taken == 31:
            raise RuntimeError("the wall is gone\nand the floor")
        return step(self, action)

    with monkeypatch.context() as patched:
        patched.setattr(MazeBatch, "step", failing)
        assert main([*COMMAND, "--checkpoint-every", "50", "--out", str(out)]) == 1
    error = capsys.readouterr().err
    assert error == (
        f"becl: failed: an environment failed after 60 steps: RuntimeError: the wall is gone (see {out}/error.log); "
        f"becl resume {out} continues after 50 steps\n"
    )
    log = (out / "error.log").read_text()
    assert "Traceback" in log
    assert "and the floor" in log
    (out / "error.log").unlink()
    assert main(["resume", str(out)]) == 0
    assert_same_run(whole, out)


def test_an_environment_that_fails_in_an_evaluation_is_a_line_too(sources, tmp_path, monkeypatch, capsys):
    made = tuning(sources, "random")
    out = tmp_path / "tuned"

    def make(task: str, count: int, seeds: Any) -> Any:
        found = envs.make(task, count, seeds)
        if max(seeds) >= finetune_file.EVALUATION_SEED:
            monkeypatch.setattr(found, "step", lambda action: [][0])
        return found

    tune = finetune_file.finetune
    monkeypatch.setattr(finetune_file, "finetune", lambda *args, **options: tune(*args, make=make, **options))
    opened(made, out)
    assert main(["resume", str(out)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("becl: failed: an environment failed after 0 steps: IndexError: list index out of range")
    assert error.count("\n") == 1
    assert "Traceback" in (out / "error.log").read_text()


# --- Killed -----------------------------------------------------------------------------------------------------------


def test_a_run_that_is_killed_goes_on(tmp_path):
    """Twice, at a moment nobody chose; the second time as soon as a checkpoint is being written."""
    steps = ["--steps", "1200", "--checkpoint-every", "100"]
    environment = os.environ | {
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
        "JAX_PLATFORMS": "cpu",
    }

    def begin(out: Path) -> subprocess.Popen:
        words = [sys.executable, "-m", "becl", *COMMAND[:-4], "--set", *TINY, *steps, "--out", str(out)]
        return subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    one, other = tmp_path / "whole", tmp_path / "killed"
    whole = begin(one)
    said = whole.communicate(timeout=600)[1]
    assert whole.returncode == 0, said  # Slow machines show progress, and small networks may give cause for a warning.
    folder = other / "checkpoint"
    for wanted in ("step-200.json", "*.part"):
        process = begin(other)
        deadline = time.monotonic() + 600
        while process.poll() is None and not list(folder.glob(wanted)) and time.monotonic() < deadline:
            time.sleep(0.001)
        process.kill()
        error = process.communicate()[1]
        assert process.returncode == -signal.SIGKILL, error
        assert not (other / "result.json").exists()
    last = begin(other)
    error = last.communicate(timeout=600)[1]
    assert last.returncode == 0, error
    assert "becl: continues after " in error
    assert_same_run(one, other)
