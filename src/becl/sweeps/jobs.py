"""Runs one job of a sweep. What others can know about it is in files in the sweep's folder:

    jobs/NAME/log.txt          what the command printed, in all attempts
    jobs/NAME/status.json      how far it is: renewed every two seconds while it runs
    jobs/NAME/attempts.jsonl   one line per attempt: how long it took, how it ended, and why

Imports nothing heavy: a job's environment must be set before JAX is loaded.
"""

import contextlib
import json
import os
import shlex
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from becl import plugins
from becl.errors import UserError
from becl.runs.inside import plain, read_bytes, read_text
from becl.runs.lock import forget_remote, locked
from becl.runs.progress import Progress, watching
from becl.terminal import Output

BEAT = 2.0  # Seconds between two renewals of the status.
SILENT = 15.0  # Seconds after which a process that does not renew its status is taken for dead.
PATIENCE = 120.0  # Seconds that a job waits for the process that ran it before.
LOST = -1  # The code of a job whose process is gone.


class Order(NamedTuple):
    """All that a process needs to know to run a job."""

    name: str
    command: str
    options: Any
    """The options of the command."""
    words: list[str]
    """The command as one would type it."""
    execute: Callable[[str, Any, Sequence[str]], int]
    """Runs a command with its options and these words; returns the exit code."""
    plugins: list[str]
    out: str
    """The sweep's folder."""
    home: str
    """The working directory, to which the sweep's folder is relative."""
    locks: list[str]
    """Lock files of the run itself."""
    environment: dict[str, str]
    """Environment variables to set, unless they are set already."""


class Ended(NamedTuple):
    code: int
    why: str = ""


def job_folder(out: Path, name: str) -> Path:
    return out / "jobs" / name.replace("/", "-")


def run_job(order: Order) -> Ended:
    """Runs a job's command in this process."""
    for name, value in order.environment.items():
        os.environ.setdefault(name, value)
    try:
        if order.home != os.getcwd():
            os.chdir(order.home)
    except OSError as error:
        where = f"{order.home} on {socket.gethostname()}: {error.strerror}"
        return Ended(1, f"{where}; all machines of a sweep must see its folder")

    folder, began = job_folder(Path(order.out), order.name), time.time()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with owned(folder), open(folder / "log.txt", "a", 1, "utf-8", opener=plain) as log:
            for path in order.locks:
                forget_remote(Path(path))
            ended = run_command(order, folder, Output(log))
            note_attempt(folder, began, ended)
            return ended
    except UserError as error:
        ended = Ended(1, str(error))
    except OSError as error:
        ended = Ended(1, f"cannot write in {folder}: {error.strerror}")
    note_attempt(folder, began, ended)
    return ended


def run_command(order: Order, folder: Path, log: Any) -> Ended:
    """Runs the command and renews its status meanwhile; output goes to the log while there is room."""
    where = f"{socket.gethostname()}, process {os.getpid()}"
    print(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')}, {where}: {shlex.join(['becl', *order.words])}", file=log)
    with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log), heartbeat(folder):
        try:
            plugins.load_all(order.plugins)
            code = order.execute(order.command, order.options, order.words)
        except Exception:
            traceback.print_exc(file=log)
            code = 1
    return Ended(code, last_line(folder / "log.txt") if code else "")


def last_line(path: Path) -> str:
    """The last line that a command printed, which says why it failed."""
    with contextlib.suppress(OSError):
        lines = [line.strip() for line in read_bytes(path).decode(errors="replace").splitlines() if line.strip()]
        return lines[-1].removeprefix("becl: ").removeprefix("failed: ") if lines else ""
    return ""


@contextlib.contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Locks a job's folder; waits for a process that still holds it, but not for one that is dead."""
    began = time.monotonic()
    changed, beat = began, None
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(locked(folder))
                break
            except UserError:
                now = time.monotonic()
                if beat != (beat := modified(folder / "status.json")):
                    changed = now
                if now - changed > SILENT:
                    forget_remote(folder / "lock")
                if now - began > PATIENCE:
                    raise
                time.sleep(0.2)
        yield


def modified(path: Path) -> int | None:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime_ns
    return None


@contextlib.contextmanager
def heartbeat(folder: Path) -> Iterator[None]:
    """Renews the status while a job runs; a full disk is no reason to stop."""
    path, over = folder / "status.json", threading.Event()
    began, latest = time.time(), None

    def watch(progress: Progress) -> None:
        nonlocal latest
        latest = progress

    def renew() -> None:
        while True:
            facts: dict[str, Any] = {"pid": os.getpid(), "host": socket.gethostname(), "began": began}
            if latest is not None:
                facts |= {"done": latest.done, "total": latest.total, "unit": latest.unit}
                facts["rate"] = round(latest.rate, 2)
            with contextlib.suppress(OSError):
                part = path.with_suffix(".part")
                with open(part, "w", opener=plain) as file:
                    file.write(json.dumps(facts))
                part.replace(path)
            if over.wait(BEAT):
                return

    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    try:
        with watching(watch):
            yield
    finally:
        over.set()
        thread.join()
        with contextlib.suppress(OSError):
            path.unlink()


def read_status(folder: Path) -> tuple[Mapping[str, Any], bool]:
    """What the last process to run a job wrote about it, and whether that process is alive."""
    path = folder / "status.json"
    try:
        facts = json.loads(read_text(path))
        return facts, time.time() - path.stat().st_mtime < SILENT
    except (OSError, ValueError):
        return {}, False


def note_attempt(folder: Path, began: float, ended: Ended) -> None:
    """Records how an attempt at a job went; if it cannot be written, it is lost."""
    row = {"began": began, "seconds": round(time.time() - began, 2), "host": socket.gethostname(), **ended._asdict()}
    with contextlib.suppress(OSError), open(folder / "attempts.jsonl", "a", opener=plain) as file:
        file.write(json.dumps(row) + "\n")


def read_attempts(folder: Path) -> list[dict[str, Any]]:
    """All attempts at a job, oldest first."""
    rows = []
    with contextlib.suppress(OSError):
        for line in read_text(folder / "attempts.jsonl").splitlines():
            with contextlib.suppress(ValueError):  # A machine may have died in the middle of a line.
                rows.append(json.loads(line))
    return rows
