"""Checksums of what is loaded: `SHA256SUMS` beside the files, as `sha256sum -c` reads it.

Before a file is written, its new checksum is listed beside the old one, and afterwards the old one goes. So whatever is
there is listed at every moment, also where a process is killed; and anything else is damage, or another run's. Files of
earlier versions are not listed: they are read all the same, and a line says so.
"""

import contextlib
import hashlib
import io
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path

from becl.errors import UserError, printable
from becl.runs.inside import read_bytes
from becl.runs.writing import write_bytes

SUMS = "SHA256SUMS"
GROUP = re.compile(r"(?P<seed>seed-\d+)|(zero-shot|per-skill|skills|result)-(?P<snapshot>\d+)")
"""Names, without their endings, of files that belong to a group."""
LINE = re.compile(r"([0-9a-f]{64})  ([^/\\\0]+)")
TRIES = 3  # A run may be writing at this moment.
Listed = dict[str, list[str]]
"""Checksums by name: one, or two while the file is being written."""


def list_of(path: Path) -> Path:
    """The file that lists a file's checksum: SHA256SUMS, or that of a group of files beside it.

    A seed of a maze study is such a group, and so are the tables of an evaluation: they have lists of their own,
    because several processes may write groups into one folder.
    """
    group = GROUP.fullmatch(path.stem)
    if group is None:
        return path.with_name(SUMS)
    return path.with_name(f"{group['seed'] or 'result-' + group['snapshot']}.sha256")


def read_checked(path: Path) -> bytes:
    """A file as it was written; refuses one that is damaged.

    Of a table whose last rows were cut off as they were written, what was there before.
    """
    sums = list_of(path)
    for left in reversed(range(TRIES)):
        data, listed = read_bytes(path), read_sums(sums).get(path.name, [])
        if not listed:
            _note_unlisted(path)
            return data
        if (whole := _listed_part(data, listed)) is not None:
            return whole
        if not (path.parent / "lock").exists():
            break
        time.sleep(0.1 if left else 0.0)
    raise UserError(
        f"{path} is damaged: its checksum is not the one in {sums.name}; restore it, or remove {sums} if you changed "
        "it on purpose"
    )


def read_checked_text(path: Path) -> str:
    """A file's text, in which lines end as Python's do: another program may have written the file anew."""
    return io.StringIO(read_checked(path).decode(), newline=None).read()


def write_checked(path: Path, data: bytes | str) -> None:
    """Writes a file whole or not at all, and lists its checksum."""
    data = data.encode() if isinstance(data, str) else data
    with _listing(path, digest(data), durable=True):
        write_bytes(path, data)


def write_group(files: Mapping[Path, bytes | str]) -> None:
    """Writes the files of a group and their list; the last file, which says that all are there, at the end."""
    whole = {path: data.encode() if isinstance(data, str) else data for path, data in files.items()}
    *first, last = whole
    for path in first:
        write_bytes(path, whole[path])
    write_bytes(list_of(last), _text({path.name: [digest(data)] for path, data in whole.items()}))
    write_bytes(last, whole[last])


class Growing:
    """The checksum of a table that is written row by row."""

    def __init__(self, path: Path, begun: bytes = b""):
        """`begun` is what the table holds already."""
        self._path, self._hash = path, hashlib.sha256(begun)
        _update(list_of(path), path.name, [self._hash.hexdigest()], durable=False)

    @contextlib.contextmanager
    def growing(self, data: bytes) -> Iterator[None]:
        """Lists what the table will be, while that is appended."""
        self._hash.update(data)
        with _listing(self._path, self._hash.hexdigest(), durable=False):
            yield


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def read_sums(sums: Path) -> Listed:
    """Checksums by name; none where there is no list."""
    try:
        lines = read_bytes(sums).decode().splitlines()
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "not text"
        raise UserError(f"cannot read {sums}: {why}") from None
    listed: Listed = {}
    for number, line in enumerate(lines, start=1):
        if (match := LINE.fullmatch(line)) is None:
            raise UserError(f"{sums} is damaged in line {number}; restore it, or remove it to read without checksums")
        listed.setdefault(match[2], []).append(match[1])
    return listed


def _listed_part(data: bytes, listed: list[str]) -> bytes | None:
    """The data, or the whole rows at their beginning that are listed; None where neither is."""
    if digest(data) in listed:
        return data
    if len(listed) < 2:
        return None
    hashed, best, end = hashlib.sha256(), None, 0
    for row in data.splitlines(keepends=True):
        if hashed.hexdigest() in listed:
            best = data[:end]
        hashed.update(row)
        end += len(row)
    return best


@contextlib.contextmanager
def _listing(path: Path, new: str, durable: bool) -> Iterator[None]:
    """Lists a checksum beside those there are while the file is written, and alone afterwards."""
    sums = list_of(path)
    before = read_sums(sums).get(path.name, [])
    _update(sums, path.name, [*(one for one in before if one != new), new], durable)
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            _update(sums, path.name, before, durable=False)
        raise
    _update(sums, path.name, [new], durable=False)


def _update(sums: Path, name: str, digests: list[str], durable: bool) -> None:
    listed = read_sums(sums)
    if listed.get(name, []) != digests:
        listed[name] = digests
        write_bytes(sums, _text(listed), durable)


def _text(listed: Listed) -> bytes:
    return "".join(f"{one}  {name}\n" for name, digests in sorted(listed.items()) for one in digests).encode()


# --- Files without checksums ------------------------------------------------------------------------------------------

Unlisted = dict[Path, str]
"""Runs with files that have no checksum, and the name of one of these."""
_GATHERED: ContextVar[Unlisted | None] = ContextVar("gathered", default=None)
_TOLD: set[Path] = set()


@contextlib.contextmanager
def gathering_unlisted() -> Iterator[Unlisted]:
    """Keeps what would be told of files without checksums, for who then says it."""
    token = _GATHERED.set(found := {})
    try:
        yield found
    finally:
        _GATHERED.reset(token)


def tell_unlisted(found: Unlisted) -> None:
    """Says in one line that files have no checksums, once of a run."""
    if not found:
        return
    run, name = next(iter(found.items()))
    more = f" (and {len(found) - 1} more such runs)" if len(found) > 1 else ""
    line = f"{run}: {name} has no checksum, as in earlier versions; damage to it would not be noticed{more}"
    gathered, known = _GATHERED.get(), {path.absolute() for path in found}
    if gathered is not None:
        gathered |= found
    elif not known <= _TOLD:
        _TOLD.update(known)
        print(printable(f"becl: {line}"), file=sys.stderr, flush=True)


def _note_unlisted(path: Path) -> None:
    run = next((place for place in (path.parent, path.parent.parent) if (place / "config.json").exists()), path.parent)
    if run not in (_GATHERED.get() or {}):
        tell_unlisted({run: path.name})
