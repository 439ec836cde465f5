"""One process a run's folder: a lease in a file, which its owner renews, and the system's lock on it where it has one.

The system frees its lock when a process ends, however it ends, but not every file system has such locks, and not every
one on a shared disk is seen by other machines. So an owner elsewhere counts as gone once it has not renewed its lease
for a while. It may only have been paused: before anything is written into a folder, `guard` looks whether the lease is
still this process's, and a process that was robbed stops there, with another's lock left alone.
"""

import contextlib
import errno
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from becl.errors import Failed, UserError
from becl.runs.inside import plain
from becl.runs.progress import say

try:
    import fcntl
except ImportError:  # Not on Windows, where the lease alone must do.
    fcntl = None

RENEWED = 3.0  # Seconds between two renewals.
LEASE = 30.0  # Seconds without one, after which an owner elsewhere is taken for dead.
SIZE = 400  # Bytes of the file, always the same, so that renewing needs no room on a full disk.
TAKEN = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


class Owner(NamedTuple):
    """Who holds a lease."""

    pid: int
    host: str
    place: str = ""
    """The machine since it was started, and the container in it: process numbers mean something only there."""
    token: str = ""
    """Nobody else's; empty in locks of earlier versions, which are not renewed."""
    beat: int = 0
    """How often it was renewed."""

    def __str__(self) -> str:
        here = self.host == socket.gethostname() and self.place in ("", _place())
        return f"process {self.pid} on {'this machine' if here else self.host}"


class Lost(Failed):
    """A folder that another process has taken over; this one writes nothing more there."""


class Lease:
    """A folder that is held by this process, or by the one that started it."""

    def __init__(self, path: Path, owner: Owner, handle: int | None = None):
        """`handle` is of the file, open, in the process that renews it."""
        self.path, self.owner, self._handle = path.absolute(), owner, handle
        self._over = threading.Event()

    def write(self) -> None:
        assert self._handle is not None
        data, done = json.dumps(self.owner._asdict()).encode().ljust(SIZE), 0
        while done < len(data):  # A disk that is nearly full takes a part, and fails only with the next.
            done += os.pwrite(self._handle, data[done:], done)

    def renew(self) -> None:
        """Says that this process is alive, while the lease is its own."""
        with contextlib.suppress(OSError):
            if self.is_held():
                self.owner = self.owner._replace(beat=self.owner.beat + 1)
                self.write()
                os.fsync(self._handle)  # type: ignore[arg-type]

    def is_held(self) -> bool:
        owner = read_owner(self.path)
        return owner is not None and owner.token == self.owner.token

    def check(self) -> None:
        """Stops a process whose folder is another's by now."""
        if self.is_held() or not self.path.parent.exists():
            return
        other = read_owner(self.path)
        how = "its lock was removed" if other is None else f"{other} has taken it over, while this process was silent"
        raise Lost(f"{self.path.parent}: {how}; nothing more is written there")

    def keep(self) -> None:
        while not self._over.wait(RENEWED):
            self.renew()

    def release(self) -> None:
        """Gives the folder back; what is another's by now stays."""
        self._over.set()
        with contextlib.suppress(OSError):
            if self.is_held():
                self.path.unlink()
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


_HELD: list[Lease] = []
"""All leases of this process."""


@contextlib.contextmanager
def locked(folder: Path, name: str = "lock") -> Iterator[Lease]:
    """Holds a folder; refuses where another process does.

    What a process left behind that has ended is taken over: at once on this machine, and once its lease has run out
    where it was on another.
    """
    try:
        lease = take(folder / name)
    except OSError as error:
        raise UserError(f"cannot write in {folder}: {error.strerror}") from None
    thread = threading.Thread(target=lease.keep, name="becl-lease", daemon=True)
    with holding([lease]):
        try:
            thread.start()
            yield lease
        finally:
            lease.release()


@contextlib.contextmanager
def holding(leases: Sequence[Lease]) -> Iterator[None]:
    """Has what is written into their folders guarded: also in workers, whose parent renews the leases."""
    _HELD.extend(leases)
    try:
        yield
    finally:
        for lease in leases:
            _HELD.remove(lease)


