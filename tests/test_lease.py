"""Two machines and one folder: whoever is silent for too long loses it, notices, and stops before writing."""

import errno
import fcntl
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from run_folders import TINY

from becl.commands.cli import main
from becl.errors import Failed, UserError
from becl.experiments.pretrainer import pretrain
from becl.experiments.pretraining import load_pretraining, make_pretraining
from becl.options import PretrainOptions
from becl.runs import lock as lock_file
from becl.runs.callbacks import Callback
from becl.runs.checkpoint import Checkpoints, Saver
from becl.runs.folder import open_folder
from becl.runs.lock import Lease, Lost, Owner, guard, held, holding, locked, read_owner, take
from becl.runs.writing import write_text


def elsewhere(folder: Path, pid: int = 7) -> Lease:
    """A process on another machine that shares the disk, but not the system's locks, takes a folder as it is."""
    path = folder / "lock"
    part = folder / "theirs"
    part.write_bytes(b"")
    part.replace(path)  # As `take` does where it robs.
    theirs = Lease(path, Owner(pid, "far", "another boot", f"token-{pid}"), os.open(path, os.O_RDWR))
    theirs.write()
    return theirs


@pytest.fixture
def quick(monkeypatch):
    """Leases run out at once: nobody waits in a test."""
    monkeypatch.setattr(lock_file, "LEASE", 0.0)


def test_who_renews_is_left_alone(tmp_path, monkeypatch, capsys):
    theirs = elsewhere(tmp_path)
    monkeypatch.setattr(lock_file.time, "sleep", lambda _: theirs.renew())
    with pytest.raises(UserError, match=r"is in use by process 7 on far$"), locked(tmp_path):
        pass
    assert "waiting up to 30 s for a sign of life" in capsys.readouterr().err
    assert theirs.is_held()
    theirs.release()
    assert not (tmp_path / "lock").exists()


def test_who_is_silent_is_robbed_and_notices(tmp_path, quick):
    theirs = elsewhere(tmp_path)
    with holding([theirs]):
        write_text(tmp_path / "mine.txt", "before")
    with locked(tmp_path) as mine:
        # The other machine wakes up: it renews nothing, writes nothing, and removes no lock but its own.
        theirs.renew()
        assert read_owner(tmp_path / "lock") == mine.owner
        with holding([theirs]), pytest.raises(Lost, match=f"process {os.getpid()} on this machine has taken it over"):
            write_text(tmp_path / "mine.txt", "after")
        theirs.release()
        assert mine.is_held()
        assert (tmp_path / "mine.txt").read_text() == "before"
        assert not list(tmp_path.glob("*.part"))
        write_text(tmp_path / "mine.txt", "the new owner")
    assert not (tmp_path / "lock").exists()


def test_of_two_robbers_one_has_it(tmp_path, quick, monkeypatch):
    elsewhere(tmp_path)
    second = []
    monkeypatch.setattr(lock_file.time, "sleep", lambda _: second or second.append(elsewhere(tmp_path, 8)))
    with pytest.raises(UserError, match="is in use by process 8 on far"), locked(tmp_path):
        pass
    assert second[0].is_held()
    assert held() == []


def test_locks_of_earlier_versions_are_never_robbed(tmp_path, quick):
    """They are not renewed, so that nothing can be known."""
    (tmp_path / "lock").write_text('{"pid": 7, "host": "far"}')
    with pytest.raises(UserError, match="process 7 on far; if that has ended, remove"), locked(tmp_path):
        pass


def test_without_locks_of_the_system(tmp_path, monkeypatch, capsys, quick):
    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with locked(tmp_path) as mine:
        assert "this file system has no locks" in capsys.readouterr().err
        monkeypatch.setattr(lock_file, "LEASE", 30.0)
        monkeypatch.setattr(lock_file.time, "sleep", lambda _: mine.renew())
        with pytest.raises(UserError, match=rf"is in use by process {os.getpid()} on this machine$"):
            take(tmp_path / "lock")
    gone = Owner(2**22 + 1, lock_file.socket.gethostname(), lock_file._place(), "gone", 5)
    (tmp_path / "lock").write_text(json.dumps(gone._asdict()))
    with locked(tmp_path):  # At once: its process is no more.
        pass


def test_a_lease_is_renewed(tmp_path, monkeypatch):
    monkeypatch.setattr(lock_file, "RENEWED", 0.001)
    size = None
    with locked(tmp_path) as mine:
        while mine.owner.beat < 3:
            mine._over.wait(0.01)
            size = (tmp_path / "lock").stat().st_size
        assert size == lock_file.SIZE  # Needs no room on a full disk.


def test_a_removed_lock_is_lost(tmp_path):
    with locked(tmp_path):
        (tmp_path / "lock").unlink()
        with pytest.raises(Lost, match="its lock was removed"):
            guard(tmp_path / "checkpoint" / "step-1.json")


def test_other_folders_are_not_guarded(tmp_path):
    with locked(tmp_path):
        (tmp_path / "lock").unlink()
        guard(tmp_path.parent / "elsewhere.txt")


def test_a_checkpoint_in_another_thread_is_not_written(tmp_path):
    said: list[str] = []
    saver = Saver(Checkpoints(tmp_path / "checkpoint", {}), said.append)
    with locked(tmp_path):
        theirs = elsewhere(tmp_path)
        saver.submit(10, {"x": np.zeros(3)}, {}, None, [])
        with pytest.raises(Lost, match="process 7 on far"):
            saver.wait()
    saver.close()
    assert theirs.is_held()
    assert not list(tmp_path.glob("checkpoint/*"))
    assert said == []


class Robbed(Callback):
    """Another machine takes the folder between two rows, as after a process was paused for long."""

    def __init__(self, folder: Path):
        self.folder, self.theirs, self.left = folder, None, {}

    def on_log(self, step, rows) -> None:
        if self.theirs is None:
            self.theirs = elsewhere(self.folder)
            self.left = {path: path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}


def test_a_run_stops_before_it_writes(tmp_path):
    options = PretrainOptions("square_a", "diayn", steps=80, skills=4, envs=2, hidden=8, log_every=20, set=TINY)
    made, out = make_pretraining(options), tmp_path / "run"
    open_folder(made.config(), out)
    robbed = Robbed(out)
    with pytest.raises(Failed, match="process 7 on far has taken it over"):
        pretrain(made, out, callbacks=[robbed])
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == robbed.left
    assert robbed.theirs is not None
    assert robbed.theirs.is_held()
    robbed.theirs.release()
    assert pretrain(load_pretraining(out), out)


def test_a_study_stops_before_it_writes(tmp_path, monkeypatch, capsys):
    from becl.experiments import maze_trainer

    out, before = tmp_path / "study", maze_trainer.keep

    def robbing(*words, **more) -> None:
        elsewhere(out)
        before(*words, **more)

    monkeypatch.setattr(maze_trainer, "keep", robbing)
    small = ["--set", "learner.network.hidden=8", "network.hidden=8", "episodes=10", "env.episode_length=10"]
    words = ["maze", "--methods", "diayn", "--cycles", "1", "--skills", "2", "--workers", "1", "--out", str(out)]
    assert main([*words, *small]) == 1
    assert "process 7 on far has taken it over" in capsys.readouterr().err
    assert not list(out.glob("diayn/seed-0.*"))
    assert not (out / "summary.csv").exists()
    shutil.rmtree(out)
