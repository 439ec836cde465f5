"""Checkpoints as files: what is written comes back, what is damaged is never used, and nothing in them is run."""

import contextlib
import errno
import hashlib
import io
import json
import os
import pickle
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from becl.commands.cli import main
from becl.errors import UserError
from becl.runs import checkpoint as checkpoint_file
from becl.runs.checkpoint import FORMAT, HEADER, Checkpoints, Saver
from becl.runs.log import Log

IDENTITY = {"command": "pretrain", "steps": 100, "run": {"hidden": 8}}
LARGE = 10**6


def arrays_at(step: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(step)
    return {
        "loop.weights": rng.normal(size=(2, 3)).astype(np.float32),
        "loop.key": rng.integers(0, 2**32, (2, 2), np.uint32),
        "log.visited": rng.random((2, 5)) < 0.5,
        "envs.physics": rng.normal(size=4),
        "loop.empty": np.zeros((2, 0), np.float32),
        "loop.transposed": rng.normal(size=(3, 4)).T,
    }


def rows_from(first: int, end: int) -> dict[str, np.ndarray]:
    """Rows of a replay that say their own number."""
    return {"obs": np.arange(first, end, dtype=np.float32)[None], "last": np.zeros((1, end - first), bool)}


def about_at(step: int) -> dict[str, Any]:
    return {"number": step // 2, "ended": [1 / 3, float("nan")], "note": "reward ½"}


def made(folder: Path, steps=(10, 20), identity: Any = IDENTITY) -> Checkpoints:
    """Checkpoints with one more part each time."""
    checkpoints, parts, before = Checkpoints(folder, identity), [], 0
    for step in steps:
        name = f"replay-{before}-{step}.safetensors"
        parts.append(name)
        checkpoints.save(step, arrays_at(step), about_at(step), (name, rows_from(before, step)), list(parts))
        before = step
    return checkpoints


def loaded(checkpoints: Checkpoints, largest: int = LARGE) -> tuple[Any, list[str]]:
    said: list[str] = []
    return checkpoints.load(largest, said.append), said


def assert_is(found: Any, step: int) -> None:
    """All of it as it was written, to the bit."""
    assert found.step == step
    np.testing.assert_equal(found.about, about_at(step))
    for got, expected in [(found.arrays, arrays_at(step))] + [
        (arrays, rows_from(*map(int, re.findall(r"\d+", name)))) for name, arrays in found.parts.items()
    ]:
        assert got.keys() == expected.keys()
        for name, array in expected.items():
            assert got[name].dtype == array.dtype
            np.testing.assert_array_equal(got[name], array)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


# --- Whole ------------------------------------------------------------------------------------------------------------


def test_what_is_saved_comes_back(tmp_path):
    checkpoints = made(tmp_path / "checkpoint")
    found, said = loaded(checkpoints)
    assert_is(found, 20)
    assert list(found.parts) == ["replay-0-10.safetensors", "replay-10-20.safetensors"]
    assert not said
    assert loaded(Checkpoints(tmp_path / "none", IDENTITY)) == (None, [])


def test_two_are_kept_and_parts_that_neither_needs_are_removed(tmp_path):
    folder = tmp_path / "checkpoint"
    checkpoints = made(folder, (10, 20, 30))
    assert checkpoints.steps() == [20, 30]
    parts = [f"replay-{first}-{first + 10}.safetensors" for first in (0, 10, 20, 30)]
    assert names(folder) == {*parts[:3], "step-20.json", "step-20.safetensors", "step-30.json", "step-30.safetensors"}
    checkpoints.save(40, arrays_at(40), about_at(40), (parts[3], rows_from(30, 40)), parts[2:])
    assert {*parts} <= names(folder)  # The one before needs them.
    checkpoints.save(50, arrays_at(50), about_at(50), None, parts[2:])
    assert names(folder) & {*parts} == {*parts[2:]}
    assert_is(loaded(checkpoints)[0], 50)
    checkpoints.clear()
    assert not folder.exists()
    checkpoints.clear()


def test_what_was_left_half_written_is_ignored_and_removed(tmp_path):
    folder = tmp_path / "checkpoint"
    checkpoints = made(folder)
    for name in (
        "step-30.json.part",
        "step-30.safetensors.part",
        "replay-20-30.safetensors.part",
        "step-30.safetensors",
    ):
        (folder / name).write_bytes(b"half")
    (folder / "notes").mkdir()  # Somebody else's, left alone.
    found, said = loaded(checkpoints)
    assert_is(found, 20)
    assert not said
    checkpoints.save(30, arrays_at(30), about_at(30), None, list(found.parts))
    assert not [name for name in names(folder) if name.endswith(".part")]
    assert_is(loaded(checkpoints)[0], 30)
    assert (folder / "notes").is_dir()


def test_a_later_one_that_was_damaged_does_not_outlive_new_ones(tmp_path):
    """A run that began again, or went back, counts from lower steps than what is left of the damaged ones."""
    folder = tmp_path / "checkpoint"
    checkpoints = made(folder, (100, 200))
    for step in (100, 200):
        (folder / f"step-{step}.safetensors").write_bytes(b"")
    assert loaded(checkpoints)[0] is None
    checkpoints.save(50, arrays_at(50), about_at(50), None, [])
    found, said = loaded(checkpoints)
    assert_is(found, 50)
    assert not said


def test_one_of_another_run_is_refused_with_the_difference(tmp_path):
    folder = tmp_path / "checkpoint"
    made(folder)
    other = Checkpoints(folder, IDENTITY | {"run": {"hidden": 9}})
    with pytest.raises(UserError, match=r"another configuration \(run\.hidden: 8, 9 now\)"):
        loaded(other)
    checkpoints = Checkpoints(folder, IDENTITY)
    rewrite(folder / "step-20.json", lambda record: record | {"format": FORMAT + 1})
    with pytest.raises(UserError, match=f"another version .format {FORMAT + 1}, this one reads {FORMAT}"):
        loaded(checkpoints)
    # Of another version nothing but the seal and the number is looked at.
    rewrite(folder / "step-20.json", lambda record: {"format": "new", "step": 20})
    with pytest.raises(UserError, match="format new"):
        loaded(checkpoints)


def test_parts_that_somebody_removed_are_missed_before_a_checkpoint_is_called_whole(tmp_path):
    folder = tmp_path / "checkpoint"
    checkpoints = made(folder)
    parts = list(loaded(checkpoints)[0].parts)
    (folder / parts[0]).unlink()
    with pytest.raises(FileNotFoundError, match=parts[0]):
        checkpoints.save(30, arrays_at(30), about_at(30), None, parts)
    assert checkpoints.steps() == [10, 20]
    shutil.rmtree(folder)
    with pytest.raises(FileNotFoundError):
        checkpoints.save(30, arrays_at(30), about_at(30), None, parts)


def test_a_folder_of_a_run_that_is_gone_is_not_made_again(tmp_path):
    (tmp_path / "run").mkdir()
    checkpoints = made(tmp_path / "run" / "checkpoint")
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(FileNotFoundError):
        checkpoints.save(30, arrays_at(30), about_at(30), None, [])
    assert not (tmp_path / "run").exists()


# --- Damaged ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("good") / "checkpoint"
    made(folder)
    return folder


@pytest.fixture
def copy(good, tmp_path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "checkpoint"))


def flips(name: str, size: int) -> list[int]:
    """Of a JSON every byte; of arrays the length of their header, and places over header and data."""
    return list(range(size)) if name.endswith(".json") else sorted({*range(9), *range(9, size, size // 50), size - 1})


NEWEST = ("step-20.json", "step-20.safetensors", "replay-10-20.safetensors")
SHARED = "replay-0-10.safetensors"


@pytest.mark.parametrize("name", [*NEWEST, SHARED])
def test_any_byte_changed_is_found(name, copy):
    checkpoints, path = Checkpoints(copy, IDENTITY), copy / name
    whole = path.read_bytes()
    places = flips(name, len(whole))
    assert len(places) >= 50
    harmless = 0
    for place in places:
        for change in (1, 0x80):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ change]) + whole[place + 1 :])
            found, said = loaded(checkpoints)
            if found is not None and found.step == 20:
                # A space turned into another is no damage.
                assert name.endswith(".json")
                assert not said
                assert_is(found, 20)
                harmless += 1
                continue
            assert_older(name, found, said)
    assert harmless < len(places) / 4


def assert_older(name: str, found: Any, said: list[str]) -> None:
    """The one before, and a line; where both need the file there is none left, and two lines."""
    if name == SHARED:
        assert found is None
        assert len(said) == 2
        assert said[1].endswith("beginning again")
    else:
        assert_is(found, 10)
        assert len(said) == 1
    assert said[0].startswith("checkpoint of step 20 is damaged (")
    assert said[0].endswith("going back to step 10")
    assert name in said[0]
    assert not any("\n" in line for line in said)


@pytest.mark.parametrize("name", [*NEWEST, SHARED])
def test_any_length_is_found(name, copy):
    checkpoints, path = Checkpoints(copy, IDENTITY), copy / name
    whole = path.read_bytes()
    # Without its last line break a JSON is still whole.
    lengths = sorted({*range(0, 20), *range(0, len(whole) - 1, max(1, len(whole) // 40)), len(whole) - 2})
    for data in (*(whole[:length] for length in lengths), whole + whole, whole + b"\1", b"\0" * len(whole)):
        path.write_bytes(data)
        assert_older(name, *loaded(checkpoints))


@pytest.mark.parametrize("name", [*NEWEST[1:], SHARED])
def test_a_missing_file_is_found(name, copy):
    (copy / name).unlink()
    assert_older(name, *loaded(Checkpoints(copy, IDENTITY)))
    (copy / name).mkdir()
    assert_older(name, *loaded(Checkpoints(copy, IDENTITY)))


def test_without_its_json_a_checkpoint_does_not_exist(copy):
    checkpoints = Checkpoints(copy, IDENTITY)
    (copy / "step-20.json").unlink()
    found, said = loaded(checkpoints)
    assert_is(found, 10)
    assert not said
    (copy / "step-10.json").unlink()
    assert loaded(checkpoints) == (None, [])


def test_files_of_another_step_are_found(copy):
    """Both sealed, and swapped."""
    (copy / "step-20.json").write_bytes((copy / "step-10.json").read_bytes())
    assert_older("step-20.json", *loaded(Checkpoints(copy, IDENTITY)))


def test_arrays_of_another_step_are_found(copy):
    shutil.copy(copy / "step-10.safetensors", copy / "step-20.safetensors")  # Of the same length.
    assert_older("step-20.safetensors", *loaded(Checkpoints(copy, IDENTITY)))


# --- Malicious --------------------------------------------------------------------------------------------------------


def rewrite(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """A JSON changed and sealed again, as an attacker would."""
    record = json.loads(path.read_text())
    del record["sha256"]
    record = change(record)
    seal = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(record | {"sha256": seal}))


def replace(folder: Path, name: str, data: bytes) -> None:
    """A file of the newest checkpoint replaced, with a checksum that is right."""
    (folder / name).write_bytes(data)
    entry = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    rewrite(folder / "step-20.json", lambda record: record | {"files": record["files"] | {name: entry}})


def naming(name: str) -> Callable[[dict[str, Any]], Any]:
    """A part of some other name."""

    def change(record: dict[str, Any]) -> Any:
        entry = record["files"]["replay-10-20.safetensors"]
        return record | {"parts": [*record["parts"], name], "files": record["files"] | {name: entry}}

    return change


NAMES = ["../secret.safetensors", "/etc/passwd", "replay-0-5.safetensors/../../secret", "step-10.safetensors",
         "..", "", "replay-a-b.safetensors", "replay-0-5.safetensors\n", "replay-0-5.pickle",
         "./replay-0-5.safetensors", "replay--1-5.safetensors", "replay-0-10.safetensors"]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_names_of_other_files_are_refused(name, copy):
    shutil.copy(copy / "replay-10-20.safetensors", copy.parent / "secret.safetensors")
    shutil.copy(copy / "replay-10-20.safetensors", copy.parent / "secret")
    rewrite(copy / "step-20.json", naming(name))
    found, said = loaded(Checkpoints(copy, IDENTITY))
    assert_is(found, 10)
    assert "names files that it may not" in said[0]


ENTRY = {"sha256": "", "bytes": 3}
RECORDS: list[Callable[[dict[str, Any]], Any]] = [
    lambda record: record | {"parts": [1, 2]},
    lambda record: record | {"parts": None},
    lambda record: record | {"parts": {}},
    lambda record: record | {"files": []},
    lambda record: record | {"files": {name: None for name in record["files"]}},
    lambda record: record | {"files": {name: ENTRY | {"bytes": float("inf")} for name in record["files"]}},
    lambda record: record | {"files": {name: ENTRY | {"bytes": True} for name in record["files"]}},
    lambda record: record | {"files": {name: ENTRY | {"bytes": "3"} for name in record["files"]}},
    lambda record: record | {"files": {name: ENTRY | {"bytes": -3} for name in record["files"]}},
    lambda record: record | {"files": record["files"] | {"more": ENTRY}},
    lambda record: record | {"about": [1]},
    lambda record: {name: value for name, value in record.items() if name != "about"},
    lambda record: {name: value for name, value in record.items() if name != "identity"},
    lambda record: {name: value for name, value in record.items() if name != "format"},
    lambda record: record | {"step": 21},
    lambda record: record | {"step": "20"},
]


@pytest.mark.parametrize("number", range(len(RECORDS)))
def test_a_sealed_record_of_another_shape_is_refused(number, copy):
    rewrite(copy / "step-20.json", RECORDS[number])
    found, said = loaded(Checkpoints(copy, IDENTITY))
    assert_is(found, 10)
    assert len(said) == 1


@pytest.mark.parametrize("text", ["null", "[]", "3", '"text"', "{}", "NaN", '{"sha256": 1}', "1" * 5000, "[" * 200_000,
                                  '{"a":' * 100_000, '{"sha256": "", "step": 20}', "\ud800"])  # fmt: skip
def test_json_that_is_no_record_is_refused(text, copy):
    (copy / "step-20.json").write_bytes(text.encode(errors="surrogatepass"))
    found, said = loaded(Checkpoints(copy, IDENTITY))
    assert_is(found, 10)
    assert len(said) == 1


def test_sizes_are_refused_before_anything_is_read(copy, monkeypatch):
    """Sparse files: they take no room on the disk, and would take it in memory."""
    checkpoints = Checkpoints(copy, IDENTITY)
    with (copy / "step-20.json").open("r+b") as file:
        file.truncate(200 * HEADER)
    read: list[str] = []
    read_bytes = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(path.name) or read_bytes(path))
    found, said = loaded(checkpoints)
    assert_is(found, 10)
    assert "too large" in said[0]
    assert "step-20.json" not in read


@pytest.mark.parametrize("parts", [1, 40])
def test_more_than_a_run_has_is_refused_before_anything_is_read(parts, copy, monkeypatch):
    """One file, or many that are each small enough."""
    checkpoints, size = Checkpoints(copy, IDENTITY), 80_000_000 // parts
    listed = [f"replay-{number}-{number + 1}.safetensors" for number in range(parts)]
    for name in listed:
        with (copy / name).open("wb") as file:
            file.truncate(size)
    seal = hashlib.sha256(b"\0" * size).hexdigest()
    rewrite(copy / "step-20.json", lambda record: record | {
        "parts": listed,
        "files": {"step-20.safetensors": record["files"]["step-20.safetensors"]}
        | {name: {"bytes": size, "sha256": seal} for name in listed},
    })  # fmt: skip
    read: list[str] = []
    read_bytes = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(path.name) or read_bytes(path))
    found, said = loaded(checkpoints, 10_000_000)
    assert_is(found, 10)
    assert "more than this run has" in said[0]
    assert not {*read} & {*listed}


def test_what_is_no_plain_file_is_refused(copy):
    """Reading these would never end, or wait for ever."""
    checkpoints = Checkpoints(copy, IDENTITY)
    for name, make in (("step-20.safetensors", lambda path: path.symlink_to("/dev/zero")), ("step-20.json", os.mkfifo)):
        (copy / name).unlink()
        make(copy / name)
        found, said = loaded(checkpoints)
        assert_is(found, 10)
        assert f"({name} is no file)" in said[0]
        (copy / name).unlink()
        (copy / name).write_bytes(b"")


def header(tensors: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = tensors if isinstance(tensors, bytes) else json.dumps(tensors).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


PETABYTES = 10**15
HEADERS = [
    header({"a": {"dtype": "F32", "shape": [PETABYTES], "data_offsets": [0, 4 * PETABYTES]}}),
    header({"a": {"dtype": "F32", "shape": [PETABYTES], "data_offsets": [0, 4]}}, b"abcd"),
    header({"a": {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 4]}}, b"abcd"),
    header({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, b"abcd"),
    header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}, b"abcd"),
    header({"a": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}, b"ab"),
    header({"a": {"dtype": "O", "shape": [1], "data_offsets": [0, 4]}}, b"abcd"),
    header({}, length=2**63),
    header({}, length=2**64 - 1),
    header(b"[" * 100_000),
    header(b'{"a":' * 100_000),
    header(b"\xff\xfe"),
    b"",
]


@pytest.mark.parametrize("number", range(len(HEADERS)))
@pytest.mark.parametrize("name", NEWEST[1:])
def test_headers_of_arrays_that_lie_are_refused(name, number, copy):
    """All with checksums that are right."""
    replace(copy, name, HEADERS[number])
    assert_older(name, *loaded(Checkpoints(copy, IDENTITY)))


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def payloads(marker: Path) -> dict[str, bytes]:
    """The same pickle in all the ways that careless readers run it."""
    plain = pickle.dumps(Payload(marker))
    boxed = np.array([Payload(marker)], object)
    buffer, single = io.BytesIO(), io.BytesIO()
    np.savez(buffer, paths=boxed, mine=boxed)
    np.save(single, boxed)
    return {"pickle": plain, "npz": buffer.getvalue(), "npy": single.getvalue()}


def test_the_payload_would_work(tmp_path):
    for name, data in payloads(tmp_path / "marker").items():
        if name == "pickle":
            pickle.loads(data)
        elif name == "npz":
            np.load(io.BytesIO(data), allow_pickle=True)["paths"]
        else:
            np.load(io.BytesIO(data), allow_pickle=True)
        assert (tmp_path / "marker").exists()
        (tmp_path / "marker").rmdir()


@pytest.mark.parametrize("kind", ["pickle", "npz", "npy"])
@pytest.mark.parametrize("name", NEWEST[1:])
def test_a_pickle_in_a_checkpoint_is_not_run(name, kind, copy, tmp_path):
    replace(copy, name, payloads(tmp_path / "marker")[kind])
    assert_older(name, *loaded(Checkpoints(copy, IDENTITY)))
    assert not (tmp_path / "marker").exists()


STUDY = ["maze", "--methods", "becl", "--cycles", "1", "--skills", "2", "--workers", "1", "--set",
         "learner.network.hidden=4", "network.hidden=4", "episodes=4", "env.episode_length=4"]  # fmt: skip


@pytest.mark.parametrize("kind", ["pickle", "npz", "npy"])
def test_a_pickle_in_a_study_is_not_run(kind, tmp_path, capsys):
    """A finished seed is not trained again, but its trajectories are read for the figures."""
    out = tmp_path / "study"
    open_study(out)
    result = {"label": "becl", "seed": 0, "cycles": 1, "mutual_information": 0.5, "coverage": 0.5, "far": 1.0,
              "seconds": 1.0}  # fmt: skip
    (out / "becl").mkdir()
    (out / "becl" / "seed-0.json").write_text(json.dumps(result))
    (out / "becl" / "seed-0.npz").write_bytes(payloads(tmp_path / "marker")[kind])
    assert main([*STUDY, "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "seed-0.npz: damaged; remove seed-0.json" in error
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize("text", ["", "{", "null", "[" * 100_000, '{"seed": 1, "label": "becl"}', '{"seed": 0}'])
def test_a_damaged_result_of_a_study_is_said(text, tmp_path, capsys):
    out = tmp_path / "study"
    open_study(out)
    (out / "becl").mkdir()
    (out / "becl" / "seed-0.json").write_text(text)
    assert main([*STUDY, "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "seed-0.json is damaged; remove it" in error


def open_study(out: Path) -> None:
    from becl.experiments.maze_study import make_study
    from becl.options import MazeOptions
    from becl.runs.folder import open_folder

    study = make_study(MazeOptions(("becl",), skills=2, cycles=1, set=STUDY[STUDY.index("--set") + 1 :]))
    open_folder(study.config(), out)


NOT_EVENTS = ["../victim", "/etc/passwd", "..", "", "victim", "events.out.tfevents.1/../../victim",
              "events.out.tfevents.1\nx"]  # fmt: skip


@pytest.mark.parametrize("name", NOT_EVENTS)
def test_files_that_an_older_checkpoint_names_are_left_alone(name, tmp_path):
    """Checkpoints used to say in which file of events a run goes on."""
    folder, victim = tmp_path / "tensorboard" / "seed-0", tmp_path / "tensorboard" / "victim"
    with contextlib.closing(Log(tmp_path, [{"seed": 0}], envs=1, every=10)) as log:
        arrays, about = log.get_state()
    before = {path: path.read_bytes() for path in folder.iterdir()}
    for path in (victim, folder / "victim"):
        path.write_text("precious")
    Log(tmp_path, [{"seed": 0}], envs=1, every=10, resume=(arrays, about | {"events": [[name, 0]]})).close()
    assert {victim.read_text(), (folder / "victim").read_text()} == {"precious"}
    assert {path: path.read_bytes() for path in before} == before


# --- The thread -------------------------------------------------------------------------------------------------------


def test_a_full_disk_is_told_and_training_goes_on(tmp_path, monkeypatch):
    checkpoints, said = made(tmp_path / "checkpoint", (10,)), []
    saver = Saver(checkpoints, said.append)
    write = checkpoint_file.write_bytes

    def full(path: Path, data: bytes) -> None:
        if full_now:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, data)

    monkeypatch.setattr(checkpoint_file, "write_bytes", full)
    full_now = True
    part = "replay-10-20.safetensors"
    assert saver.submit(20, arrays_at(20), about_at(20), (part, rows_from(10, 20)), ["replay-0-10.safetensors", part])
    assert not saver.wait()
    assert said == [
        "checkpoint of step 20 could not be written (No space left on device); the last good one is of step 10; "
        "training continues"
    ]
    assert checkpoints.steps() == [10]
    assert not [name for name in names(checkpoints.folder) if "20" in name]
    full_now = False
    # What was lost is in the next.
    part = "replay-10-30.safetensors"
    assert saver.submit(30, arrays_at(30), about_at(30), (part, rows_from(10, 30)), ["replay-0-10.safetensors", part])
    saver.close()
    assert_is(loaded(checkpoints)[0], 30)
    assert len(said) == 1


@pytest.mark.parametrize("last", ["replay-10-20.safetensors", "step-20.safetensors", "step-20.json"])
def test_a_checkpoint_that_failed_leaves_nothing(last, tmp_path, monkeypatch):
    """Else a full disk would get fuller with each."""
    checkpoints = made(tmp_path / "checkpoint", (10,))
    before, write = names(checkpoints.folder), checkpoint_file.write_bytes

    def full(path: Path, data: bytes) -> None:
        if path.name == last:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, data)

    monkeypatch.setattr(checkpoint_file, "write_bytes", full)
    part = "replay-10-20.safetensors"
    with pytest.raises(OSError, match="No space"):
        checkpoints.save(20, arrays_at(20), about_at(20), (part, rows_from(10, 20)), ["replay-0-10.safetensors", part])
    assert names(checkpoints.folder) == before
    assert_is(loaded(checkpoints)[0], 10)


def test_a_bug_in_the_thread_is_not_a_full_disk(tmp_path):
    saver = Saver(Checkpoints(tmp_path / "checkpoint", {}), lambda line: None)
    saver.submit(1, {"a": np.array(["text"])}, {}, None, [])
    with pytest.raises(Exception, match=r".") as raised:
        saver.wait()
    assert not isinstance(raised.value, OSError)


def test_files_are_flushed_before_they_get_their_names(tmp_path, monkeypatch):
    """Else a power cut could leave names without contents."""
    seen: list[str] = []
    fsync, rename = os.fsync, Path.replace

    def flushed(handle: int) -> None:
        seen.append("folder" if os.path.isdir(f"/proc/self/fd/{handle}") else "file")
        fsync(handle)

    def renamed(path: Path, target: Path) -> Path:
        seen.append(target.name)
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(Path, "replace", renamed)
    made(tmp_path / "checkpoint", (10,))
    assert seen == [
        "folder", "file", "replay-0-10.safetensors", "folder", "file", "step-10.safetensors", "folder", "file",
        "step-10.json", "folder",
    ]  # fmt: skip


def test_arrays_are_what_others_can_read(good):
    arrays = safetensors.numpy.load((good / "step-20.safetensors").read_bytes())
    np.testing.assert_array_equal(arrays["loop.transposed"], arrays_at(20)["loop.transposed"])
