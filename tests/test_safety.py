"""A stranger's run folder can be opened as one would a picture: it reaches nothing outside itself and runs no code.

Every attack is made in a scratch folder, and what lies beside it is compared before and after.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from gallery_runs import make_run
from run_folders import forget_sums

import becl
from becl import trust as trust_file
from becl.commands.cli import main
from becl.envs.external import external_spec, make_external
from becl.experiments.maze_study import make_study, note_seeds
from becl.invocation import COMMAND
from becl.options import MazeOptions
from becl.runs.checkpoint import Checkpoints
from becl.runs.folder import open_folder
from becl.runs.inside import check_inside, inside, is_name, remove_inside
from becl.runs.lock import forget_remote, locked
from becl.runs.result import identity, is_finished, read_result
from becl.sweeps.record import recorded_jobs

FILES = ("SHA256SUMS", "seed-0/SHA256SUMS",
         "config.json", "result.json", "metrics.csv", "scores.csv", "lock", "error.log", "config.json.part",
         "curves.png", "seed-0/snapshot-5000.safetensors", "checkpoint/step-10.json", "checkpoint/step-10.safetensors",
         "tensorboard/seed-0/events.out.tfevents.1794851917.host", "evaluation/skills-5000.csv",
         "gallery/.skills.part.mp4", "notes/far/below.txt")  # fmt: skip
FOLDERS = ("checkpoint", "seed-0", "tensorboard", "tensorboard/seed-0", "evaluation", "gallery")
COMMANDS = {
    "resume": ["resume", "{run}"],
    "evaluate": ["evaluate", "{run}", "--episodes", "1"],
    "gallery": ["gallery", "{run}", "--export", "{out}/page.html"],
    "video": ["video", "{run}", "--out", "{out}"],
    "filmstrip": ["filmstrip", "{run}", "--out", "{out}/strip.png"],
    "trajectories": ["trajectories", "{run}", "--out", "{out}"],
    "finetune": ["finetune", "{run}", "--out", "{out}"],
    "export": ["export", "{run}", "--skill", "1", "--out", "{out}/skill.npz"],
    "plot": ["plot", "{run}"],
    "report": ["report", "{run}", "--out", "{out}"],
}
RUN_AN_ENVIRONMENT = [name for name in COMMANDS if name not in ("export", "plot", "report")]


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory) -> Path:
    return make_run(tmp_path_factory.mktemp("pendulum") / "run", "gym:Pendulum-v1", snapshots=(5000,))


@pytest.fixture
def run(pendulum, tmp_path) -> Path:
    return Path(shutil.copytree(pendulum, tmp_path / "runs" / "run"))


@pytest.fixture
def victim(tmp_path) -> Path:
    """A folder beside the run that is nobody else's business, with files of the names that runs have."""
    folder = tmp_path / "victim"
    for name in ("thesis.tex", "step-10.json", "step-10.safetensors", "events.out.tfevents.1794851917.host"):
        folder.mkdir(exist_ok=True)
        (folder / name).write_text("years of work")
    return folder


@pytest.fixture(autouse=True)
def _no_trust(monkeypatch) -> Iterator[None]:
    monkeypatch.setattr(trust_file, "_TRUSTED", set())
    external_spec.cache_clear()
    yield
    sys.modules.pop("stranger", None)


def tree(folder: Path) -> dict[str, bytes | str]:
    """All that a folder holds, followed nowhere."""
    found: dict[str, bytes | str] = {}
    for path in sorted(folder.rglob("*")):
        plain = path.is_file() and not path.is_symlink()
        found[str(path.relative_to(folder))] = path.read_bytes() if plain else f"{path.lstat().st_mode:o}"
    return found


def words_of(command: str, run: Path, out: Path) -> list[str]:
    return [word.format(run=run, out=out) for word in COMMANDS[command]]


@contextlib.contextmanager
def within(seconds: int) -> Iterator[None]:
    """Ends what waits for ever, as a pipe that nobody writes to does."""

    def late(*_: object) -> None:
        raise TimeoutError("it waits for ever")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def assert_refused(words: list[str], scratch: Path, capsys, *told: str) -> None:
    """One line, exit code 2, and nothing is different anywhere."""
    before = tree(scratch)
    with within(300):
        assert main(words) == 2, words
    error = capsys.readouterr().err
    assert error.startswith("becl: ")
    assert error.count("\n") == 1, error
    assert all(word in error for word in told), error
    assert tree(scratch) == before, words


