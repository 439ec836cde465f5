"""A finished pretraining goes on with more steps or more seeds; one whose result is gone is not trained over."""

import csv
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
import safetensors.numpy

from becl.commands.cli import main
from becl.experiments import going_on
from becl.experiments.going_on import continued
from becl.experiments.pretraining import load_pretraining, seed_keys
from becl.learning.programs import programs
from becl.nn.adam import without_optimizers
from becl.runs.arrays import named_arrays

SIZES = ["square_a", "--method", "diayn", "--envs", "4", "--hidden", "16", "--log-every", "100"]
SIZES += ["--set", "batch=16", "random_steps=40"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("going") / "run"
    assert main(["pretrain", *SIZES, "--seeds", "2", "--steps", "400", "--out", str(out)]) == 0
    return out


@pytest.fixture
def run(finished, tmp_path) -> Path:
    return shutil.copytree(finished, tmp_path / "run")


@pytest.fixture(scope="module")
def longer(finished, tmp_path_factory) -> Path:
    out = shutil.copytree(finished, tmp_path_factory.mktemp("longer") / "run")
    assert main(["resume", str(out), "--steps", "800"]) == 0
    return out


def rows(folder: Path) -> list[dict[str, str]]:
    """Of metrics.csv, without the column that depends on the machine."""
    with open(folder / "metrics.csv") as file:
        return [
            {name: text for name, text in row.items() if name != "steps_per_second"} for row in csv.DictReader(file)
        ]


def networks(folder: Path, seed: int, steps: int) -> dict[str, np.ndarray]:
    return safetensors.numpy.load_file(folder / f"seed-{seed}" / f"snapshot-{steps}.safetensors")


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


# --- More steps -------------------------------------------------------------------------------------------------------


def test_more_steps_follow_those_there_are(finished, longer):
    before, after = rows(finished), rows(longer)
    assert after[: len(before)] == before
    steps = [(int(row["step"]), int(row["seed"])) for row in after]
    assert steps == sorted(set(steps))
    assert steps[-2:] == [(800, 0), (800, 1)]
    for seed in (0, 1):
        assert same(networks(longer, seed, 400), networks(finished, seed, 400))
        assert not same(networks(longer, seed, 800), networks(finished, seed, 400))
    short, long = (json.loads((folder / "result.json").read_text()) for folder in (finished, longer))
    assert long["steps"] == 800
    assert long["seconds"] > short["seconds"]
    assert json.loads((longer / "config.json").read_text())["went_on"] == [400]


def test_it_begins_with_the_networks_that_were_kept(finished, longer):
    planned = load_pretraining(longer)
    fresh, _ = programs(planned.sized, 1).init(seed_keys(planned.seeds))
    state = continued(planned, longer, fresh)
    named = named_arrays(without_optimizers({"learner": state.learner, "objective": state.objective}))
    for place, seed in enumerate(planned.seeds):
        assert same({name: array[place] for name, array in named.items()}, networks(finished, seed, 400))
    assert not int(state.replay.written[0])


def test_nothing_is_learned_before_the_replay_has_steps(finished, monkeypatch, tmp_path):
    from becl.runs import session

    learned = []

    def watched(*args):
        for now in real(*args):
            learned.append((now.step, now.metrics is not None))
            yield now

    real = session.train
    monkeypatch.setattr(session, "train", watched)
    out = shutil.copytree(finished, tmp_path / "run")
    assert main(["resume", str(out), "--steps", "480"]) == 0
    # The step of the first update has been taken when it is counted.
    assert next(step for step, update in learned if update) == 400 + 40 + 4
    assert learned[0][0] == 404


def test_stopped_on_the_way_it_is_the_same_run(run, longer, monkeypatch, capsys):
    from becl.runs import session

    taken = []

    def stop(self) -> bool:
        taken.append(self.step)
        return self.step >= 600

    with monkeypatch.context() as patch:
        patch.setattr(
            session.Session,
            "stopping",
            property(lambda self: lambda: stop(self), lambda self, value: None),
            raising=False,
        )
        assert main(["resume", str(run), "--steps", "800"]) == 130
    assert taken[-1] == 600
    assert main(["resume", str(run), "--steps", "800"]) == 0  # The same command.
    assert rows(run) == rows(longer)
    assert all(same(networks(run, seed, 800), networks(longer, seed, 800)) for seed in (0, 1))


def test_what_has_as_many_steps_is_finished(longer, capsys):
    before = files(longer)
    assert main(["resume", str(longer), "--steps", "800"]) == 0
    assert "already finished" in capsys.readouterr().out
    assert files(longer) == before


# --- More seeds -------------------------------------------------------------------------------------------------------


def test_more_seeds_become_part_of_the_run(finished, run, tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as patch:  # It ends as the files are put together.

        def fail(path, text):
            if path == run / "result.json":
                raise OSError(28, "No space left on device", str(path))
            write(path, text)

        write = going_on.write_checked
        patch.setattr(going_on, "write_checked", fail)
        assert main(["resume", str(run), "--seeds", "1,5"]) == 2
    capsys.readouterr()
    assert main(["resume", str(run)]) == 0
    assert "seed 5: part of" in capsys.readouterr().out
    alone = tmp_path / "alone"
    assert main(["pretrain", *SIZES, "--seeds", "5,", "--steps", "400", "--out", str(alone)]) == 0
    assert same(networks(run, 5, 400), networks(alone, 5, 400))
    assert [row for row in rows(run) if row["seed"] == "5"] == rows(alone)
    assert [row for row in rows(run) if row["seed"] != "5"] == rows(finished)
    assert [(int(row["step"]), row["seed"]) for row in rows(run)][:3] == [(100, "0"), (100, "1"), (100, "5")]
    assert json.loads((run / "config.json").read_text())["seeds"] == [0, 1, 5]
    assert not (run / "more").exists()
    assert len(list((run / "tensorboard").iterdir())) == 3
    assert main(["resume", str(run)]) == 0
    assert "already finished" in capsys.readouterr().out


# --- What is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--steps", "300"], "has 400 steps already"),
        (["--steps", "0"], "has 400 steps already"),
        (["--steps", "many"], "a whole number"),
        (["--seeds", "2"], "has seeds 0, 1 already"),
        (["--seeds", "0"], "at least one seed"),
        (["--seeds", "4", "--steps", "800"], "one after the other"),
    ],
)
def test_what_cannot_be_gone_on_with_is_one_line(words, why, finished, capsys):
    before = files(finished)
    assert main(["resume", str(finished), *words]) == 2
    error = capsys.readouterr().err
    assert why in error
    assert error.count("\n") == 1
    assert files(finished) == before


