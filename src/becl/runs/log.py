"""What a run of the off-policy loop writes while it goes on: rows of metrics.csv and TensorBoard events."""

import csv
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from becl.errors import UserError
from becl.measure.coverage import Coverage
from becl.objectives.protocol import Metrics
from becl.runs.events import FILES, EventWriter
from becl.runs.folder import folder_name, six_digits, to_csv
from becl.runs.inside import inside, open_plain, read_bytes, remove_inside
from becl.runs.lock import guard
from becl.runs.sums import Growing, read_checked_text, write_checked


class Log:
    """Means of metrics over intervals, one row per lane. Waits for the device only when it writes."""

    def __init__(
        self,
        out: Path,
        lanes: Sequence[dict[str, Any]],
        envs: int,
        every: int,
        coverage: Coverage | None = None,
        resume: tuple[dict[str, np.ndarray], dict[str, Any]] | None = None,
        say: Callable[[str], None] = lambda line: None,
    ):
        """`lanes` say what tells a row from the others of its step, for example {"seed": 3}. With `resume`, what
        `get_state` gave, rows written later are cut off, and what was removed is written again; `say` is told."""
        self.note = ""
        self.rows: list[dict[str, Any]] = []
        """Written last."""
        self._lanes, self._every = lanes, every
        self._coverage = coverage
        self._sums: dict[str, jax.Array] | None = None
        self._count = 0
        self._returns = np.zeros((len(lanes), envs))
        self._ended: list[list[float]] = [[] for _ in lanes]
        self._next = every
        self._time = time.perf_counter()
        self._step = 0
        self._columns: list[str] = []
        folders = [inside(out, "tensorboard", lane_name(lane)) for lane in lanes]
        if resume is None:
            self._open(out / "metrics.csv", b"")
            for folder in folders:  # Of a run that left no checkpoint.
                remove_inside(folder, [path.name for path in folder.glob(FILES)])
            self._events = [EventWriter(folder) for folder in folders]
        else:
            arrays, about = resume
            self._open(out / "metrics.csv", table_of(out / "metrics.csv", arrays, about["position"], say))
            sums = {
                name.removeprefix("sums."): jnp.asarray(a) for name, a in arrays.items() if name.startswith("sums.")
            }
            self._sums = sums or None
            self._returns[:] = arrays["returns"]
            if coverage is not None:
                coverage.visited[:], coverage.visited_recently[:] = arrays["visited"], arrays["visited_recently"]
            self.note, self._count, self._columns = str(about["note"]), int(about["count"]), list(about["columns"])
            self._ended = [list(map(float, ended)) for ended, _ in zip(about["ended"], lanes, strict=True)]
            self._next, self._step = int(about["next"]), int(about["step"])
            self._time -= float(about["since"])
            gone = [not any(folder.glob(FILES)) for folder in folders]
            self._events = [EventWriter(folder, purge_step=self._step + 1) for folder in folders]
            if any(gone):
                say("tensorboard/ was removed, and is written again from metrics.csv")
                self._retell([events if lost else None for events, lost in zip(self._events, gone, strict=True)])

    def _open(self, path: Path, table: bytes) -> None:
        """Goes on with the table from what it holds."""
        write_checked(path, table)
        self._csv, self._table, self._growing = open_plain(path, "a"), bytearray(table), Growing(path, table)

    def _retell(self, events: Sequence[EventWriter | None]) -> None:
        """Tells TensorBoard what the table holds of some lanes."""
        for row in csv.DictReader(self._table.decode().splitlines()):
            for lane, writer in zip(self._lanes, events, strict=True):
                if writer is not None and all(row[name] == str(value) for name, value in lane.items()):
                    values = {name: text for name, text in row.items() if name != "step" and name not in lane}
                    writer.scalars(int(row["step"]), {name: float(text or "nan") for name, text in values.items()})

    def get_state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Arrays and JSON values: all that the next rows depend on, and where the table ends, flushed to the disk."""
        os.fsync(self._csv.fileno())
        for events in self._events:
            events.flush()
        arrays = {f"sums.{name}": np.array(value) for name, value in (self._sums or {}).items()}
        arrays["returns"] = self._returns.copy()
        arrays["table"] = np.frombuffer(bytes(self._table), np.uint8)
        if self._coverage is not None:
            arrays |= {
                "visited": self._coverage.visited.copy(),
                "visited_recently": self._coverage.visited_recently.copy(),
            }
        return arrays, {
            "position": len(self._table),
            "note": self.note,
            "count": self._count,
            "ended": [list(map(float, ended)) for ended in self._ended],
            "next": self._next,
            "step": self._step,
            "columns": self._columns,
            "since": time.perf_counter() - self._time,
        }

    def add(self, metrics: dict[str, jax.Array] | None, outcome: Any) -> None:
        if metrics is not None:
            self._sums = metrics if self._sums is None else _add(self._sums, metrics)
            self._count += 1
        if self._coverage is not None:
            self._coverage.add(outcome.next_obs)
            if outcome.truncated.any():
                self._coverage.add(outcome.obs)  # Starts of episodes count too.
        self._returns += outcome.reward.reshape(self._returns.shape)
        for lane, env in np.argwhere(outcome.truncated.reshape(self._returns.shape)):
            self._ended[lane].append(self._returns[lane, env])
            self._returns[lane, env] = 0.0

    def due(self, step: int) -> bool:
        return step >= self._next

    def write(self, step: int, diagnose: Callable[[], Metrics] = dict) -> list[int]:
        """A row of every lane, with what `diagnose` says of its networks; the numbers of those whose metrics are no
        numbers."""
        os.stat(self._csv.name)  # One that was removed could still be written to.
        guard(Path(self._csv.name))
        means = {name: np.asarray(value) / self._count for name, value in (self._sums or {}).items()}
        # Of networks that have learned something; and only where the run has these columns (it may be an older one).
        wanted = means and (not self._columns or "saturation" in self._columns)
        diagnosis = {name: np.asarray(value) for name, value in diagnose().items()} if wanted else {}
        now = time.perf_counter()
        rate = (step - self._step) * len(self._lanes) / (now - self._time)
        visited = self._coverage.columns() if self._coverage is not None else {}
        rows = []
        for i, lane in enumerate(self._lanes):
            row = {"step": step, **lane, "steps_per_second": rate}
            row |= {name: value[i] for name, value in visited.items()}
            row["return"] = float(np.mean(self._ended[i])) if self._ended[i] else float("nan")
            rows.append(row | {name: float(value[i]) for name, value in (means | diagnosis).items()})
        skipped = {"step", *(name for lane in self._lanes for name in lane)}
        for row, events in zip(rows, self._events, strict=True):
            events.scalars(step, {name: float(value) for name, value in row.items() if name not in skipped})
        if means:
            # Before the first update there are no losses, and a table has one set of columns.
            text = to_csv([six_digits(row) for row in rows], header=not self._columns)
            self._columns = list(rows[0])
            with self._growing.growing(text.encode()):
                self._csv.write(text)
                self._csv.flush()
            self._table += text.encode()
            self.rows = rows
            losses = ", ".join(f"{name} {value.mean():.3g}" for name, value in means.items() if name.endswith("loss"))
            self.note = f"reward {means['reward'].mean():.3g}, {losses}"
        if self._coverage is not None:
            self._coverage.forget()
        self._sums, self._count, self._step, self._time = None, 0, step, now
        self._ended = [[] for _ in self._lanes]
        self._next = (step // self._every + 1) * self._every
        return [i for i in range(len(self._lanes)) if not all(np.isfinite(value[i]) for value in means.values())]

    def close(self) -> None:
        self._csv.close()
        for events in self._events:
            events.close()


def table_of(path: Path, arrays: Mapping[str, np.ndarray], size: int, say: Callable[[str], None]) -> bytes:
    """The table as it was at a checkpoint, which has it; those of earlier versions only know its `size`."""
    there = read_bytes(path) if path.exists() else None
    if "table" not in arrays:
        if there is None or len(there) < size:
            raise UserError(f"{path} is shorter than when the last checkpoint was written")
        return there[:size]
    table = arrays["table"].tobytes()
    if len(table) != size:
        raise UserError(f"{path.name} had {size} bytes when the last checkpoint was written, which has {len(table)}")
    if there is None or not there.startswith(table):
        say(f"{path.name} was {'removed' if there is None else 'changed'}, and is written again from the checkpoint")
    return table


def log_after(
    out: Path, step: int, lanes: Sequence[dict[str, Any]], envs: int, every: int, coverage: Coverage | None
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """What `Log` goes on from after a run that has left its rows up to a step, and nothing else."""
    arrays = {"returns": np.zeros((len(lanes), envs))}
    if coverage is not None:
        arrays |= {"visited": coverage.visited.copy(), "visited_recently": coverage.visited_recently.copy()}
    try:
        header, *rows = read_checked_text(out / "metrics.csv").splitlines(keepends=True)
        kept = [row for row in rows if int(row.partition(",")[0]) <= step]
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"cannot read {out / 'metrics.csv'}: {error.strerror}") from None
    except ValueError:
        raise UserError(f"{out / 'metrics.csv'} is damaged") from None
    table = "".join([header, *kept]).encode()
    return arrays | {"table": np.frombuffer(table, np.uint8)}, {
        "position": len(table),
        "note": "",
        "count": 0,
        "ended": [[] for _ in lanes],
        "next": (step // every + 1) * every,
        "step": step,
        "columns": header.strip().split(","),
        "since": 0.0,
    }


def lane_name(lane: dict[str, Any]) -> str:
    """A lane as a folder's name: walker_run-seed-3."""
    words = (str(value) if name == "task" else f"{name}-{value}" for name, value in lane.items() if value != "")
    return folder_name(*words)


@jax.jit
def _add(sums: dict[str, jax.Array], new: dict[str, jax.Array]) -> dict[str, jax.Array]:
    return jax.tree.map(jnp.add, sums, new)


def readable(value: float) -> str:
    """A return with as many digits as say something: 812, 14.6, -1.31."""
    return f"{value:.{0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2}f}"