class TestLinks:
    @pytest.mark.parametrize("place", [*FILES, *FOLDERS])
    def test_no_command_follows_one(self, run, victim, place, tmp_path, capsys):
        path = run / place
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.symlink_to(victim if place in FOLDERS else victim / "thesis.tex")
        for command in COMMANDS:
            assert_refused(words_of(command, run, tmp_path / "out"), tmp_path, capsys, path.name, "is a link")

    def test_a_finished_run_does_not_clear_a_folder_elsewhere(self, run, victim, tmp_path, capsys):
        (run / "checkpoint").symlink_to("../../victim")
        (run / "result.json").write_text("{}")
        assert_refused(["resume", str(run)], tmp_path, capsys, "checkpoint is a link")

    def test_a_new_run_writes_through_none(self, tmp_path, victim, capsys):
        out = tmp_path / "new"
        out.mkdir()
        (out / "config.json.part").symlink_to(victim / "thesis.tex")
        assert main(["pretrain", "square_a", "--hidden", "8", "--out", str(out)]) == 2
        assert "config.json.part is a link" in capsys.readouterr().err
        assert (victim / "thesis.tex").read_text() == "years of work"

    def test_the_same_command_again_follows_none(self, tmp_path, victim, capsys):
        words = ["maze", "--methods", "becl", "--cycles", "2", "--out", str(tmp_path / "study")]
        study = make_study(MazeOptions(("becl",), cycles=2))
        open_folder(study.config(), tmp_path / "study")
        (tmp_path / "study" / "becl").symlink_to(victim)
        assert_refused(words, tmp_path, capsys, "becl is a link")

    def test_a_sweep_follows_none(self, tmp_path, victim, capsys):
        out = tmp_path / "sweep"
        out.mkdir()
        (out / "sweep.json").write_text('{"sweep": "smoke", "jobs": []}')
        (out / "jobs").symlink_to(victim)
        assert_refused(["sweep", "smoke", "--out", str(out)], tmp_path, capsys, "jobs is a link")

    def test_locks_are_opened_and_removed_where_they_are(self, tmp_path, victim):
        (tmp_path / "run").mkdir()
        lock = tmp_path / "run" / "lock"
        lock.symlink_to(victim / "thesis.tex")
        with pytest.raises(becl.UserError, match="lock is a link"), locked(tmp_path / "run"):
            pass
        forget_remote(lock)
        assert lock.is_symlink()
        assert (victim / "thesis.tex").read_text() == "years of work"

    def test_a_folder_that_is_reached_by_one_is_as_good(self, run, tmp_path):
        (tmp_path / "link").symlink_to(run.parent)
        (tmp_path / "direct").symlink_to(run)
        for number, place in enumerate((tmp_path / "link" / "run", tmp_path / "direct")):
            assert main(["export", str(place), "--skill", "1", "--out", str(tmp_path / f"{number}.npz")]) == 0

    def test_folders_of_other_programs_may_have_theirs(self, run, victim, tmp_path):
        (run / "wandb").mkdir()
        (run / "wandb" / "latest-run").symlink_to(victim)
        assert main(["export", str(run), "--skill", "1", "--out", str(tmp_path / "skill.npz")]) == 0

    def test_only_files_that_we_wrote_are_removed(self, tmp_path, victim):
        folder = tmp_path / "checkpoint"
        checkpoints = Checkpoints(folder, {})
        for step in (10, 20, 30):
            checkpoints.save(step, {"x": np.zeros(3)}, {}, None, [])
        others = {"notes.txt", "step-1.txt", "step-x.json", "replay.safetensors"}
        for name in others:
            (folder / name).write_text("mine")
        (folder / "step-5.json.part").write_text("half")
        checkpoints.save(40, {"x": np.zeros(3)}, {}, None, [])
        assert {path.name for path in folder.iterdir()} >= others
        assert not (folder / "step-5.json.part").exists()
        checkpoints.clear()
        assert {path.name for path in folder.iterdir()} == others

    def test_nothing_is_cleared_behind_a_link(self, tmp_path, victim):
        before = tree(victim)
        (tmp_path / "checkpoint").symlink_to(victim)
        with pytest.raises(becl.UserError, match="checkpoint is a link"):
            Checkpoints(tmp_path / "checkpoint", {}).clear()
        (tmp_path / "notes").symlink_to(victim / "thesis.tex")
        remove_inside(tmp_path, ["notes", "checkpoint", "victim", "../victim/thesis.tex", "victim/thesis.tex"])
        assert tree(victim) == before


