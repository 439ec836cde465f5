"""One process a run's folder."""

import contextlib
import json
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

from becl.errors import UserError
from becl.runs.inside import plain

try:
    import fcntl
except ImportError:  # Not on Windows, where the file alone must do.
    fcntl = None


@contextlib.contextmanager
def locked(folder: Path, name: str = "lock") -> Iterator[None]:
    """Holds the folder; refuses where another process does.

    The file names its owner, and the system frees it when that process ends, however it ends. A lock that was left
    behind on this machine is taken over; of one from another machine nothing can be known.
    """
    path = folder / name
    try:
        handle = plain(path, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise UserError(f"cannot write in {folder}: {error.strerror}") from None
    try:
        owner = _owner(handle)
        here = socket.gethostname()
        if owner is not None and owner[1] != here:
            raise UserError(f"{folder} is in use by process {owner[0]} on {owner[1]}; if that has ended, remove {path}")
        try:
            if fcntl is not None:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            who = f" by process {owner[0]}" if owner is not None else ""
            raise UserError(f"{folder} is in use{who} on this machine") from None
        if not path.exists() or os.fstat(handle).st_ino != path.stat().st_ino:
            raise UserError(f"{folder} was in use until now; try again")
        try:
            try:
                os.ftruncate(handle, 0)
                os.pwrite(handle, json.dumps({"pid": os.getpid(), "host": here}).encode(), 0)
            except OSError as error:
                raise UserError(f"cannot write in {folder}: {error.strerror}") from None
            yield
        finally:
            with contextlib.suppress(OSError):
                path.unlink()
    finally:
        os.close(handle)


def forget_remote(path: Path) -> None:
    """Removes a lock that another machine left, for those who know that its process has ended."""
    with contextlib.suppress(OSError):
        handle = plain(path, os.O_RDONLY)
        try:
            owner = _owner(handle)
        finally:
            os.close(handle)
        if owner is not None and owner[1] != socket.gethostname():
            path.unlink()


def _owner(handle: int) -> tuple[int, str] | None:
    """Process and machine that a lock names; None where it is empty or unreadable."""
    try:
        said = json.loads(os.pread(handle, 1000, 0))
        return int(said["pid"]), str(said["host"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def seeds_lock(seeds: Sequence[int]) -> str:
    """The lock of some seeds of a maze study, whose other seeds may be trained elsewhere."""
    return f"lock-seeds-{'-'.join(map(str, seeds))}"
