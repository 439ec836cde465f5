"""Writes scalars to event files that TensorBoard reads, without TensorBoard.

A file is a row of TFRecords: length, checksum of the length, data, checksum of the data. The data is one Event as a
protocol buffer: wall time (field 1), step (2), file version (3), summary (5); a summary is a list of values (1), and a
value is a tag (1) and a number (2).
"""

import itertools
import math
import os
import re
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from time import time as now
from typing import IO

from becl.errors import UserError

_opened = itertools.count()


class EventWriter:
    """Appends to a new file of its own; TensorBoard merges the files of a folder."""

    def __init__(self, folder: Path, resume: tuple[str, int] | None = None):
        """With `resume`, goes on in the file of that name after so many bytes, and forgets what came later."""
        folder.mkdir(parents=True, exist_ok=True)
        if resume is not None:
            if not re.fullmatch(r"events\.out\.tfevents\.[\w.-]+", resume[0]):
                raise UserError(f"{folder}: {resume[0]!r} is no name of an events file")
            for other in folder.glob("events.out.tfevents.*"):
                if other.name != resume[0]:
                    other.unlink()
            self.path = folder / resume[0]
            self._file = self.path.open("r+b")
            cut(self._file, resume[1])
            return
        # TensorBoard looks for "tfevents" and reads in the order of names; the count tells files of one second apart.
        name = f"events.out.tfevents.{int(now()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_opened):04d}"
        self.path = folder / name
        self._file = self.path.open("xb")
        self._write(now(), _message(3, b"brain.Event:2"))

    def scalars(self, step: int, values: Mapping[str, float], time: float | None = None) -> None:
        """One event with all values; `time` in seconds since 1970, now if not given."""
        # Zero is the default and left out; a negative step is written as its two's complement of 64 bits.
        counted = _field(2, 0, _varint(step % 2**64)) if step else b""
        summary = (_message(1, tag.encode()) + _field(2, 5, _float32(value)) for tag, value in values.items())
        self._write(now() if time is None else time, counted + _message(5, b"".join(_message(1, v) for v in summary)))

    @property
    def position(self) -> tuple[str, int]:
        """Where to go on: the file's name and length."""
        return self.path.name, self._file.tell()

    def flush(self) -> None:
        """Onto the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "EventWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, time: float, fields: bytes) -> None:
        data = _field(1, 1, struct.pack("<d", time)) + fields
        length = struct.pack("<Q", len(data))
        self._file.write(length + _checksum(length) + data + _checksum(data))
        self._file.flush()  # so that a reader sees it at once


def cut(file: IO, size: int) -> None:
    """Goes back to where a file ended once, to write on from there."""
    if os.fstat(file.fileno()).st_size < size:
        raise UserError(f"{file.name} is shorter than when the last checkpoint was written")
    file.truncate(size)
    file.seek(0, os.SEEK_END)


def _message(number: int, data: bytes) -> bytes:
    """A field of any length: text, or a message within the message."""
    return _field(number, 2, _varint(len(data)) + data)


def _field(number: int, wire: int, data: bytes) -> bytes:
    """`wire` says how the data is to be read: 0 a varint, 1 eight bytes, 2 a length and as many bytes, 5 four bytes."""
    return _varint(number << 3 | wire) + data


def _varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; the eighth bit says that more follow."""
    more, low = divmod(number, 128)
    return bytes([low | 128]) + _varint(more) if more else bytes([low])


def _float32(value: float) -> bytes:
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", math.copysign(math.inf, value))


def _checksum(data: bytes) -> bytes:
    """The CRC, rotated and shifted by a constant, for data that themselves hold CRCs."""
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282_EAD8) & 0xFFFF_FFFF)


def crc32c(data: bytes) -> int:
    """Castagnoli's CRC, which is not the one in zlib."""
    crc = 0xFFFF_FFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFF_FFFF


def _remainder(byte: int) -> int:
    """Of dividing `byte` by the polynomial 0x1EDC6F41, both with their bits in reverse order."""
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F6_3B78 if byte & 1 else 0)
    return byte


_TABLE = [_remainder(byte) for byte in range(256)]