def held() -> list[tuple[Path, Owner]]:
    """The leases of this process, for its workers."""
    return [(lease.path, lease.owner) for lease in _HELD]


def guard(path: Path) -> None:
    """Stops a process that is about to write where it was robbed of the folder."""
    if _HELD:
        place = path.absolute()
        for lease in _HELD:
            if place.is_relative_to(lease.path.parent):
                lease.check()


def take(path: Path) -> Lease:
    """The lease of a folder, whose file is at a path."""
    handle = plain(path, os.O_RDWR | os.O_CREAT)
    try:
        alone = _system_lock(handle)
        owner = _owner(handle)
        if alone is False:
            raise UserError(f"{path.parent} is in use{f' by {owner}' if owner else ' on this machine'}")
        if not path.exists() or os.fstat(handle).st_ino != path.stat().st_ino:
            raise UserError(f"{path.parent} was in use until now; try again")
        robs = False
        if owner is not None and not _is_over(owner, alone):
            robs = True
            watch(path, owner)
            handle, old = _fresh(path), handle
            os.close(old)
        mine = Owner(os.getpid(), socket.gethostname(), _place(), secrets.token_hex(8))
        lease = Lease(path, mine, handle)
        os.ftruncate(handle, 0)
        lease.write()
        if alone is None:
            say(f"{path.parent}: this file system has no locks; the lease in {path.name} alone keeps others out")
        if robs or alone is None:
            _settle(lease)
        return lease
    except BaseException:
        os.close(handle)
        raise


def watch(path: Path, owner: Owner) -> None:
    """Waits until the lease of an owner elsewhere has run out; refuses where it is renewed."""
    folder = path.parent
    if not owner.token:  # Of an earlier version, which renews nothing.
        raise UserError(f"{folder} is in use by {owner}; if that has ended, remove {path}")
    if LEASE:
        say(f"{folder} was in use by {owner}; waiting up to {LEASE:g} s for a sign of life")
    began = time.monotonic()
    while time.monotonic() - began < LEASE:
        time.sleep(0.5)
        now = read_owner(path)
        if now is None:
            raise UserError(f"{folder} was in use until now; try again")
        if now != owner:
            raise UserError(f"{folder} is in use by {now}")


def read_owner(path: Path) -> Owner | None:
    """Who holds a lease, as the disk has it now; None where nobody does."""
    try:
        handle = plain(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        return _owner(handle)
    finally:
        os.close(handle)


def forget_remote(path: Path) -> None:
    """Removes a lock that another machine left, for those who know that its process has ended."""
    with contextlib.suppress(OSError):
        owner = read_owner(path)
        if owner is not None and owner.host != socket.gethostname():
            path.unlink()


def _system_lock(handle: int) -> bool | None:
    """Whether the system gives its lock on a file to this process; None where the file system has none."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in TAKEN else None
    return True


def _is_over(owner: Owner, alone: bool | None) -> bool:
    """Whether the process of an owner on this machine has ended; of one elsewhere this is not known."""
    if owner.place and owner.place != _place():
        return False
    if owner.host != socket.gethostname():
        return False
    if alone:
        return True
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError, ValueError):
        return False
    return False


def _fresh(path: Path) -> int:
    """A new file in place of another's, whose owner may still write into the old one."""
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    handle = plain(part, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    _system_lock(handle)
    part.replace(path)
    return handle


def _settle(lease: Lease) -> None:
    """Without a system's lock, two may have taken the folder in the same moment: the last to write has it."""
    time.sleep(0.2)
    if not lease.is_held():
        raise UserError(f"{lease.path.parent} is in use by {read_owner(lease.path) or 'another process'}")


def _place() -> str:
    """This machine since it was started, and the container."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _owner(handle: int) -> Owner | None:
    """Who a lock names; None where it is empty or unreadable."""
    try:
        said = json.loads(os.pread(handle, 1000, 0))
        return Owner(
            int(said["pid"]), str(said["host"]), str(said.get("place", "")), str(said.get("token", "")),
            int(said.get("beat", 0)),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def seeds_lock(seeds: Sequence[int]) -> str:
    """The lock of some seeds of a maze study, whose other seeds may be trained elsewhere."""
    return f"lock-seeds-{'-'.join(map(str, seeds))}"
