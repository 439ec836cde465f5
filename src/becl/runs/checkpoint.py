"""Checkpoints: everything a run needs to go on bit for bit, in plain files that run no code when loaded.

    checkpoint/step-<n>.safetensors          arrays: networks, optimisers, statistics, keys, environments, counters
    checkpoint/replay-<from>-<to>.safetensors   rows of the replay, written once and never changed
    checkpoint/step-<n>.json                 counters, positions in logs, and the checksum of every file; written last

A checkpoint exists when its JSON does. Every file is written under another name, flushed to the disk, then renamed. The
last two are kept; a damaged one is found by its checksums, and the one before is used.
"""

import contextlib
import errno
import json
import re
import stat
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from becl.errors import UserError
from becl.runs.folder import located
from becl.runs.inside import inside, read_bytes, remove_inside
from becl.runs.lock import guard
from becl.runs.sums import digest
from becl.runs.writing import flush, write_bytes
from becl.specs import difference, upgraded

FORMAT = 1
KEPT = 2
HEADER = 1_000_000  # Bytes that names and shapes of arrays may take in a file.
PART = re.compile(r"replay-(\d+)-(\d+)\.safetensors")
OWN = re.compile(r"(step-\d+\.(json|safetensors)|replay-\d+-\d+\.safetensors)(\.part)?")
"""Files that are written here, and so may be removed."""
Arrays = Mapping[str, np.ndarray]


class Checkpoint(NamedTuple):
    step: int
    arrays: dict[str, np.ndarray]
    about: dict[str, Any]
    """Counters, as JSON."""
    parts: dict[str, dict[str, np.ndarray]]
    """Arrays of the parts, by file, in their order."""


class Damaged(Exception):
    """A checkpoint that is not what was written; says what is wrong in a few words."""