def test_the_command_with_more_steps_names_the_one_that_goes_on(finished, capsys):
    assert main(["pretrain", *SIZES, "--seeds", "2", "--steps", "800", "--out", str(finished)]) == 2
    assert f"becl resume {finished} --steps 800 goes on with it" in capsys.readouterr().err
    assert main(["pretrain", *SIZES, "--seeds", "3", "--steps", "800", "--out", str(finished)]) == 2
    assert "choose another --out" in capsys.readouterr().err


def test_a_run_that_went_on_takes_no_seeds(longer, capsys):
    assert main(["resume", str(longer), "--seeds", "3"]) == 2
    assert "gone on from its snapshots" in capsys.readouterr().err


def test_a_missing_snapshot_is_named(run, capsys):
    (run / "seed-1" / "snapshot-400.safetensors").unlink()
    assert main(["resume", str(run), "--steps", "800"]) == 2
    assert "snapshot-400.safetensors" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["resume", "pretrain"])
def test_a_finished_run_without_its_result_is_not_trained_over(command, run, capsys):
    (run / "result.json").unlink()
    before = files(run)
    same_words = ["pretrain", *SIZES, "--seeds", "2", "--steps", "400", "--out", str(run)]
    assert main(same_words if command == "pretrain" else ["resume", str(run)]) == 2
    error = capsys.readouterr().err
    assert "--force" in error
    assert error.count("\n") == 1
    assert files(run) == before


def test_force_trains_it_again(finished, run):
    (run / "result.json").unlink()
    assert main(["resume", str(run), "--force"]) == 0
    assert rows(run) == rows(finished)
    assert jax.tree.all(jax.tree.map(np.array_equal, networks(run, 0, 400), networks(finished, 0, 400)))


def test_a_run_that_was_killed_as_it_ended_goes_on(finished, run):
    (run / "result.json").unlink()
    (run / "lock").write_text("")  # Which a killed process leaves.
    assert main(["resume", str(run)]) == 0
    assert rows(run) == rows(finished)
