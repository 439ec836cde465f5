"""Writing files: each whole or not at all, and on the disk before it gets its name."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from becl.runs.inside import plain
from becl.runs.lock import Lost, guard


def make_folder(path: Path) -> None:
    """Makes a folder, and those above it, and waits until they are on the disk."""
    missing = [place for place in (path, *path.parents) if not place.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for place in missing:
        flush(place.parent)


def write_text(path: Path, text: str) -> None:
    """All or nothing: a reader never sees half a file."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes, durable: bool = True) -> None:
    """All or nothing; if `durable`, also when the machine stops."""
    with whole(path, durable=durable) as part, open(part, "wb", opener=plain) as file:
        file.write(data)


@contextlib.contextmanager
def whole(path: Path, suffix: str = "", durable: bool = True) -> Iterator[Path]:
    """A place to write that becomes the file in the end, flushed to the disk before; it is gone where that fails.

    What is not `durable`, because it can be made again soon, is not waited for. The name of the place ends in `suffix`,
    for programs that know a format by it.
    """
    guard(path)
    part = path.with_name(f".{path.stem}.part{suffix}" if suffix else f"{path.name}.part")
    try:
        yield part
        if durable:
            flush(part)
        guard(path)
        part.replace(path)
    except Lost:  # What lies there may be the new owner's.
        raise
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
    if durable:
        flush(path.parent)


def flush(path: Path) -> None:
    """Waits until a file or folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