class TestPipes:
    @pytest.mark.parametrize("place", FILES)
    def test_no_command_waits_for_one(self, run, place, tmp_path, capsys):
        path = run / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        for command in COMMANDS:
            assert_refused(words_of(command, run, tmp_path / "out"), tmp_path, capsys, path.name, "is a pipe")

    def test_files_of_a_sweep_that_are_pipes(self, tmp_path, capsys):
        out = tmp_path / "sweep"
        out.mkdir()
        os.mkfifo(out / "sweep.json")
        assert_refused(["sweep", "smoke", "--out", str(out)], tmp_path, capsys, "sweep.json is a pipe")


class TestNames:
    @pytest.mark.parametrize("label", ["../../outside", "..", ".", "", "a/b", "/tmp/outside", "a\0b", "checkpoint\\x"])
    def test_a_label_of_a_maze_study_is_no_path(self, label, tmp_path, capsys):
        study = make_study(MazeOptions(("becl",), cycles=2))
        out = tmp_path / "a" / "b" / "study"
        open_folder(study.config(), out)
        note_seeds(study, out)
        config = json.loads((out / "config.json").read_text())
        forget_sums(out)
        config["runs"] = {label: config["runs"]["becl"]}
        (out / "config.json").write_text(json.dumps(config))
        assert_refused(["resume", str(out)], tmp_path, capsys, "config.json is damaged")

    @pytest.mark.parametrize("command", ["evaluate", "video", "export"])
    def test_a_seed_is_no_path(self, command, run, tmp_path, capsys):
        forget_sums(run)
        (run / "seed-..").mkdir()
        shutil.copytree(run / "seed-0", tmp_path / "outside")
        config = json.loads((run / "config.json").read_text())
        (run / "config.json").write_text(json.dumps(config | {"seeds": ["../../../outside"]}))
        assert_refused(words_of(command, run, tmp_path / "out"), tmp_path, capsys)

    @pytest.mark.parametrize("key", ["name", "cell", "needs", "proofs"])
    def test_jobs_of_a_sweep_are_no_paths(self, key, tmp_path):
        job = {"name": "pretrain/x", "stage": "pretrain", "words": ["pretrain"], "cell": "pretrain/x"}
        wrong = "../../outside"
        job |= {key: [wrong] if key in ("needs", "proofs") else wrong}
        (tmp_path / "sweep.json").write_text(json.dumps({"sweep": "x", "jobs": [job]}))
        with pytest.raises(becl.UserError, match="is damaged"):
            recorded_jobs(tmp_path)

    def test_names_and_paths(self, tmp_path):
        assert all(map(is_name, ("seed-0", "becl-temperature-0.1", "..x")))
        assert not any(map(is_name, ("", ".", "..", "a/b", "a\\b", "/a", "a\0", None)))
        assert inside(tmp_path, "seed-0", "x.csv") == tmp_path / "seed-0" / "x.csv"
        (tmp_path / "seed-1").symlink_to("/")
        with pytest.raises(becl.UserError, match="is a link"):
            inside(tmp_path, "seed-1", "tmp")
        with pytest.raises(becl.UserError, match="is a link"):
            check_inside(tmp_path)


STRANGER = "from pathlib import Path\nPath({ran!r}).touch()\nimport gymnasium\n"
STRANGER += "make = lambda: gymnasium.make('Pendulum-v1')\n"
STRANGER += "gymnasium.register('stranger/Arm-v0', 'gymnasium.envs.classic_control:PendulumEnv', max_episode_steps=9)\n"
NAMES = ("py:stranger:make", "gym:stranger/Arm-v0")


@pytest.fixture
def ran(tmp_path, monkeypatch) -> Iterator[Path]:
    """A file that is there once the stranger's code was run; its module lies in the working folder."""
    import gymnasium

    folder, ran = tmp_path / "work", tmp_path / "ran"
    folder.mkdir()
    (folder / "stranger.py").write_text(STRANGER.format(ran=str(ran)))
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.path", list(sys.path))
    yield ran
    gymnasium.registry.pop("stranger/Arm-v0", None)


