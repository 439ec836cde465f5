"""Runs a study's seeds side by side: one process per core on a CPU, one vmapped program per run on an accelerator.

Small networks gain nothing from more threads, so each process keeps to one core. Seeds write checkpoints, so stopping
at any moment loses no more than the last cycles.
"""

import contextlib
import functools
import multiprocessing
import multiprocessing.connection
import multiprocessing.resource_tracker
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from becl import plugins
from becl.cores import available_cores
from becl.errors import brief
from becl.experiments.maze_study import Study, unfinished
from becl.experiments.maze_trainer import train_seeds
from becl.runs.compiling import progress
from becl.runs.lock import Lease, Owner, held, holding
from becl.runs.progress import Progress, interrupts

ONE_THREAD = {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "JAX_PLATFORMS": "cpu",
}


def execute(study: Study, out: Path, workers: int | None = None) -> list[str]:
    """Trains what is unfinished; returns a line for each run that failed."""
    jobs = unfinished(study, out)
    if not jobs:
        return []
    # For the same reason as below, also with --workers 1. JAX reads it when it compiles the first program.
    os.environ.setdefault("XLA_FLAGS", ONE_THREAD["XLA_FLAGS"])
    on_cpu = _on_cpu()
    cores = available_cores()
    workers = workers or len(cores)
    with progress(len(jobs) * study.cycles, "cycles") as bar:
        # Also if a single job is left: threads change the order of sums, and a resumed run must not differ.
        if on_cpu and workers > 1 and not plugins.only_here(run.objective for run in study.runs.values()):
            return _execute_processes(study, jobs, out, cores, workers, bar)
        together = {label: [seed for job, seed in jobs if job == label] for label, _ in jobs}
        groups = [(label, [seed]) for label, seed in jobs] if on_cpu else list(together.items())
        return _execute_here(study, groups, out, bar)


def _on_cpu() -> bool:
    import jax

    return jax.default_backend() == "cpu"


def _execute_here(study: Study, groups: list[tuple[str, list[int]]], out: Path, bar: Progress) -> list[str]:
    """Trains one group of seeds after another in this process; the seeds of a group are vmapped."""
    failures = []
    for label, seeds in groups:
        for seed in seeds:
            bar.begin(label, seed)
        try:
            train_seeds(study, label, seeds, out, functools.partial(bar.advance, seeds=len(seeds)))
        except Exception as error:  # Reported at the end; other runs go on.
            failures.append(f"{label} seeds {', '.join(map(str, seeds))}: {brief(error)}")
        for seed in seeds:
            bar.end(label, seed)
    return failures


@dataclass
class _Worker:
    process: Any
    pipe: multiprocessing.connection.Connection
    job: tuple[str, int] | None = None
    label: str | None = None
    alive: bool = True
    compiling_since: float | None = None
    """When it got a job that it has to compile; None once it has reported its first cycles."""


def _execute_processes(study, jobs, out, cores, workers, bar) -> list[str]:
    context = multiprocessing.get_context("spawn")
    waiting, failures, team = list(jobs), [], []
    # Pinning pays off if every core has its worker; otherwise the system places them better than we would.
    pin = workers >= len(cores)
    try:
        # Ctrl-C waits until all workers have started, so that none is forgotten; then it is raised.
        with interrupts(), _environment(ONE_THREAD), _unheard_by_children():
            for number in range(min(len(jobs), workers)):
                here, there = context.Pipe()
                core = cores[number % len(cores)] if pin else None
                arguments = (there, plugins.loaded(), pickle.dumps(study), out, core, held())
                process = context.Process(target=_work, args=arguments, daemon=True)
                with nameless_main():
                    process.start()
                there.close()
                team.append(_Worker(process, here))
        for worker in team:
            _give(worker, waiting, team, bar)
        while any(worker.job for worker in team):
            for pipe in multiprocessing.connection.wait([worker.pipe for worker in team if worker.job], timeout=1.0):
                worker = next(worker for worker in team if worker.pipe is pipe)
                failures += _hear(worker, team, bar)
                if worker.job is None:
                    _give(worker, waiting, team, bar)
            bar.tick()
        if waiting:
            failures += [f"{label} seed {seed}: not started, no worker was left" for label, seed in waiting]
    finally:
        for worker in team:
            worker.process.terminate()
        for worker in team:
            worker.process.join(5)
    return failures


