"""Checkpoints of the off-policy loop: how a run is put into one and taken out of it."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from becl.errors import UserError
from becl.learning.offpolicy import OffPolicy, Outcome
from becl.learning.programs import programs, usable_devices
from becl.learning.protocols import Restorable
from becl.learning.replay import Experience
from becl.learning.training import Loop
from becl.runs.arrays import is_key, named_arrays, place_arrays
from becl.runs.checkpoint import PART, Checkpoint, Checkpoints, Saver
from becl.runs.log import Log


class NotFinite(Exception):
    """A state with numbers that are none: which quantity, and of which seeds."""

    def __init__(self, name: str, seeds: list[int]):
        super().__init__(name)
        self.name, self.seeds = name, seeds


@contextlib.contextmanager
def fitting(source: Path) -> Iterator[None]:
    """Raises on a checkpoint whose checksums are right but whose contents are another run's."""
    try:
        yield
    except UserError:
        raise
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError):
        raise UserError(f"{source} does not fit this run; remove it to begin again") from None


def grouped(arrays: dict[str, np.ndarray], names: Sequence[str]) -> dict[str, dict[str, np.ndarray]]:
    """Arrays by the first word of their names."""
    groups: dict[str, dict[str, np.ndarray]] = {name: {} for name in names}
    for name, array in arrays.items():
        group, _, rest = name.partition(".")
        groups.setdefault(group, {})[rest] = array
    return groups


class Restored(NamedTuple):
    step: int
    """Which the checkpoint says it is of."""
    loop: Loop
    log: tuple[dict[str, np.ndarray], dict[str, Any]]
    """For `Log`."""
    extra: dict[str, np.ndarray]
    about: dict[str, Any]
    """What the caller added."""


class Recorder:
    """Checkpoints of one run: saves them beside the training, and finds the last."""

    def __init__(
        self,
        run: OffPolicy,
        keys: jax.Array,
        environments: Restorable,
        folder: Path,
        identity: dict[str, Any],
        say: Callable[[str], None],
    ):
        self._run, self._keys, self._environments, self._say = run, keys, environments, say
        self._checkpoints = Checkpoints(folder, identity)
        self._saver = Saver(self._checkpoints, say)
        self._parts: list[str] = []
        self._rows = 0
        """Rows of the replay that are on the disk."""
        self._begun: tuple[list[str], int] | None = None
        """Parts and rows once the checkpoint being written is."""

    def find(self) -> Restored | None:
        """The run where it was, and the environments put there; None where it begins."""
        shapes = self._shapes()
        replay = shapes["state"].replay.steps
        largest = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves((_bare(shapes), replay)))
        found = self._checkpoints.load(2 * largest + 100_000_000, self._say)
        if found is None:
            return None
        with fitting(self._checkpoints.folder):
            return self._restore(found, shapes)

    def _restore(self, found: Checkpoint, shapes: dict[str, Any]) -> Restored:
        groups = grouped(found.arrays, ("loop", "envs", "log", "extra"))
        folder = self._checkpoints.folder
        loop = place_arrays(groups["loop"], _bare(shapes), folder)
        obs = self._environments.reset()
        self._environments.set_state(place_arrays(groups["envs"], self._environments.get_state(), folder))
        if not getattr(self._environments, "resumable", True):
            # What cannot be put where it was begins new episodes; the old ones are cut off.
            obs = self._environments.restart()  # type: ignore[attr-defined]
            loop |= {"obs": obs.reshape(loop["obs"].shape), "began": np.ones_like(loop["began"])}
            loop["pending"] = loop["pending"]._replace(last=np.ones_like(loop["began"]))
        written = int(loop["state"].replay.written[0])
        steps = fill_replay(shapes["state"].replay.steps, found.parts, written, folder)
        state = loop["state"]._replace(replay=loop["state"].replay._replace(steps=steps))
        self._parts, self._rows = list(found.parts), written
        resumed = Loop(found.about["number"], state, loop["choice"], loop["obs"], loop["began"], loop["pending"])
        about = found.about
        return Restored(found.step, resumed, (groups["log"], about["log"]), groups["extra"], about["extra"])

    def save(self, step: int, loop: Loop, log: Log, extra: dict[str, np.ndarray], about: dict[str, Any]) -> None:
        """Begins to write a checkpoint; returns as soon as the state has been copied."""
        self._settle()
        tree = {"loop": _bare(loop._asdict() | {"number": None}), "envs": self._environments.get_state()}
        tree = jax.tree.map(lambda leaf: jax.random.key_data(leaf) if is_key(leaf) else leaf, tree)
        arrays = {name: _copy(array) for name, array in named_arrays(jax.device_get(tree)).items()}
        check_finite(arrays)
        logged, positions = log.get_state()
        arrays |= {f"log.{name}": array for name, array in logged.items()}
        arrays |= {f"extra.{name}": array for name, array in extra.items()}
        written = int(np.asarray(loop.state.replay.written)[0])
        rows = loop.state.replay.steps.last.shape[1]
        parts = [name for name in self._parts if int(PART.fullmatch(name)[2]) > written - rows]  # type: ignore[index]
        part = None
        if written > self._rows:
            first = max(self._rows, written - rows)
            name = f"replay-{first}-{written}.safetensors"
            places = jnp.arange(first, written) % rows
            steps = jax.device_get(jax.tree.map(lambda field: jnp.take(field, places, 1), loop.state.replay.steps))
            part = name, steps._asdict()
            parts.append(name)
        if self._saver.submit(
            step, arrays, {"number": loop.number, "log": positions, "extra": about}, part, list(parts)
        ):
            self._begun = parts, written

    def _settle(self) -> None:
        """Waits for the checkpoint under way; the rows of one that failed are written again."""
        if not self._saver.wait():
            if not all((self._checkpoints.folder / part).exists() for part in self._parts):
                self._parts, self._rows = [], 0
        elif self._begun is not None:
            self._parts, self._rows = self._begun
        self._begun = None

    def finish(self) -> None:
        """The run is over: nothing needs to be kept."""
        self._settle()
        self._checkpoints.clear()

    def close(self) -> None:
        self._saver.close()

    def _shapes(self) -> dict[str, Any]:
        """The shapes of a loop's arrays."""
        run, seeds = self._run, len(self._keys)
        state, choice = jax.eval_shape(programs(run, usable_devices(seeds)).init, self._keys)
        observed = np.zeros((seeds, run.envs, *run.obs.shape), run.obs.dtype)
        number, flag = np.zeros((seeds, run.envs), np.float32), np.zeros((seeds, run.envs), bool)
        pending = Outcome(observed, observed, number, flag, flag)
        return {"state": state, "choice": choice, "obs": observed, "began": flag, "pending": pending}