def with_env(run: Path, env: str) -> Path:
    """An unfinished run of another environment, forged so well that nothing else is wrong with it."""
    forget_sums(run)
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"env": env, "steps": 6000}))
    for path in run.glob("seed-*/*.safetensors"):
        with safetensors.safe_open(path, "numpy") as opened:
            about = opened.metadata()
        assert about["env"] == config["env"]
        path.write_bytes(safetensors.numpy.save(safetensors.numpy.load_file(path), about | {"env": env}))
    return run


class TestCode:
    @pytest.mark.parametrize("env", NAMES)
    @pytest.mark.parametrize("command", RUN_AN_ENVIRONMENT)
    def test_no_command_runs_what_a_folder_names(self, command, env, run, ran, tmp_path, capsys):
        words = words_of(command, with_env(run, env), tmp_path / "out")
        assert_refused(words, run, capsys, env, f"becl {' '.join(words[:2])}", "--trust")
        assert not ran.exists()
        assert "stranger" not in sys.modules

    @pytest.mark.parametrize("env", NAMES)
    def test_python_runs_none_either(self, env, run, ran):
        with_env(run, env)
        COMMAND.set(None)
        found = becl.load(run)
        assert isinstance(found, becl.Run)
        for work in (lambda: found.skill(1), lambda: becl.evaluate(run, quiet=True),
                     lambda: becl.finetune(run, quiet=True), lambda: becl.resume(run, quiet=True)):  # fmt: skip
            with pytest.raises(becl.UserError, match=r"runs code from outside becl.*trust=True"):
                work()
        assert not ran.exists()

    @pytest.mark.parametrize("env", NAMES)
    def test_it_is_run_where_that_is_asked_for(self, env, run, ran, tmp_path):
        with_env(run, env)
        obs = np.zeros(3, np.float32)
        found = becl.load(run, trust=True)
        assert isinstance(found, becl.Run)
        assert found.skill(1)(obs).shape == (1,)
        assert ran.exists()

    def test_the_option_is_all_that_a_command_needs(self, run, ran, capsys):
        words = ["evaluate", str(with_env(run, NAMES[1])), "--episodes", "1", "--skills", "0"]
        assert main(words) == 2
        typed = capsys.readouterr().err.partition("type becl ")[2].split()
        assert main(typed) == 0
        assert ran.exists()

    @pytest.mark.parametrize("env", NAMES)
    def test_naming_it_is_asking_for_it(self, env, ran, capsys):
        assert main(["finetune", "--scratch", "--task", env, "--hidden", "8", "--dry-run"]) == 0
        assert ran.exists()
        with pytest.raises(becl.UserError, match="runs code from outside"):
            make_external("py:another.module:make", 1, 0)

    def test_gymnasiums_own_need_no_word(self, run, tmp_path):
        assert main(["evaluate", str(run), "--episodes", "1", "--skills", "0", "--out", str(tmp_path / "out")]) == 0

    @pytest.mark.parametrize("env", NAMES)
    def test_a_sweep_file_runs_none(self, env, ran, tmp_path, capsys):
        file = tmp_path / "sweep.toml"
        file.write_text(f'[pretrain]\ndomains = ["{env}"]\nmethods = ["diayn"]\nhidden = 8\n')
        for more in ([], ["--dry-run"]):
            words = ["sweep", str(file), "--out", str(tmp_path / "out"), *more]
            assert_refused(words, tmp_path, capsys, "sweep.toml, line 2", env, "--trust")
        assert not ran.exists()
        assert main(["sweep", str(file), "--out", str(tmp_path / "out"), "--dry-run", "--trust"]) == 0
        assert ran.exists()

    def test_what_is_our_own_needs_no_trust(self):
        """So that a sweep's options are the same whatever was trained in this process before."""
        trust_file.trust("walker", "square_a", "py:arms:make")
        assert trust_file.is_trusted("py:arms:make")
        assert not trust_file.is_trusted("walker")

    def test_a_sweep_file_cannot_trust_itself(self, tmp_path, capsys):
        file = tmp_path / "sweep.toml"
        file.write_text('[pretrain]\ndomains = ["walker"]\n[finetune]\ntrust = true\n')
        assert_refused(["sweep", str(file), "--dry-run"], tmp_path, capsys, "unknown key in [finetune] 'trust'")

    def test_the_working_folder_is_not_looked_in(self, tmp_path):
        """Python looks there first under `python -m`, so that a stranger's numpy.py would be run."""
        (tmp_path / "numpy.py").write_text(STRANGER.format(ran=str(tmp_path / "ran")))
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        done = subprocess.run([sys.executable, "-m", "becl", "methods"], cwd=tmp_path, env=environment, timeout=600,
                              capture_output=True, text=True)  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert not (tmp_path / "ran").exists()


