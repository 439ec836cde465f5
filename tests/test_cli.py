"""What people type: studies that finish, go on, stop and are refused in one line."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from run_folders import forget_sums

from becl.commands.cli import main
from becl.errors import UserError
from becl.experiments.maze_study import make_run, make_study
from becl.options import MazeOptions
from becl.seeds import parse_seeds, seeds_text, to_seeds
from becl.specs import difference, override, to_dict

TINY = ["learner.network.hidden=16,16", "network.hidden=16,16", "episodes=20"]
STUDY = ["maze", "--methods", "becl", "diayn", "--cycles", "50", "--skills", "4", "--set", *TINY, "--workers", "1"]

BAD = [
    (["maze", "--maze", "square_q"], "unknown maze 'square_q'", "square_"),
    (["maze", "--methods", "bcel"], "unknown method 'bcel'", "'becl'"),
    (["maze", "--tempreature", "1"], "--tempreature", "'--temperature'"),
    (["maze", "--study", "comparisn"], "comparisn", "comparison"),
    (["maze", "--skills", "1"], "--skills 1", "at least 2"),
    (["maze", "--skills", "ten"], "--skills", "ten"),
    (["maze", "--temperature", "0"], "--temperature 0", "greater than 0"),
    (["maze", "--temperature", "nan"], "--temperature nan", "greater than 0"),
    (["maze", "--seeds", "3,7,3"], "3 given more than once", "--seeds"),
    (["maze", "--seeds", "x"], "--seeds 'x'", "expected"),
    (["maze", "--seeds", "0"], "--seeds '0'", "at least one"),
    (["maze", "--methods", "becl", "becl"], "becl given more than once", "--methods"),
    (["maze", "--cycles", "0"], "--cycles 0", "at least 1"),
    (["maze", "--workers", "0"], "--workers 0", "at least 1"),
    (["maze", "--methods", "becl-paper", "--set", "becl-paper:positve=mean"], "unknown option", "'positive'"),
    (["maze", "--methods", "becl-paper", "--set", "becl-paper:positive=neerest"], "unknown value", "'nearest'"),
    (["maze", "--set", "becl:temperature=-1"], "temperature -1", "greater than 0"),
    (["maze", "--set", "becl:temperature=warm"], "temperature=warm", "expected a number"),
    (["maze", "--set", "temperature=0.2"], "diayn has no temperature", "becl:temperature=0.2"),
    (["maze", "--methods", "diayn", "--set", "becl:ramp=0"], "becl is not among", "diayn"),
    (["maze", "--methods", "diayn", "--temperature", "0.2"], "--temperature is BeCL's", "--methods"),
    (["maze", "--study", "temperature", "--temperature", "0.2"], "has its own", "0.5"),
    (["maze", "--set", "env.name=square_b"], "env.name=square_b", "--maze"),
    (["maze", "--set", "env.episode_length=0"], "env.episode_length 0", "greater than 0"),
    (["maze", "--set", "fit_minibatches=100000"], "fit_minibatches 100000", "2500 transitions"),
    (["maze", "--set", "learner.network.hidden=-3"], "hidden -3", "greater than 0"),
    (["maze", "--set", "learner.discount=nan"], "discount nan", "[0, 1]"),
    (["maze", "--study", "estimates", "--mine-iterations", "-5"], "--mine-iterations -5", "at least 1"),
    (["maze", "--demo", "--study", "skills"], "--demo", "--study skills"),
    (["maze", "--set", "nonsense"], "nonsense", "OPTION=VALUE"),
    (["methods", "diyan"], "unknown method 'diyan'", "'diayn'"),
    (["mazes"], "unknown command 'mazes'", "'maze'"),
]


@pytest.mark.parametrize(("args", "wrong", "allowed"), BAD)
def test_bad_input_is_one_line_exit_2_and_nothing_written(args, wrong, allowed, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(args) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert wrong in error
    assert allowed in error
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """The study of most tests, with one seed."""
    out = tmp_path_factory.mktemp("finished") / "study"
    assert main([*STUDY, "--out", str(out)]) == 0
    return out


@pytest.fixture
def study(finished, tmp_path) -> Path:
    """A copy of it that may be changed."""
    return Path(shutil.copytree(finished, tmp_path / "study"))


def test_a_study_leaves_plain_files_and_goes_on_with_more_seeds(study, capsys):
    out = study
    first = {path: path.read_bytes() for path in out.rglob("seed-0.*")}
    suffixes = {path.suffix for path in first}
    assert suffixes == {".csv", ".json", ".npz", ".safetensors", ".sha256"}
    assert (out / "comparison.png").exists()
    assert (out / "comparison.svg").exists()
    result = json.loads((out / "becl" / "seed-0.json").read_text())
    assert 0 <= result["mutual_information"] <= np.log(4)
    assert main([*STUDY, "--seeds", "2", "--out", str(out)]) == 0
    assert {path: path.read_bytes() for path in first} == first
    rows = (out / "summary.csv").read_text().splitlines()
    assert len(rows) == 1 + 4
    assert "becl" in capsys.readouterr().out


def test_the_same_seed_gives_the_same_numbers(finished, tmp_path):
    assert main([*STUDY, "--out", str(tmp_path / "again")]) == 0
    one, two = ((out / "becl" / "seed-0.csv").read_text() for out in (finished, tmp_path / "again"))
    assert one == two
    assert len(one.splitlines()) == 1 + 2  # 50 cycles in rows of 25.


def test_another_configuration_is_refused(study, capsys):
    out = study
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert main([*STUDY, "--out", str(out), "--temperature", "0.1"]) == 2
    error = capsys.readouterr().err
    assert "another configuration" in error
    assert "temperature" in error
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_a_folder_of_something_else_is_left_alone(tmp_path, capsys):
    (tmp_path / "thesis.tex").write_text("chapter 1")
    assert main([*STUDY, "--out", str(tmp_path)]) == 2
    assert "not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_damaged_config_is_said(tmp_path, capsys):
    (tmp_path / "config.json").write_text('{"study": ')
    assert main([*STUDY, "--out", str(tmp_path)]) == 2
    assert "damaged" in capsys.readouterr().err


def test_no_permission_is_said(tmp_path, capsys, monkeypatch):
    def refuse(self, *args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    assert main([*STUDY, "--out", str(tmp_path / "closed" / "study")]) == 2
    error = capsys.readouterr().err
    assert "cannot write" in error
    assert "Permission denied" in error


def test_ctrl_c_keeps_what_is_finished(study, tmp_path):
    out = tmp_path / "stopped"
    command = [sys.executable, "-m", "becl", *STUDY[:-2], "--workers", "2", "--cycles", "100000", "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 600
    while not (out / "config.json").exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    time.sleep(3)
    (seed,) = (study / "becl").glob("seed-*.json")
    seed.write_text(json.dumps(json.loads(seed.read_text()) | {"cycles": 100_000}))
    forget_sums(study)
    shutil.copytree(study / "becl", out / "becl", dirs_exist_ok=True)  # As if this one had just been finished.
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=600)
    assert process.returncode == 130
    assert "1 of 2 runs are finished" in stdout
    assert f"the same command, or becl resume {out}, continues" in stdout
    assert "Traceback" not in stderr
    assert (out / "summary.csv").read_text().count("\n") == 2
    assert (out / "comparison.png").exists()
    assert not list(out.rglob("*.part"))


@pytest.mark.slow
def test_worker_processes_give_the_same_numbers_as_one(tmp_path):
    assert main([*STUDY, "--out", str(tmp_path / "one")]) == 0
    assert main([*STUDY[:-2], "--workers", "2", "--out", str(tmp_path / "two")]) == 0
    for label in ("becl", "diayn"):
        one, two = (
            np.genfromtxt(tmp_path / n / label / "seed-0.csv", delimiter=",", names=True) for n in ("one", "two")
        )
        # Threads round otherwise, and thirty cycles make more of it.
        np.testing.assert_allclose(one["reward"], two["reward"], rtol=5e-2)


def test_a_dead_worker_is_reported_and_the_rest_goes_on(tmp_path, monkeypatch, capsys):
    """The worker of one method dies (as when the system is out of memory); the other method still finishes."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import builtins, os, sys\n"
        "if os.environ.get('BECL_KILL') and 'spawn_main' in ' '.join(sys.orig_argv):\n"
        "    import becl.experiments.maze_trainer as study\n"
        "    train = study.train_seeds\n"
        "    def dying(s, label, *rest):\n"
        "        if label == os.environ['BECL_KILL']: os._exit(137)\n"
        "        return train(s, label, *rest)\n"
        "    study.train_seeds = dying\n"
    )
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "BECL_KILL": "diayn"}
    out = tmp_path / "study"
    command = [sys.executable, "-m", "becl", *STUDY[:-2], "--workers", "2", "--out", str(out)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 1
    assert "diayn seed 0" in done.stderr
    assert "exit code 137" in done.stderr
    assert (out / "becl" / "seed-0.json").exists()
    assert not (out / "diayn" / "seed-0.json").exists()


def test_help_is_quick_and_complete(capsys):
    done = subprocess.run([sys.executable, "-m", "becl", "--help"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0
    heavy = (
        "import sys; import becl.commands.cli; print([m for m in ('jax', 'matplotlib', 'tyro') if m in sys.modules])"
    )
    loaded = subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"


@pytest.mark.parametrize("command", ["envs", "methods"])
def test_listings(command, capsys):
    assert main([command]) == 0
    text = capsys.readouterr().out
    expected = {"envs": ("square_a", "square_bottleneck"), "methods": ("becl-released", "dads")}[command]
    assert all(name in text for name in expected)


def test_options_of_a_method_are_shown(capsys):
    assert main(["methods", "becl"]) == 0
    assert '"ramp": 0.12' in capsys.readouterr().out


def test_seeds():
    assert parse_seeds("3") == (0, 1, 2)
    assert parse_seeds("100:103") == (100, 101, 102)
    assert parse_seeds("3,7") == (3, 7)
    assert parse_seeds("7,") == (7,)
    with pytest.raises(UserError):
        parse_seeds("-2")
    assert to_seeds(3) == to_seeds((0, 1, 2)) == to_seeds(np.int64(3)) == (0, 1, 2)
    for wrong in (0, -1, [], [-1], [2**32], "3", 1.5, [0.5]):
        with pytest.raises(UserError, match="--seeds"):
            to_seeds(wrong)  # type: ignore[arg-type]
    for seeds in ((0,), (7,), (0, 1, 2), (4, 5), (3, 7)):
        assert parse_seeds(seeds_text(seeds)) == seeds


@pytest.mark.parametrize(("text", "number"), [("2e6", 2_000_000), ("1.5e3", 1500), ("1_000", 1000), ("3.0", 3)])
def test_whole_numbers_may_be_written_as_calculators_do(text, number):
    found = override(make_run("becl", "square_a", 10), "episodes", text).episodes
    assert (found, type(found)) == (number, int)


TYPED = [
    ("learner.entropy_weight", 1, 1.0),
    ("learner.network.hidden", [32, 32], (32, 32)),
    ("balanced", False, False),
    ("episodes", np.int64(60), 60),
    ("objective.head", None, None),
]


@pytest.mark.parametrize(("path", "value", "expected"), TYPED)
def test_an_option_takes_a_value_that_has_its_type_already(path, value, expected):
    found = override(make_run("becl-paper", "square_a", 10), path, value)
    for name in path.split("."):
        found = getattr(found, name)
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("path", "value", "wrong"),
    [
        ("episodes", 1.5, "episodes=1.5: expected a whole number"),
        ("episodes", True, "episodes=true: expected a whole number"),
        ("episodes", 2**31, "must be below 2^31"),
        ("learner.entropy_weight", None, "expected a number"),
        ("learner.network.hidden", 32, "learner.network.hidden=32: expected a list"),
        ("balanced", 1, "balanced=1: expected true or false"),
        ("learner.network.start", 3, "unknown value of learner.network.start '3'"),
    ],
)
def test_a_value_of_another_type_is_refused(path, value, wrong):
    with pytest.raises(UserError, match=re.escape(wrong)):
        override(make_run("becl", "square_a", 10), path, value)


def test_settings_may_be_typed_or_text():
    text = make_run("becl", "square_a", 10, ["temperature=0.2", "becl:learner.network.hidden=32,32", "diayn:head=8"])
    typed = {"temperature": 0.2, "becl:learner.network.hidden": (32, 32), "diayn:head": (8,)}
    assert make_run("becl", "square_a", 10, typed) == text


def test_the_objective_has_the_length_of_the_mazes_episodes():
    assert to_dict(make_run("becl", "square_a", 10, ["env.episode_length=30"]).objective)["episode_length"] == 30
    for path in ("episode_length", "objective.episode_length", "becl:episode_length"):
        with pytest.raises(UserError, match=r"use env\.episode_length"):
            make_run("becl", "square_a", 10, [f"{path}=30"])


def test_specs_round_trip_and_differ_where_they_differ():
    run = make_run("becl", "square_a", 10)
    assert difference(to_dict(run), json.loads(json.dumps(to_dict(run)))) is None
    changed = override(run, "learner.entropy_weight", "0.5")
    assert difference(to_dict(run), to_dict(changed)) == "learner.entropy_weight: 0.12, 0.5"
    assert override(run, "learner.network.hidden", "32,32").learner.network.hidden == (32, 32)
    assert override(run, "balanced", "false").balanced is False
    with pytest.raises(UserError, match="group"):
        override(run, "learner", "3")


def test_studies_have_the_papers_runs():
    temperature = make_study(MazeOptions(("becl",), "temperature", cycles=10))
    assert [to_dict(run.objective)["temperature"] for run in temperature.runs.values()] == [1.0, 0.5, 0.1, 0.01]
    skills = make_study(MazeOptions(("becl", "diayn"), "skills", cycles=10))
    assert [run.objective.skills.dim for run in skills.runs.values()] == 2 * [10, 15, 20, 30]
    assert {run.env.name for run in skills.runs.values()} == {"square_tree"}
    assert all(run.learner.network.normalize for run in skills.runs.values())
    assert all(run.episodes >= 2 * run.objective.skills.dim for run in skills.runs.values())
