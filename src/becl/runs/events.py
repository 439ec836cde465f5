"""Event files for TensorBoard, written by tensorboardX's RecordWriter.

A run that goes on begins a new file in the same folder. The file starts with the mark that SummaryWriter leaves for its
`purge_step`: TensorBoard then drops what older files hold for that step and later ones, so no step shows twice.

SummaryWriter itself writes from a thread that its `flush` does not wait for, so a run killed just after a checkpoint
could lose rows from before it. RecordWriter writes at once.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from time import time as now
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensorboardX import RecordWriter

FILES = "events.out.tfevents.*"


class EventWriter:
    """Writes scalars to a new file of a folder. A reader sees each event as soon as it is written."""

    def __init__(self, folder: Path, purge_step: int | None = None):
        """With `purge_step`, readers drop what older files of the folder hold for this step and later ones."""
        # Not at the top: tensorboardX imports torch where it is installed, which takes seconds.
        from tensorboardX.proto.event_pb2 import SessionLog

        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / next_name(folder)
        self._records = open_records(self.path)
        self._write(now(), file_version="brain.Event:2")
        # Twice: TensorBoard takes the first mark that it finds in a folder for the beginning of the run.
        for _ in range(0 if purge_step is None else 2):
            self._write(now(), step=purge_step, session_log=SessionLog(status=SessionLog.START))

    def scalars(self, step: int, values: Mapping[str, float], time: float | None = None) -> None:
        """Writes one event with all values; `time` in seconds since 1970, by default now."""
        from tensorboardX.proto.summary_pb2 import Summary

        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
        self._write(now() if time is None else time, step=step, summary=summary)

    def flush(self) -> None:
        """Waits until all events are on the disk."""
        self._records.flush()

    def close(self) -> None:
        self._records.close()

    def __enter__(self) -> "EventWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, time: float, **fields: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event

        self._records.write(Event(wall_time=time, **fields).SerializeToString())


def next_name(folder: Path) -> str:
    """The name of the folder's next file. TensorBoard reads files in the order of their names; clocks may disagree."""
    stamps = [re.match(r"events\.out\.tfevents\.(\d{10})\.", path.name) for path in folder.glob(FILES)]
    second = max([int(now()), *(int(stamp[1]) + 1 for stamp in stamps if stamp)])
    return f"events.out.tfevents.{second:010d}.becl"


class Unbuffered:
    """How tensorboardX opens event files of ours. Its own are buffered, and flushing those waits for the disk."""

    SCHEME = "becl"

    @classmethod
    def open(cls, path: str) -> IO[bytes]:
        return open(path.removeprefix(f"{cls.SCHEME}:"), "xb", buffering=0)


def open_records(path: Path) -> "RecordWriter":
    """Opens a new file of records."""
    from tensorboardX import RecordWriter
    from tensorboardX.record_writer import register_writer_factory

    register_writer_factory(Unbuffered.SCHEME, Unbuffered)
    return RecordWriter(f"{Unbuffered.SCHEME}:{path}")