class TestResults:
    FORGED = ("", "{}", "[]", "null", '{"steps": 5000}', '{"steps": "5000", "seconds": 1, "steps_per_second": 1}',
              '{"steps": 400, "seconds": 1, "steps_per_second": 1}', "{" * 100_000,
              '{"steps": 5000, "seconds": 1, "steps_per_second": 1, "config": "0123"}')  # fmt: skip
    WHOLE = '{"steps": 5000, "seconds": 1.5, "steps_per_second": 9}'

    @pytest.fixture
    def stopped(self, run) -> Path:
        """A run that was stopped: with a checkpoint, and without its last networks."""
        shutil.move(run / "seed-0" / "snapshot-5000.safetensors", run / "seed-0" / "snapshot-4000.safetensors")
        config = json.loads((run / "config.json").read_text())
        Checkpoints(run / "checkpoint", config).save(4000, {"x": np.zeros(3)}, {}, None, [])
        return run

    @pytest.mark.parametrize("text", [*FORGED, WHOLE], ids=lambda text: text[:40])
    def test_a_stray_one_finishes_nothing(self, stopped, text, tmp_path, capsys):
        (stopped / "result.json").write_text(text)
        assert_refused(["resume", str(stopped)], tmp_path, capsys, "result.json", "nothing was changed")
        assert not becl.load(stopped).finished
        assert (stopped / "checkpoint" / "step-4000.json").exists()

    def test_one_of_another_run(self, stopped, tmp_path, capsys):
        other = make_run(tmp_path / "other", "gym:Pendulum-v1", seeds=(1,))
        result = json.loads(self.WHOLE) | identity(other)
        (stopped / "result.json").write_text(json.dumps(result))
        assert_refused(["resume", str(stopped)], tmp_path, capsys, "is of another run")
        (other / "result.json").write_text(json.dumps(result))
        assert read_result(other) == result

    def test_one_without_a_run(self, tmp_path):
        """A sweep takes a job for done where its result is."""
        (tmp_path / "result.json").write_text(json.dumps(json.loads(self.WHOLE)))
        assert not is_finished(tmp_path)

    def test_a_folder_that_was_moved_is_the_same_run(self, stopped, tmp_path):
        (stopped / "result.json").write_text(json.dumps(json.loads(self.WHOLE) | identity(stopped)))
        moved = stopped.rename(tmp_path / "moved")
        assert is_finished(moved)

    def test_one_without_a_digest_needs_the_last_networks(self, run, capsys):
        """Earlier versions wrote such results."""
        (run / "result.json").write_text(self.WHOLE)
        assert becl.load(run).finished
        assert main(["resume", str(run)]) == 0
        assert "already finished" in capsys.readouterr().out

    def test_a_run_writes_one_that_is_its_own(self, tmp_path):
        out = tmp_path / "run"
        words = ["pretrain", "square_a", "--method", "diayn", "--hidden", "8", "--envs", "2", "--steps", "60"]
        settings = ["--set", "batch=8", "random_steps=20", "replay.capacity=100"]
        assert main([*words, *settings, "--out", str(out)]) == 0
        assert json.loads((out / "result.json").read_text())["config"] == identity(out)["config"]
        assert becl.load(out).finished

    @pytest.mark.parametrize("more", [{}, {"label": "becl", "seed": 0}, {"label": "becl", "seed": 0, "cycles": 9}])
    def test_a_seed_of_a_maze_study(self, more, tmp_path, capsys):
        study = make_study(MazeOptions(("becl",), cycles=2))
        open_folder(study.config(), tmp_path / "study")
        note_seeds(study, tmp_path / "study")
        (tmp_path / "study" / "becl").mkdir()
        (tmp_path / "study" / "becl" / "seed-0.json").write_text(json.dumps(more))
        assert_refused(["resume", str(tmp_path / "study")], tmp_path, capsys, "seed-0.json is damaged")
