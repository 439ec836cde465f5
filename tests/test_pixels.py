"""Runs from images, from the command to what is made of their folders."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from run_folders import forget_sums

from becl.commands.cli import main
from becl.experiments.environments import make_envs
from becl.experiments.finetuning import load_finetuning
from becl.experiments.pretraining import load_pretraining, make_pretraining
from becl.experiments.snapshots import load_snapshot, snapshot_path
from becl.learning.ddpg import DDPG
from becl.learning.seeing import Vision
from becl.measure.skills import STARTS
from becl.objectives import METHODS
from becl.options import FilmstripOptions, PretrainOptions
from becl.runs import session as session_file
from becl.runs.result import identity
from becl.views.filmstrip import looks_of, rows_of
from becl.views.rendering import choose_renderer

LENGTH = 40  # Of the walker's episodes here: 20 steps of two frames.
SEEN = ["vision.size=16", "vision.encoder.filters=4", "vision.encoder.layers=2"]
TINY = ["batch=8", "replay.capacity=60", "random_steps=10"]
# Two environments here and wherever else pictures are drawn, so that they are drawn by one program.
COMMAND = ["pretrain", "walker", "--pixels", "--method", "diayn", "--skills", "3", "--seeds", "2", "--steps", "200"]
COMMAND += ["--envs", "1", "--hidden", "16", "--log-every", "100", "--set", *SEEN, *TINY]


pytestmark = pytest.mark.usefixtures("short_walker")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("pixels") / "run"
    assert main([*COMMAND, "--out", str(folder)]) == 0
    return folder


def rows(folder: Path, name: str = "metrics.csv") -> list[dict[str, str]]:
    return list(csv.DictReader((folder / name).open()))


def assert_same_networks(one: Path, other: Path) -> None:
    """To the bit."""
    arrays = [safetensors.numpy.load_file(path) for path in (one, other)]
    assert arrays[0].keys() == arrays[1].keys()
    for name, array in arrays[0].items():
        np.testing.assert_array_equal(array, arrays[1][name], err_msg=name)


def test_steps_are_frames_and_states_are_counted_beside_what_is_seen(run):
    table = rows(run)
    assert [(row["step"], row["seed"]) for row in table] == [("100", "0"), ("100", "1"), ("200", "0"), ("200", "1")]
    assert all(int(row["cells"]) > 1 for row in table)
    assert json.loads((run / "result.json").read_text())["steps"] == 200
    assert all(float(row["return"]) > 0 for row in table)


def test_a_run_that_was_stopped_goes_on_bit_for_bit(run, tmp_path, monkeypatch):
    class Stopped(Exception): ...

    def stop(self, *args, after=session_file.Session._advance):
        after(self, *args)
        if self.step >= 132:
            raise Stopped

    folder = tmp_path / "stopped"
    words = [*COMMAND, "--checkpoint-every", "60", "--out", str(folder)]
    with monkeypatch.context() as patched:
        patched.setattr(session_file.Session, "_advance", stop)
        with pytest.raises(Stopped):
            main(words)
    assert sorted(path.name for path in folder.glob("checkpoint/step-*.json")) == ["step-120.json", "step-60.json"]
    assert main(["resume", str(folder)]) == 0
    for seed in (0, 1):
        assert_same_networks(snapshot_path(run, seed, 200), snapshot_path(folder, seed, 200))
    kept = [{name: value for name, value in row.items() if name != "steps_per_second"} for row in rows(run)]
    again = [{name: value for name, value in row.items() if name != "steps_per_second"} for row in rows(folder)]
    assert kept == again


@pytest.fixture(scope="module")
def tuned(run, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tuned") / "run"
    words = ["finetune", str(run), "--task", "walker_run", "--steps", "80", "--eval-every", "40"]
    words += ["--eval-episodes", "1", "--final-episodes", "2", "--set", "random_steps=10", "--out", str(folder)]
    assert main(words) == 0
    return folder


def test_finetuning_takes_the_encoder_over_and_goes_on_training_it(run, tuned):
    spec = load_finetuning(tuned)
    before = load_pretraining(run)
    assert spec.run.vision == before.run.vision
    assert (before.run.replay.nstep, spec.run.replay.nstep) == (1, 3)
    assert [row["step"] for row in rows(tuned, "scores.csv")] == ["0", "0", "40", "40", "80", "80"]
    assert rows(tuned, "final.csv")[0]["episodes"] == "2"
    learned = load_snapshot(before, snapshot_path(run, 0, 200))[0].encoder.layers[0].weight
    after = safetensors.numpy.load_file(tuned / "walker_run-seed-0" / "policy.safetensors")
    drift = np.abs(after["learner.encoder.layers.0.weight"] - learned).max()
    assert 0 < drift < 0.01


def test_folders_that_name_the_colours_of_a_frame_still_open(run, tmp_path, capsys):
    """It was an option that could only be 3."""
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    config = json.loads((folder / "config.json").read_text())
    config["run"]["vision"]["channels"] = 3
    forget_sums(folder)
    (folder / "config.json").write_text(json.dumps(config))
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps(result | identity(folder)))
    assert load_pretraining(folder) == load_pretraining(run)
    assert main([*COMMAND, "--out", str(folder)]) == 0
    assert "already finished" in capsys.readouterr().out


def test_skills_are_measured_in_numbers(run, tmp_path, capsys):
    out = tmp_path / "evaluation"
    words = ["evaluate", str(run), "--task", "walker_run", "--episodes", "2", "--seeds", "1", "--skills", "1"]
    words += ["--out", str(out)]
    assert main(words) == 0
    measured = rows(out, "per-skill-200.csv")
    assert [row["skill"] for row in measured] == ["1"]
    assert all(float(row["joint_speed"]) > 0 for row in measured)
    zero_shot = rows(out, "zero-shot-200.csv")
    # Rewards of both frames of a step: at most one each.
    assert all(0 < float(row["return"]) <= LENGTH for row in zero_shot)


def test_the_command_that_is_to_compare_with_sees_too(tuned, capsys):
    spec = load_finetuning(tuned)
    from becl.experiments.verdicts import finetuning_lines

    assert finetuning_lines(spec, [], tuned)[-1].endswith("--seeds 0:2 --pixels")


# --- What is asked for ------------------------------------------------------------------------------------------------


def planned(method: str = "becl", *settings: str, **options):
    return make_pretraining(PretrainOptions("walker", method, pixels=True, set=settings, **options)).run


def test_sizes_are_urlbs():
    run = planned()
    assert run.vision == Vision()
    assert run.env == (39_200, 6, LENGTH // 2, False)
    assert (run.batch, run.replay.nstep, run.random_steps) == (256, 1, 2000)
    assert run.updates * 2 == run.envs
    for method, width in (("becl", 50), ("cic", 1024)):
        learner = planned(method).learner
        assert isinstance(learner, DDPG)
        assert learner.feature_dim == width


RELEASED = {"ddpg": "critic", "cic": "nobody"}
RELEASED |= dict.fromkeys(("becl", "diayn", "aps", "rnd", "icm", "apt", "disagreement", "proto", "smm"), "objective")


@pytest.mark.parametrize("method", RELEASED)
def test_who_trains_the_encoder_in_the_released_code(method):
    vision = planned(method, "vision.trained_by=released").vision
    assert vision is not None
    assert vision.trained_by == RELEASED[method]
    assert (vision.through == "obs") == (method in ("icm", "disagreement", "apt", "proto"))
    default = planned(method).vision
    assert default is not None
    assert default.trained_by == "both"


def test_every_method_has_a_row_in_the_table_of_who_trains_the_encoder():
    page = (Path(__file__).parents[1] / "docs" / "pixels.md").read_text()
    for name in METHODS:
        if "-" not in name:
            assert f"`{name}`" in page, name


REFUSED = {
    "a maze": (["square_a", "--pixels"], "--pixels: square_a is a maze"),
    "an environment that cannot be drawn": (
        ["gym:Pendulum-v1", "--pixels"],
        "no observation of gym:Pendulum-v1 is an image",
    ),
    "an encoder without images": (["walker", "--encoder", "cnn"], "--encoder cnn: for images; add --pixels"),
    "a size without images": (["walker", "--set", "vision.size=32"], "vision.size=32: for images; add --pixels"),
    "images that are too small": (["walker", "--pixels", "--set", "vision.size=10"], "needs images of 15 pixels"),
    "meshes": (["jaco", "--pixels", "--steps", "20000"], "rays draw no shapes of kind mesh"),
    "no frames": (["walker", "--pixels", "--set", "vision.stack=0"], "vision.stack 0: must be greater than 0"),
    "colours": (["walker", "--pixels", "--set", "vision.channels=1"], "unknown option of Vision 'vision.channels'"),
    "a word": (["walker", "--pixels", "--set", "vision.trained_by=critics"], "did you mean 'critic'"),
    "a part": (["walker", "--pixels", "--objective-obs", "height"], "objective_obs: observations are images"),
    "whitening": (["walker", "--pixels", "--normalize-obs"], "--normalize-obs: only for observations of numbers"),
    "odd steps": (["walker", "--pixels", "--steps", "20001"], "--steps 20,001: must be a multiple of 2"),
    "a replay": (["walker", "--pixels", "--seeds", "2000"], "not enough memory: replay 44"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_in_a_line(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words, said = REFUSED[name]
    assert main(["pretrain", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--pixels"], "--pixels: what is seen stays as it was pretrained; it is for --scratch"),
        (["--set", "vision.size=40"], "--set vision.size=40: what is seen stays as it was pretrained"),
        (["--skill", "meta"], "--skill meta: it needs observations of numbers"),
    ],
)
def test_what_a_pretrained_run_sees_is_settled(words, said, run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["finetune", str(run), *words]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_replays_size_comes_first_and_how_to_make_it_smaller(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("becl.experiments.memory.available_memory", lambda: 10**11)
    monkeypatch.setattr("becl.experiments.pretrainer.estimated_rate", lambda planned: 100.0)
    assert main(["pretrain", "walker", "--pixels", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "replay 22.3 GB (1 × 1,000,000 transitions of 21.2 kB; --set replay.capacity=100000 takes a tenth)" in said
    monkeypatch.setattr("becl.experiments.memory.available_memory", lambda: 10**10)
    assert main(["pretrain", "walker", "--pixels", "--dry-run"]) == 2
    assert "--set replay.capacity=365000 fits" in capsys.readouterr().err


# --- What is shown ----------------------------------------------------------------------------------------------------


def test_a_filmstrip_shows_what_the_agent_saw(run, tmp_path):
    """Below each row, in the agent's own pixels: at the start, what an environment begins with."""
    options = FilmstripOptions((run,), skills=(1,), frames=3, steps=6, size=32, out=tmp_path / "strip.png")
    (look,) = looks_of(options)
    rows = rows_of([look], choose_renderer("rays"), options)
    assert [(label, len(pictures)) for label, pictures, _ in rows] == [("skill 1", 3), ("as seen", 3)]
    vision = load_pretraining(run).run.vision
    assert vision is not None
    begun = np.asarray(make_envs("walker", 1, [STARTS], vision).reset())[0, ..., -3:]
    np.testing.assert_array_equal(rows[1][1][0], np.kron(begun, np.ones((2, 2, 1), np.uint8)))
    assert (rows[1][1][2] != rows[1][1][0]).any()
    assert (
        main(["filmstrip", str(run), "--frames", "2", "--steps", "4", "--size", "32", "--out", str(options.out)]) == 0
    )
    assert options.out is not None
    assert options.out.exists()
