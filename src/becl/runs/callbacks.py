"""What a run tells others while it goes on: for loggers, dashboards and early stopping."""

import contextlib
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from becl.errors import UserError
from becl.invocation import to_install

Row = dict[str, Any]


class Callback:
    """Override what you need; everything happens in the thread of the run, which waits.

    A run that is resumed begins with `on_start` again, and rows after the last checkpoint may come twice.
    """

    def on_start(self, folder: Path, config: dict[str, Any]) -> None:
        """Before the first step. `config` is what config.json holds."""

    def on_log(self, step: int, rows: Sequence[Row]) -> bool | None:
        """New rows of metrics.csv, one per seed (finetuning: one per task and seed). True stops the run, as Ctrl-C
        does: it can be resumed."""

    def on_score(self, step: int, rows: Sequence[Row]) -> None:
        """Finetuning: new rows of scores.csv."""

    def on_final(self, step: int, rows: Sequence[Row]) -> None:
        """Finetuning: the rows of final.csv, each task's and seed's score over many episodes."""

    def on_end(self, finished: bool) -> None:
        """After the last step, or where the run was stopped or failed."""


class Wandb(Callback):
    """Logs to Weights & Biases: one run of theirs a folder, all seeds in it. Needs the extra `wandb`."""

    def __init__(self, project: str):
        try:
            import wandb  # type: ignore[import-not-found]
        except ImportError:
            raise UserError(f"--wandb: Weights & Biases is not installed; {to_install('wandb')}") from None
        self.project, self._wandb, self._run = project, wandb, None

    def on_start(self, folder: Path, config: dict[str, Any]) -> None:
        # The same folder goes on in the same run.
        name = sha256(str(folder.resolve()).encode()).hexdigest()[:12]
        self._run = self._wandb.init(
            project=self.project, name=folder.name, id=name, resume="allow", config=config, dir=str(folder)
        )

    def on_log(self, step: int, rows: Sequence[Row]) -> None:
        self._log(step, rows)

    def on_score(self, step: int, rows: Sequence[Row]) -> None:
        self._log(step, [{f"score/{k}" if k in ("return", "stderr") else k: v for k, v in row.items()} for row in rows])

    def on_final(self, step: int, rows: Sequence[Row]) -> None:
        self._log(step, [{f"final/{k}" if k in ("return", "stderr") else k: v for k, v in row.items()} for row in rows])

    def on_end(self, finished: bool) -> None:
        if self._run is not None:
            self._run.finish(exit_code=0 if finished else 1)

    def _log(self, step: int, rows: Sequence[Row]) -> None:
        assert self._run is not None
        values: Row = {"environment_step": step}
        for row in rows:
            lane = {name: row[name] for name in ("task", "seed", "skill") if row.get(name, "") != ""}
            prefix = "-".join(str(value) if name == "task" else f"{name}-{value}" for name, value in lane.items())
            values |= {
                f"{prefix}/{name}": value
                for name, value in row.items()
                if name not in (*lane, "step") and isinstance(value, int | float) and value == value
            }
        # Evaluations come in later than the step they are of, which their own counter would refuse.
        self._run.log(values)


class Listeners:
    """The callbacks of a run, told of what is new."""

    def __init__(self, callbacks: Sequence[Callback]):
        self.finished = False
        self._callbacks, self._rows = callbacks, None

    def log(self, step: int, log: Any) -> bool:
        """Tells of rows that are new; True where somebody wants the run to stop."""
        if log.rows is self._rows:
            return False
        self._rows = log.rows
        # All are asked, also after the first that wants to stop.
        return any([callback.on_log(step, log.rows) for callback in self._callbacks if log.rows])

    def score(self, step: int, rows: Sequence[Row]) -> None:
        for callback in self._callbacks:
            callback.on_score(step, rows)

    def final(self, step: int, rows: Sequence[Row]) -> None:
        for callback in self._callbacks:
            callback.on_final(step, rows)


@contextlib.contextmanager
def listening(callbacks: Sequence[Callback], folder: Path, config: dict[str, Any]) -> Iterator[Listeners]:
    """Tells of the beginning, and of the end whatever it is."""
    listeners = Listeners(callbacks)
    for callback in callbacks:
        callback.on_start(folder, config)
    try:
        yield listeners
    finally:
        for callback in callbacks:
            callback.on_end(listeners.finished)
