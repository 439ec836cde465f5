"""Reads event files without tensorboardX: a naive decoder, and the curves that TensorBoard shows of a folder."""

import struct
from pathlib import Path
from typing import Any, NamedTuple


class Event(NamedTuple):
    time: float
    step: int
    values: dict[str, float]
    begins: bool
    """Whether this marks the beginning of a session, from where older files no longer count."""


def naive_crc32c(data: bytes) -> int:
    """Bit by bit, the highest first, with the polynomial as the standard prints it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= int(f"{byte:08b}"[::-1], 2) << 24
        for _ in range(8):
            crc = (crc << 1) ^ 0x11EDC6F41 if crc & 0x80000000 else crc << 1
    return int(f"{crc ^ 0xFFFFFFFF:032b}"[::-1], 2)


def records(path: Path, cut: bool = False) -> list[bytes]:
    """The data of each record, after checking both checksums; where `cut`, the last may be there in part."""
    rest, found = path.read_bytes(), []
    while rest:
        if cut and (len(rest) < 12 or len(rest) < 16 + struct.unpack("<Q", rest[:8])[0]):
            break
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


def decoded(path: Path, cut: bool = False) -> list[Event]:
    """The events after the version."""
    version, *rest = records(path, cut)
    assert dict(fields(version))[3] == b"brain.Event:2"
    found = []
    for record in rest:
        event = dict(fields(record))
        assert event.keys() <= {1, 2, 5, 7}
        step = event.get(2, 0)
        values = [dict(fields(value)) for _, value in fields(event.get(5, b""))]
        # A value has a number, and a tag unless that is empty.
        assert all({2} <= set(value) <= {1, 2} for value in values)
        named = {value.get(1, b"").decode(): value[2] for value in values}
        begins = 7 in event and dict(fields(event[7])) == {1: 1}
        found.append(Event(event[1], step - 2**64 if step >= 2**63 else step, named, begins))
    return found


def curves(folder: Path) -> list[tuple[int, dict[str, float]]]:
    """Steps and values that TensorBoard shows of a folder.

    It reads files in the order of their names, each up to where it was cut off. Where a session begins, but for the
    first, it drops what it has of that step and later ones.
    """
    shown: list[tuple[int, dict[str, float]]] = []
    begun = False
    for path in sorted(folder.iterdir()):
        for event in decoded(path, cut=True):
            if not event.begins:
                shown.append((event.step, event.values))
            elif begun:
                shown = [(step, values) for step, values in shown if step < event.step]
            begun = begun or event.begins
    return shown