def _bare(loop: dict[str, Any]) -> dict[str, Any]:
    """Without the steps in the replay, which are kept apart."""
    state = loop["state"]
    return loop | {"state": state._replace(replay=state.replay._replace(steps=None))}


def _copy(array: np.ndarray) -> np.ndarray:
    """On a CPU an array may be a view of memory that the next step writes to."""
    return np.array(array) if jax.default_backend() == "cpu" else array


def check_finite(arrays: dict[str, np.ndarray]) -> None:
    for name, array in arrays.items():
        if name.startswith("loop.") and array.dtype.kind == "f" and not np.isfinite(array).all():
            rows = ~np.isfinite(array).reshape(len(array), -1).all(1)
            raise NotFinite(name.removeprefix("loop.").removeprefix("state."), np.flatnonzero(rows).tolist())


def fill_replay(like: Experience, parts: dict[str, dict[str, np.ndarray]], written: int, source: Path) -> Experience:
    """The replay's steps from its parts; rows that are in none were never written or are overwritten."""
    steps = {name: np.zeros(leaf.shape, leaf.dtype) for name, leaf in like._asdict().items()}
    rows = like.last.shape[1]
    missing = set(range(max(written - rows, 0), written))
    for part, arrays in parts.items():
        first, end = (int(number) for number in PART.fullmatch(part).groups())  # type: ignore[union-attr]
        use = np.arange(max(first, written - rows), min(end, written))
        for name, kept in steps.items():
            shape = (kept.shape[0], end - first, *kept.shape[2:])
            if name not in arrays or arrays[name].shape != shape or arrays[name].dtype != kept.dtype:
                raise UserError(f"{source / part} does not fit this run's replay ({name})")
            kept[:, use % rows] = arrays[name][:, use - first]
        missing -= set(use.tolist())
    if missing:
        raise UserError(f"{source}: rows {min(missing)} to {max(missing)} of the replay are missing")
    return Experience(**{name: jnp.asarray(array) for name, array in steps.items()})
