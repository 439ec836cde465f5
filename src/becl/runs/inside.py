"""Folders of runs come from anybody: what lies in one is a plain file or a folder, and never leads elsewhere.

`check_inside` looks through a folder before anything in it is read or written, `inside` makes paths from names that
came from its files, and `plain` opens files: a link is not followed, a pipe or a device not waited for. How the folder
itself was reached does not matter, it may be a link.
"""

import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from becl.errors import UserError

FOREIGN = ("wandb",)
"""Folders in a run's that others write, with links of their own; we neither read nor write there."""
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # Not on Windows.


def plain(path: str | Path, flags: int) -> int:
    """Opens a plain file, as an `opener` of `open`; links, pipes and devices are an OSError."""
    try:
        handle = os.open(path, flags | _NO_FOLLOW | getattr(os, "O_CLOEXEC", 0), 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise _no_file(path) from None
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise _no_file(path)
    return handle


def _no_file(path: str | Path) -> OSError:
    if (kind := kind_of(Path(path))) == "is a folder":
        return IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    return OSError(errno.EINVAL, f"{Path(path).name} {kind}", str(path))


def open_plain(path: Path, mode: str) -> IO:
    """A plain file, to be closed by the caller."""
    return open(path, mode, opener=plain)


def read_bytes(path: Path) -> bytes:
    with open(path, "rb", opener=plain) as file:
        return file.read()


def read_text(path: Path) -> str:
    with open(path, opener=plain) as file:
        return file.read()


def inside(folder: Path, *names: str) -> Path:
    """A path below a folder; refuses names that lead out of it, and what is reached through a link in it."""
    place = folder
    for name in names:
        if not is_name(name):
            raise UserError(f"{folder}: {name!r} is no name of a file")
        place = place / name
        if place.is_symlink():
            raise UserError(f"{place} is a link, which is not followed")
    return place


def is_name(name: object) -> bool:
    """Whether a text is the name of one file, and no path."""
    return isinstance(name, str) and name not in ("", ".", "..") and not set(name) & {"/", "\\", "\0", os.sep}


def check_inside(folder: Path) -> None:
    """Raises on a folder with a link, a pipe or a device in it, at any depth; follows none."""
    waiting = [folder]
    while waiting:
        for path, is_folder in _entries(waiting.pop()):
            if is_folder:
                waiting += [path] if path.name not in FOREIGN else []
            elif kind := kind_of(path):
                raise UserError(f"{path} {kind}: becl neither reads nor writes where there is one; remove it")


def _entries(folder: Path) -> list[tuple[Path, bool]]:
    """What a folder holds but for plain files, and what of it are folders."""
    try:
        with os.scandir(folder) as entries:
            return [
                (Path(entry.path), entry.is_dir(follow_symlinks=False))
                for entry in entries
                if not entry.is_file(follow_symlinks=False)
            ]
    except FileNotFoundError:  # A run that goes on has just removed it.
        return []
    except OSError as error:
        raise UserError(f"cannot read {folder}: {error.strerror}") from None


def kind_of(path: Path) -> str:
    """What a path is that is no plain file, in words that follow its name; empty where it is gone."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return ""
    kinds = {stat.S_IFLNK: "is a link", stat.S_IFIFO: "is a pipe", stat.S_IFSOCK: "is a socket",
             stat.S_IFDIR: "is a folder", stat.S_IFREG: "is a file"}  # fmt: skip
    return kinds.get(stat.S_IFMT(mode), "is a device")


def remove_inside(folder: Path, names: Iterable[str]) -> None:
    """Removes plain files of a folder, by their names; what is none stays."""
    for name in names:
        path = folder / name
        if is_name(name) and not path.is_symlink() and path.is_file():
            path.unlink(missing_ok=True)
