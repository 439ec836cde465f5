"""Event files against a naive decoder, published checksums and bytes that TensorBoard wrote."""

import math
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from event_files import curves, decoded, naive_crc32c

from becl.runs import events
from becl.runs.events import EventWriter

TIME = 1700000000.25

# Records that TensorBoard 2.21.0's RecordWriter and event_pb2 (protobuf 7.36.2) make of the same events.
VERSION = "1800000000000000a37f4b220900001040fc54d9411a0d627261696e2e4576656e743a32338d2fe9"
GOLDEN = [
    (
        1234567,
        {"reward/mean": 0.1, "κ": -math.inf},
        "2e00000000000000c5cb57fa0900001040fc54d9411087ad4b2a1f0a120a0b7265776172642f6d65616e15cdcccc3d0a090a02ceba15"
        "000080ff3b6810e1",
    ),
    (
        -3,
        {"loss": math.nan},
        "2300000000000000b09f77430900001040fc54d94110fdffffffffffffffff012a0d0a0b0a046c6f7373150000c07fc0fc58ea",
    ),
    (0, {"a": 0.0}, "1500000000000000d6ab6b2b0900001040fc54d9412a0a0a080a01611500000000f3c606a7"),
]
SESSION = "0f000000000000006d532b090900001040fc54d94110153a0208010e937c4c"
"""The beginning of a session at step 21."""


@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        # RFC 3720, appendix B.4
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_the_decoders_crc32c_gives_the_published_values(data, crc):
    assert naive_crc32c(data) == crc


@pytest.mark.parametrize(("step", "values", "golden"), GOLDEN)
def test_records_are_tensorboards_to_the_byte(tmp_path, monkeypatch, step, values, golden):
    monkeypatch.setattr(events, "now", lambda: TIME)
    with EventWriter(tmp_path) as writer:
        writer.scalars(step, values)
    assert writer.path.read_bytes().hex() == VERSION + golden


@pytest.mark.parametrize("step", [0, 1, 127, 128, 2**31, 2**40 + 1, 2**63 - 1, -1, -(2**63)])
def test_steps_tags_and_values_come_back(tmp_path, step):
    values = {"reward": 1 / 3, "größe/κ 技": -2.5, "": 1e-45, "x" * 300: 3e38}
    with EventWriter(tmp_path) as writer:
        writer.scalars(step, values, time=TIME)
        writer.scalars(step, {}, time=-TIME)
    rounded = {tag: float(np.float32(value)) for tag, value in values.items()}
    assert decoded(writer.path) == [(TIME, step, rounded, False), (-TIME, step, {}, False)]


def test_values_that_are_not_finite_are_written(tmp_path):
    with EventWriter(tmp_path) as writer:
        writer.scalars(1, {"nan": math.nan, "inf": math.inf, "large": 1e39, "small": -1e39})
    [(_, _, values, _)] = decoded(writer.path)
    assert math.isnan(values.pop("nan"))
    assert values == {"inf": math.inf, "large": math.inf, "small": -math.inf}


def test_a_reader_sees_an_event_at_once(tmp_path):
    with EventWriter(tmp_path) as writer:
        assert decoded(writer.path) == []
        for step in range(3):
            writer.scalars(step, {"reward": 2.0 * step}, time=TIME)
            assert decoded(writer.path)[-1] == (TIME, step, {"reward": 2.0 * step}, False)


def test_opening_again_makes_another_file(tmp_path):
    folder = tmp_path / "new" / "run"
    for step in range(3):
        with EventWriter(folder) as writer:
            writer.scalars(step, {"reward": 1.0})
    files = sorted(folder.iterdir())
    assert all("tfevents" in file.name for file in files)
    assert [[event.step for event in decoded(file)] for file in files] == [[0], [1], [2]]


# --- Going on ---------------------------------------------------------------------------------------------------------


def rows(*steps: int) -> list[tuple[int, dict[str, float]]]:
    return [(step, {"reward": float(step)}) for step in steps]


def write(folder, *steps: int, purge_step: int | None = None) -> EventWriter:
    with EventWriter(folder, purge_step) as writer:
        for step in steps:
            writer.scalars(step, {"reward": float(step)})
    return writer


def test_a_purge_step_drops_what_older_files_hold_from_there(tmp_path):
    write(tmp_path, 10, 20, 30)
    write(tmp_path, purge_step=21)
    assert curves(tmp_path) == rows(10, 20)
    write(tmp_path, 30, 40, purge_step=21)
    assert curves(tmp_path) == rows(10, 20, 30, 40)
    write(tmp_path, 10, purge_step=1)
    assert curves(tmp_path) == rows(10)


def test_the_marks_are_tensorboards_to_the_byte(tmp_path, monkeypatch):
    monkeypatch.setattr(events, "now", lambda: TIME)
    assert write(tmp_path, purge_step=21).path.read_bytes().hex() == VERSION + 2 * SESSION


def test_files_sort_in_the_order_of_writing_whatever_the_clock_says(tmp_path, monkeypatch):
    """Another machine may go on with a run, with a clock that is behind."""
    for clock in (TIME, TIME, TIME - 3600, TIME + 9):
        monkeypatch.setattr(events, "now", lambda clock=clock: clock)
        last = write(tmp_path, 10, purge_step=10)
        assert last.path == max(tmp_path.iterdir())
    assert len([*tmp_path.iterdir()]) == 4
    assert curves(tmp_path) == rows(10)


@pytest.mark.parametrize("lost", range(1, 60))
def test_a_file_that_was_cut_off_anywhere_is_read_up_to_there(tmp_path, lost):
    path = write(tmp_path, 10, 20).path
    data = path.read_bytes()
    path.write_bytes(data[:-lost])
    size = (len(data) - len(bytes.fromhex(VERSION))) // 2
    kept = 1 if lost <= size else 0
    assert curves(tmp_path) == rows(10)[:kept]
    write(tmp_path, 20, purge_step=11)
    assert curves(tmp_path) == [*rows(10)[:kept], *rows(20)]


def test_a_killed_process_leaves_all_it_has_written(tmp_path):
    """Without closing anything, and with no time to."""
    code = """
from pathlib import Path
import itertools, sys
from becl.runs.events import EventWriter
writer = EventWriter(Path(sys.argv[1]))
for step in itertools.count(1):
    writer.scalars(step, {"reward": float(step)})
    print(step, flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = [int(process.stdout.readline()) for _ in range(100)]
    os.kill(process.pid, signal.SIGKILL)
    said += [int(line) for line in process.communicate()[0].splitlines()]
    assert curves(tmp_path)[: len(said)] == rows(*said)
    assert said[-1] <= curves(tmp_path)[-1][0] <= said[-1] + 1
