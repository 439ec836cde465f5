"""Event files against a naive decoder, published checksums and bytes that TensorBoard wrote."""

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from becl.runs import events
from becl.runs.events import EventWriter, crc32c

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


def naive_crc32c(data: bytes) -> int:
    """Bit by bit, the highest first, with the polynomial as the standard prints it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= int(f"{byte:08b}"[::-1], 2) << 24
        for _ in range(8):
            crc = (crc << 1) ^ 0x11EDC6F41 if crc & 0x80000000 else crc << 1
    return int(f"{crc ^ 0xFFFFFFFF:032b}"[::-1], 2)


def records(path: Path) -> list[bytes]:
    """The data of each record, after checking both checksums."""
    rest, found = path.read_bytes(), []
    while rest:
        length, of_length = struct.unpack("<QI", rest[:12])
        data, (of_data,) = rest[12 : 12 + length], struct.unpack("<I", rest[12 + length : 16 + length])
        for checked, stored in ((rest[:8], of_length), (data, of_data)):
            crc = (stored - 0xA282EAD8) % 2**32
            assert (crc << 15 | crc >> 17) % 2**32 == naive_crc32c(checked)
        found.append(data)
        rest = rest[16 + length :]
    return found


def varint(data: bytes) -> tuple[int, bytes]:
    """The number at the beginning, and what follows it."""
    size = next(i for i, byte in enumerate(data) if byte < 128) + 1
    return sum((byte % 128) * 128**i for i, byte in enumerate(data[:size])), data[size:]


def fields(data: bytes) -> list[tuple[int, Any]]:
    """Field numbers and values of one message."""
    found = []
    while data:
        key, data = varint(data)
        field, wire = divmod(key, 8)
        if wire == 0:
            value, data = varint(data)
        elif wire == 2:
            size, data = varint(data)
            value, data = data[:size], data[size:]
        else:
            size, form = {1: (8, "<d"), 5: (4, "<f")}[wire]
            (value,), data = struct.unpack(form, data[:size]), data[size:]
        found.append((field, value))
    return found


def decoded(path: Path) -> list[tuple[float, int, dict[str, float]]]:
    """Time, step and values of each event after the version."""
    version, *rest = records(path)
    assert dict(fields(version))[3] == b"brain.Event:2"
    found = []
    for record in rest:
        event = dict(fields(record))
        step = event.get(2, 0)
        values = [dict(fields(value)) for _, value in fields(event[5])]
        assert all(set(value) == {1, 2} for value in values)
        named = {value[1].decode(): value[2] for value in values}
        found.append((event[1], step - 2**64 if step >= 2**63 else step, named))
    return found


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
def test_crc32c_gives_the_published_values(data, crc):
    assert crc32c(data) == naive_crc32c(data) == crc


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
    assert decoded(writer.path) == [(TIME, step, rounded), (-TIME, step, {})]


def test_values_that_are_not_finite_are_written(tmp_path):
    with EventWriter(tmp_path) as writer:
        writer.scalars(1, {"nan": math.nan, "inf": math.inf, "large": 1e39, "small": -1e39})
    [(_, _, values)] = decoded(writer.path)
    assert math.isnan(values.pop("nan"))
    assert values == {"inf": math.inf, "large": math.inf, "small": -math.inf}


def test_a_reader_sees_an_event_at_once(tmp_path):
    with EventWriter(tmp_path) as writer:
        assert decoded(writer.path) == []
        for step in range(3):
            writer.scalars(step, {"reward": 2.0 * step}, time=TIME)
            assert decoded(writer.path)[-1] == (TIME, step, {"reward": 2.0 * step})


def test_opening_again_makes_another_file(tmp_path):
    folder = tmp_path / "new" / "run"
    for step in range(3):
        with EventWriter(folder) as writer:
            writer.scalars(step, {"reward": 1.0})
    files = sorted(folder.iterdir())
    assert all("tfevents" in file.name for file in files)
    assert [[step for _, step, _ in decoded(file)] for file in files] == [[0], [1], [2]]
