"""Run folders that an earlier version wrote (commit 08e8366) open, resume and are reported by this one."""

import csv
import io
import json
import tarfile
from pathlib import Path

import pytest
from event_files import curves

import becl
from becl.commands.cli import main
from becl.experiments.finetuning import load_finetuning
from becl.experiments.maze_study import load_study, unfinished
from becl.experiments.pretraining import load_pretraining
from becl.objectives.becl_released import BeCLReleased

ARCHIVE = Path(__file__).parent / "kept-08e8366.tgz"


@pytest.fixture
def kept(tmp_path, monkeypatch) -> Path:
    """The folders, in the working folder: configurations name each other by relative paths."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def table(path: Path, without: tuple[str, ...] = ("steps_per_second",)) -> list[dict[str, str]]:
    rows = csv.DictReader(io.StringIO(path.read_text()))
    return [{name: value for name, value in row.items() if name not in without} for row in rows]


def assert_same_steps(folder: Path, other: Path) -> None:
    """TensorBoard shows each step once, with the same tags."""
    ours, theirs = ([(step, [*values]) for step, values in curves(one)] for one in (folder, other))
    assert ours == theirs
    assert len({step for step, _ in ours}) == len(ours) > 1


def test_a_stopped_pretraining_goes_on_to_the_same_end(kept):
    """Up to rounding, which is another one on every kind of processor."""
    stopped, whole = (kept / f"pretrain-diayn-{name}" for name in ("stopped", "whole"))
    before = (stopped / "metrics.csv").read_text()
    assert main(["resume", "pretrain-diayn-stopped"]) == 0
    assert (stopped / "metrics.csv").read_text().startswith(before)
    ours, theirs = table(stopped / "metrics.csv"), table(whole / "metrics.csv")
    assert [list(row) for row in ours] == [list(row) for row in theirs]  # The same columns: no newer ones half way.
    for one, other in zip(ours, theirs, strict=True):
        numbers = {name: (float(one[name] or 0), float(other[name] or 0)) for name in one}
        for name in ("step", "seed", "reward", "q", "objective_loss"):
            assert numbers[name][0] == pytest.approx(numbers[name][1], rel=0.1, abs=0.05), name
    assert (stopped / "seed-3" / "snapshot-400.safetensors").exists()
    assert_same_steps(stopped / "tensorboard" / "seed-3", whole / "tensorboard" / "seed-3")


def test_a_stopped_finetuning_goes_on_to_the_same_curve(kept):
    stopped, whole = (kept / f"finetune-diayn-{name}" for name in ("stopped", "whole"))
    before = {name: (stopped / name).read_text() for name in ("scores.csv", "metrics.csv")}
    assert main(["resume", "finetune-diayn-stopped"]) == 0
    for name, text in before.items():
        assert (stopped / name).read_text().startswith(text), name
        assert [row["step"] for row in table(stopped / name)] == [row["step"] for row in table(whole / name)]
    assert [row["episodes"] for row in table(stopped / "final.csv")] == ["50"]
    assert_same_steps(*(run / "tensorboard" / "walker_stand-seed-3" for run in (stopped, whole)))


def test_the_released_formula_of_then_is_that_of_today(kept):
    """It was `BeCL(positive="first", denominator="all")`."""
    kept_run = load_pretraining(kept / "pretrain-becl-released")
    assert kept_run.run.objective == BeCLReleased(becl.OneHot(4), network=becl.Network((8, 8)), head=(8,))
    assert load_finetuning(kept / "finetune-becl-released").pretraining == kept_run
    assert main(["resume", "pretrain-becl-released-stopped"]) == 0
    assert json.loads((kept / "pretrain-becl-released-stopped" / "result.json").read_text())["steps"] == 400


def test_finished_runs_are_evaluated_exported_and_reported(kept, capsys):
    assert main(["evaluate", "pretrain-becl-released", "--episodes", "1", "--task", "walker_run"]) == 0
    assert main(["export", "pretrain-becl-released", "--skill", "1", "--out", "skill.npz"]) == 0
    assert main(["report", ".", "--out", "report", "--resamples", "50"]) == 0
    said = capsys.readouterr().out
    assert "BeCL-released" in said
    assert "DIAYN" in said


def test_the_same_command_finds_its_finished_run(kept, capsys):
    words = ["pretrain", "walker", "--method", "becl-released", "--seeds", "2", "--steps", "400", "--envs", "4",
             "--hidden", "8", "--skills", "4", "--set", "batch=16", "replay.capacity=400", "random_steps=40",
             "--log-every", "100",
             "--out", "pretrain-becl-released"]  # fmt: skip
    assert main(words) == 0
    assert "already finished" in capsys.readouterr().out


def test_a_maze_study_opens(kept):
    study = load_study(kept / "maze")
    assert list(study.runs) == ["becl", "becl-released"]
    assert unfinished(study, kept / "maze") == []