class Checkpoints:
    """The checkpoints of one run in a folder of their own."""

    def __init__(self, folder: Path, identity: dict[str, Any]):
        """`identity` is what a checkpoint must have been made with to be used: the run's configuration."""
        self.folder = inside(folder.parent, folder.name)
        self.identity = json.loads(json.dumps(identity))

    def save(
        self, step: int, arrays: Arrays, about: dict[str, Any], part: tuple[str, Arrays] | None, parts: list[str]
    ) -> None:
        """Writes a checkpoint that consists of `arrays`, `about` and the files `parts`, of which `part` is new."""
        guard(self.folder / "step")
        if not self.folder.exists():
            self.folder.mkdir()  # Without parents: a run's folder that was removed stays so.
            flush(self.folder.parent)
        name = f"step-{step}.safetensors"
        try:
            self._save(step, name, arrays, about, part, parts)
        except OSError:  # What a full disk did not take would be in the way of the next.
            with contextlib.suppress(OSError):
                remove_inside(self.folder, [name, *([part[0]] if part else [])])
            raise
        self._forget(step)

    def _save(
        self, step: int, name: str, arrays: Arrays, about: dict[str, Any], part: tuple[str, Arrays] | None,
        parts: list[str],
    ) -> None:  # fmt: skip
        sums = self._sums()
        if part is not None:
            sums[part[0]] = _write(self.folder / part[0], part[1])
        if lost := [one for one in parts if one not in sums or not (self.folder / one).exists()]:
            raise FileNotFoundError(errno.ENOENT, f"{lost[0]} is gone")
        sums[name] = _write(self.folder / name, arrays)
        record = {
            "format": FORMAT,
            "step": step,
            "identity": self.identity,
            "about": about,
            "parts": parts,
            "files": {one: sums[one] for one in [*parts, name]},
        }
        write_bytes(self.folder / f"step-{step}.json", _sealed(record))

    def steps(self) -> list[int]:
        """Steps of the checkpoints there are, the oldest first."""
        found = (re.fullmatch(r"step-(\d+)\.json", path.name) for path in self.folder.glob("step-*.json"))
        return sorted(int(match[1]) for match in found if match)

    def load(self, largest: int, say: Callable[[str], None]) -> Checkpoint | None:
        """The newest checkpoint that is whole; None where there is none. One of more than `largest` bytes is not
        looked at. Damaged ones are reported by `say`."""
        steps = self.steps()
        for place, step in enumerate(reversed(steps)):
            try:
                return self._load(step, largest)
            except Damaged as damage:
                older = steps[: len(steps) - place - 1]
                instead = f"going back to step {older[-1]:,}" if older else "beginning again"
                say(f"checkpoint of step {step:,} is damaged ({damage}); {instead}")
        return None

    def clear(self) -> None:
        """Removes all of them, for a run that is finished."""
        if not self.folder.is_dir():
            return
        remove_inside(self.folder, self._own())
        with contextlib.suppress(OSError):  # Files of others stay, and the folder with them.
            self.folder.rmdir()

    def _load(self, step: int, largest: int) -> Checkpoint:
        record = self._record(step)
        if record["format"] != FORMAT:
            raise UserError(
                f"{self.folder} was written by another version (format {record['format']}, this one reads {FORMAT}); "
                "remove it to begin again"
            )
        run = self.folder.parent
        if place := difference(located(upgraded(record["identity"]), run), located(self.identity, run)):
            raise UserError(f"{self.folder} belongs to another configuration ({place} now)")
        name = f"step-{step}.safetensors"
        if (size := sum(entry["bytes"] for entry in record["files"].values())) > largest + HEADER:
            raise Damaged(f"{size:,} bytes are more than this run has")
        parts = {part: self._read(part, record) for part in record["parts"]}
        return Checkpoint(step, self._read(name, record), record["about"], parts)

    def _record(self, step: int) -> dict[str, Any]:
        path = self.folder / f"step-{step}.json"
        try:
            if _size(path) > 100 * HEADER:
                raise Damaged(f"{path.name} is too large")
            record = json.loads(read_bytes(path))
            seal = record.pop("sha256")
            if digest(_canonical(record)) != seal or record["step"] != step:
                raise Damaged(f"{path.name}: wrong checksum")
            if record["format"] == FORMAT:
                _check(record, path.name)
        except OSError as error:
            raise Damaged(f"{path.name}: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise Damaged(f"{path.name} cannot be read") from None
        return record

    def _read(self, name: str, record: dict[str, Any]) -> dict[str, np.ndarray]:
        import safetensors.numpy

        path, entry = self.folder / name, record["files"][name]
        try:
            size = _size(path)
            if size != entry["bytes"]:
                raise Damaged(f"{name} has {size:,} bytes instead of {entry['bytes']:,}")
            data = read_bytes(path)
            if digest(data) != entry["sha256"]:
                raise Damaged(f"{name}: wrong checksum")
            return safetensors.numpy.load(data)
        except OSError as error:
            raise Damaged(f"{name}: {error.strerror}") from None
        except Damaged:
            raise
        except Exception:  # safetensors has errors of its own.
            raise Damaged(f"{name} cannot be read") from None

    def _sums(self) -> dict[str, dict[str, Any]]:
        """Checksums of the files of checkpoints there are."""
        sums: dict[str, dict[str, Any]] = {}
        for step in self.steps():
            with contextlib.suppress(Damaged):
                sums |= self._record(step)["files"]
        return sums

    def _forget(self, newest: int) -> None:
        """Removes what neither of the last checkpoints needs, and what was left half-written."""
        # Those of later steps were damaged, or the run would have gone on from them.
        kept = [step for step in self.steps() if step <= newest][-KEPT:]
        needed = {f"step-{step}.json" for step in kept}
        for step in kept:
            with contextlib.suppress(Damaged):
                needed |= self._record(step)["files"].keys()
        remove_inside(self.folder, [name for name in self._own() if name not in needed])

    def _own(self) -> list[str]:
        return [path.name for path in self.folder.iterdir() if OWN.fullmatch(path.name)]


class Saver:
    """Writes checkpoints in a thread, one at a time, so that training goes on meanwhile."""

    def __init__(self, checkpoints: Checkpoints, say: Callable[[str], None]):
        self.checkpoints, self._say = checkpoints, say
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="becl-checkpoint")
        self._under_way: tuple[int, Future] | None = None

    def submit(self, step: int, arrays: Arrays, about: dict[str, Any], part: Any, parts: list[str]) -> bool:
        """Begins to write; waits for the one before. False where that one failed, and nothing was begun."""
        fine = self.wait()
        if fine:
            self._under_way = step, self._thread.submit(self.checkpoints.save, step, arrays, about, part, parts)
        return fine

    def wait(self) -> bool:
        """Whether all that was begun is written. A full disk is reported, but is no reason to stop."""
        if self._under_way is None:
            return True
        step, future = self._under_way
        self._under_way = None
        try:
            future.result()
        except OSError as error:
            steps = self.checkpoints.steps()
            last = f"the last good one is of step {steps[-1]:,}" if steps else "there is none yet"
            self._say(
                f"checkpoint of step {step:,} could not be written ({error.strerror}); {last}; training continues"
            )
            return False
        return True

    def close(self) -> None:
        self.wait()
        self._thread.shutdown()


def _check(record: dict[str, Any], name: str) -> None:
    """Whether a record has all it should, and no more."""
    parts, files = record["parts"], record["files"]
    own = f"step-{record['step']}.safetensors"
    if not all(PART.fullmatch(part) for part in parts) or files.keys() != {*parts, own} or len(files) != len(parts) + 1:
        raise Damaged(f"{name} names files that it may not")
    sound = all(type(entry["bytes"]) is int and type(entry["sha256"]) is str for entry in files.values())
    if not sound or not isinstance(record["about"], dict) or "identity" not in record:
        raise Damaged(f"{name} cannot be read")


def _size(path: Path) -> int:
    """The size of a plain file: others, such as devices, may have no end."""
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        raise Damaged(f"{path.name} is no file")
    return found.st_size


def _write(path: Path, arrays: Arrays) -> dict[str, Any]:
    import safetensors.numpy

    data = safetensors.numpy.save({name: np.asarray(array, order="C") for name, array in arrays.items()})
    write_bytes(path, data)
    return {"sha256": digest(data), "bytes": len(data)}


def _canonical(record: dict[str, Any]) -> bytes:
    return json.dumps(record, sort_keys=True).encode()


def _sealed(record: dict[str, Any]) -> bytes:
    record = json.loads(json.dumps(record))
    return json.dumps(record | {"sha256": digest(_canonical(record))}, indent=1).encode() + b"\n"