def _count(worker: _Worker, team: list[_Worker], cycles: int, bar: Progress) -> None:
    """Counts the cycles that a worker has done. The first of a program include compiling: neither they nor the worker's
    share of the team's time count towards the rate."""
    if worker.compiling_since is not None:
        bar.leave_out_share(time.monotonic() - worker.compiling_since, len(team))
        bar.resume(cycles)
        cycles, worker.compiling_since = 0, None
    bar.advance(cycles)
    bar.compiling = any(other.compiling_since is not None for other in team)


def _hear(worker: _Worker, team: list[_Worker], bar: Progress) -> list[str]:
    """Takes one message of a worker; a closed pipe means the process died."""
    assert worker.job is not None
    label, seed = worker.job
    try:
        kind, value = worker.pipe.recv()
    except (EOFError, OSError):
        worker.process.join(5)
        worker.job, worker.alive, worker.compiling_since = None, False, None
        bar.end(label, seed)
        code = worker.process.exitcode
        return [f"{label} seed {seed}: its process ended with exit code {code} (out of memory, or as it says above)"]
    if kind == "cycles":
        _count(worker, team, value, bar)
        return []
    worker.job = worker.compiling_since = None
    bar.end(label, seed)
    return [] if kind == "done" else [f"{label} seed {seed}: {value}"]


def _give(worker: _Worker, waiting: list[tuple[str, int]], team: list[_Worker], bar: Progress) -> None:
    """Hands out the next job: one whose program the worker has compiled, otherwise one that few others work on."""
    if not waiting or not worker.alive:
        return
    busy = [other.label for other in team if other is not worker]
    job = min(waiting, key=lambda job: (job[0] != worker.label, busy.count(job[0]), waiting.index(job)))
    try:
        worker.pipe.send(job)
    except OSError:
        worker.alive = False
        return
    waiting.remove(job)
    if worker.label != job[0]:
        worker.compiling_since = time.monotonic()
        bar.compiling = True
    worker.job, worker.label = job, job[0]
    bar.begin(*job)


@contextlib.contextmanager
def nameless_main() -> Iterator[None]:
    """Hides the caller's script from workers. They need nothing from it, but would run it once more, and with it this
    study, if it has no `if __name__ == "__main__"` guard."""
    script = sys.modules["__main__"]
    hidden = {name: script.__dict__.pop(name) for name in ("__file__", "__spec__") if name in script.__dict__}
    script.__spec__ = None
    try:
        yield
    finally:
        script.__dict__.update(hidden)


def _work(
    pipe: Any, words: list[str], pickled: bytes, out: Path, core: int | None, leases: list[tuple[Path, Owner]]
) -> None:
    """Runs a worker process: trains one seed after another, until its pipe closes. Plug-ins are loaded before the
    study, which may need them."""
    if core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for word in words:
        plugins.load(word)
    study: Study = pickle.loads(pickled)
    # A closed pipe means that the parent is gone.
    with holding([Lease(*lease) for lease in leases]), contextlib.suppress(EOFError, OSError):
        while True:
            label, seed = pipe.recv()
            try:
                train_seeds(study, label, [seed], out, lambda cycles: pipe.send(("cycles", cycles)))
            except BrokenPipeError:
                raise
            except Exception as error:  # Reported by the parent; other seeds go on.
                pipe.send(("failed", brief(error)))
            else:
                pipe.send(("done", None))


def _end_with_parent() -> None:
    """Ends a worker whose parent was killed, so that it does not write beside the run that continues."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


@contextlib.contextmanager
def _unheard_by_children() -> Iterator[None]:
    """Blocks Ctrl-C for child processes, also while they are still importing: it is the parent's business."""
    if not hasattr(signal, "pthread_sigmask"):  # On Windows.
        yield
        return
    # The tracker would otherwise start with the first child, and then unblock the signal.
    multiprocessing.resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Sets environment variables for child processes, unless they are set already."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update({name: value for name, value in values.items() if before[name] is None})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
