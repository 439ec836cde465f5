"""`becl sweep`: a whole grid of runs, in stages, on one machine or a cluster.

The state of a sweep is what is in its folder, and nothing else: running the command again, here or elsewhere, continues
with what is not finished.

    sweep.json             the jobs that train, as they were planned
    pretrain/, finetune/   folders of runs
    maze/                  folders of maze studies
    report/                the page
    jobs/NAME/             log and status of each job
"""

import contextlib
import dataclasses
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from becl import plugins
from becl.errors import Failed, UserError, printable
from becl.learning.programs import forget_programs
from becl.options import SweepOptions
from becl.runs.folder import check_writable
from becl.runs.lock import locked, seeds_lock
from becl.runs.progress import counted, interrupts
from becl.signals import STOPPED
from becl.sweeps import cluster
from becl.sweeps.collect import collect
from becl.sweeps.cost import describe
from becl.sweeps.device import Device, device_here
from becl.sweeps.file import JOBS, Jobs, Sweep, job_number, presets, read_sweep
from becl.sweeps.jobs import (
    LOST,
    Ended,
    Order,
    job_folder,
    note_attempt,
    read_status,
    run_job,
)
from becl.sweeps.limit import AGAIN, TimeLimit
from becl.sweeps.plan import Job, Plan, cells_of, check_recorded, figures_job, make_plan
from becl.sweeps.record import record, recorded_jobs
from becl.sweeps.status import show_status, view
from becl.trust import trust

Execute = Callable[[str, Any, Sequence[str]], int]
"""Runs a command with its options, and the words one would type for them; returns the exit code."""
H200 = Device("NVIDIA H200", 141 * 10**9, True)
"""The device that a dry run plans for if GPUs are asked for and there are none."""
LONGEST_DELAY = 30.0  # Seconds before a job that failed is tried again.


def run_sweep(options: SweepOptions, execute: Execute) -> int:
    """Plans a sweep and runs what is not done, each job by `execute`; returns the exit code."""
    limit = None if options.time_limit is None else TimeLimit(options.time_limit)
    words = list(options.file)
    if words[:1] == ["collect"]:
        return run_collect(words[1:])
    status, word = wanted(words)
    sweep = read_sweep(word)
    out = options.out or sweep.out
    sweep = dataclasses.replace(sweep, out=out)
    if status:
        return show_status(out)
    jobs = options_of(options, sweep)
    if options.ray_address is not None:
        if not options.ray:
            raise UserError("--no-ray and --ray-address exclude each other")
        cluster.check_address(options.ray_address)
    for block in sweep.of("pretrain") if options.trust else ():
        trust(*block.names("domains"))
    cells = cells_of(sweep)
    recorded = recorded_jobs(out)
    check_recorded(cells, recorded, out)
    if options.dry_run:
        device = device_here()
        if jobs.gpus and not device.accelerator:
            device = H200
        plan = make_plan(sweep, cells, device, jobs.group, recorded)
        for line in [*describe(plan, out, device), *(limit.preview(plan, out, device) if limit else ())]:
            print(line)
        return 0
    conductor = Conductor(make_plan(sweep, cells, H200, jobs.group, recorded), out, jobs.retries, execute)
    if conductor.over:
        return conclude(conductor, interrupted=False)
    with begun(out), locked(out), executor_of(options, jobs) as executor:
        device = executor.device()
        conductor = Conductor(
            make_plan(sweep, cells, device, jobs.group, recorded_jobs(out)), out, jobs.retries, execute
        )
        if limit:
            limit.measure(conductor.plan, out, device)
            limit.check(conductor.ready())
        record(conductor.plan.jobs, sweep.name, out)
        return conduct(conductor, executor, device, limit)


def run_collect(words: Sequence[str]) -> int:
    """`becl sweep collect`: copies what a report needs from a sweep's folder."""
    if len(words) != 2:
        raise UserError("becl sweep collect: name two folders, a sweep's and the one to collect in")
    source, target = map(Path, words)
    if source.resolve() == target.resolve():
        raise UserError(f"becl sweep collect: both folders are {source}")
    for line in collect(source, target):
        print(line)
    return 0


@contextlib.contextmanager
def begun(out: Path) -> Iterator[None]:
    """Makes a sweep's folder, and removes it again if the sweep cannot begin."""
    missing = [folder for folder in (out, *out.parents) if not folder.exists()]
    check_writable(out)
    try:
        yield
    except UserError:
        for folder in missing:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def wanted(words: Sequence[str]) -> tuple[bool, str]:
    """Whether the status is asked for, and the sweep's file or preset."""
    status = len(words) == 2 and words[0] == "status"
    if not status and len(words) != 1:
        known = ", ".join(presets())
        raise UserError(
            f"becl sweep: name one file, or a preset: {known}; or status and one of them; or collect and two folders"
        )
    return status, words[-1]


def options_of(options: SweepOptions, sweep: Sweep) -> Jobs:
    """How jobs are run: as the file says, changed by the command line."""
    given: dict[str, Any] = {name: getattr(options, name) for name in JOBS if getattr(options, name) is not None}
    try:
        return dataclasses.replace(sweep.jobs, **{name: job_number(name, value) for name, value in given.items()})
    except UserError as error:
        raise UserError(f"--{error}") from None


# --- Who runs jobs ----------------------------------------------------------------------------------------------------


@runtime_checkable
class Executor(Protocol):
    """Runs jobs, as many at once as it has places."""

    @property
    def places(self) -> int: ...
    def device(self) -> Device: ...
    def submit(self, order: Order) -> None: ...
    def wait(self, seconds: float) -> list[tuple[str, Ended]]: ...
    def stop(self) -> Iterator[tuple[str, Ended]]: ...
    def close(self) -> None: ...


class Here:
    """One job after another, in this process."""

    def __init__(self) -> None:
        self._waiting: list[Order] = []
        self._ran = 0

    @property
    def places(self) -> int:
        return 1

    def device(self) -> Device:
        return device_here()

    def submit(self, order: Order) -> None:
        self._waiting.append(order)

    def wait(self, seconds: float) -> list[tuple[str, Ended]]:
        if not self._waiting:
            time.sleep(seconds)
            return []
        order = self._waiting.pop(0)
        ended = run_job(order)
        self._ran += 1
        if self._ran % cluster.REUSED == 0:
            forget_programs()
        return [(order.name, ended)]

    def stop(self) -> Iterator[tuple[str, Ended]]:
        return iter([(order.name, Ended(STOPPED)) for order in self._waiting])

    def close(self) -> None:
        pass


@contextlib.contextmanager
def executor_of(options: SweepOptions, jobs: Jobs) -> Iterator[Executor]:
    if options.ray and cluster.installed():
        import jax

        # Jobs have the accelerators; this process only plans.
        jax.config.update("jax_platforms", "cpu")
        executor: Executor = cluster.OnRay(options.ray_address, jobs.cpus, jobs.gpus)
    else:
        if options.ray:
            print(
                "Ray is not installed: jobs run one after another in this process. "
                f"{cluster.INSTALL} runs them side by side, on all cores, GPUs and machines."
            )
        executor = Here()
    try:
        yield executor
    finally:
        executor.close()


# --- The loop ---------------------------------------------------------------------------------------------------------


class Conductor:
    """Keeps track of which jobs wait, run, are done or have failed."""

    def __init__(self, plan: Plan, out: Path, retries: int, execute: Execute):
        self.plan, self.out, self.retries, self.execute = plan, out, retries, execute
        self.jobs = {job.name: job for job in plan.jobs}
        self.states: dict[str, str] = {}
        for job in plan.jobs:  # If something is missing, what comes last is made again.
            missing = job.last and any(self.states[name] != "done" for name in job.needs)
            self.states[job.name] = "waiting" if missing or not self._done(job) else "done"
        self.before = sum(state == "done" for state in self.states.values())
        self.tries: Counter[str] = Counter()
        self.failed: dict[str, str] = {}
        self._furthest: dict[str, int] = {}
        self._not_before: dict[str, float] = {}
        self.retried = self.lost = 0

    @property
    def over(self) -> bool:
        return not any(state in ("waiting", "running") for state in self.states.values())

    @property
    def running(self) -> int:
        return sum(state == "running" for state in self.states.values())

    def _done(self, job: Job) -> bool:
        return job.done(self.out, self.plan.before(job))

    def ready(self) -> Iterator[Job]:
        """Jobs that can be started now; those that never can be are marked as failed."""
        for job in self.plan.jobs:
            if self.states[job.name] != "waiting" or time.monotonic() < self._not_before.get(job.name, 0.0):
                continue
            states = [self.states[name] for name in job.needs]
            if job.last and all(state in ("done", "failed") for state in states):
                if "done" not in states:
                    self._give_up(job.name, "there is nothing to show")
                elif self._done(job):
                    self.states[job.name] = "done"
                else:
                    yield job
            elif not job.last and "failed" in states:
                self._give_up(job.name, f"not started: {job.needs[states.index('failed')]} failed")
            elif all(state == "done" for state in states):
                yield job

    def order(self, job: Job) -> Order:
        self.states[job.name] = "running"
        if job.stage == "figures":  # Only of finished seeds: it must not train those that failed.
            there = [self.jobs[name] for name in job.needs if self.states[name] == "done"]
            job = figures_job(self.plan.cells[job.cell], there)
        loaded = plugins.loaded()
        words = [*job.line(self.out), *(f"--plugin={word}" for word in loaded)]
        options = self.plan.options(job, self.out)
        words += ["--trust"] if getattr(options, "trust", False) else []
        lock = seeds_lock(job.seeds) if job.stage == "maze" else "lock"
        folder = self.out / job.cell if job.stage == "maze" else job.results(self.out)[0].parent
        return Order(job.name, job.command, options, words, self.execute, loaded, str(self.out), os.getcwd(),
                     [str(folder / lock)], {})  # fmt: skip

    def hear(self, name: str, ended: Ended) -> None:
        """Records how a job ended."""
        job, folder = self.jobs[name], job_folder(self.out, name)
        if ended.code == 0 and self._done(job):
            self.states[name] = "done"
            return
        self.states[name] = "waiting"
        if ended.code == STOPPED:
            return
        why = ended.why or "it ended without its results"
        if ended.code == LOST:  # Otherwise the job has noted it itself.
            note_attempt(folder, time.time(), ended)
        reached = int(read_status(folder)[0].get("done", 0))
        if ended.code == LOST and reached > self._furthest.get(name, 0):  # A lost machine is not the job's fault.
            self._furthest[name], self.tries[name] = reached, 0
        else:
            self.tries[name] += 1
        self.lost += ended.code == LOST
        if self.tries[name] > self.retries:
            self._give_up(name, why)
            return
        self.retried += 1
        self._not_before[name] = time.monotonic() + min(2.0 ** (self.tries[name] - 1), LONGEST_DELAY)

    def _give_up(self, name: str, why: str) -> None:
        self.states[name], self.failed[name] = "failed", why


def conduct(conductor: Conductor, executor: Executor, device: Device, limit: TimeLimit | None) -> int:
    """Runs what is not done and prints how it went; returns the exit code."""
    plan, out = conductor.plan, conductor.out
    training = [job for job in plan.jobs if not job.last]
    runs = sum(job.runs for job in training)
    print(
        f"{counted(len(training), 'job')}, {counted(runs, 'run')} · {conductor.before} done before · "
        f"{executor.places} at a time · {out}/",
        flush=True,
    )
    interrupted = False
    watched = limit.watched() if limit else contextlib.nullcontext()
    try:
        with interrupts() as pressed, watched, view(plan, out, conductor.states):
            while not conductor.over and not interrupted:
                ready = list(conductor.ready())
                chosen = ready if limit is None else limit.choose(ready, executor.places - conductor.running)
                if ready and not chosen and not conductor.running:
                    break
                for job in chosen:
                    executor.submit(conductor.order(job))
                for name, ended in executor.wait(0.5):
                    conductor.hear(name, ended)
                    interrupted |= ended.code == STOPPED
                    if limit:
                        limit.measure(plan, out, device)
                interrupted |= pressed()
            if interrupted:
                for name, ended in executor.stop():
                    conductor.hear(name, ended)
    except Failed as error:
        print(f"becl: failed: {error}", file=sys.stderr)
        return 1
    return conclude(conductor, interrupted, limit)


def conclude(conductor: Conductor, interrupted: bool, limit: TimeLimit | None = None) -> int:
    out, states = conductor.out, Counter(conductor.states.values())
    for name, why in conductor.failed.items():
        log = job_folder(out, name) / "log.txt"
        print(f"becl: failed: {name}: {printable(why)}" + (f" (see {log})" if log.exists() else ""), file=sys.stderr)
    again = f", {counted(conductor.retried, 'further attempt')}" if conductor.retried else ""
    lost = f", {conductor.lost} processes lost" if conductor.lost else ""
    print(f"{states['done']} of {len(conductor.states)} jobs done, {states['failed']} failed{again}{lost} · {out}/")
    for job in conductor.plan.jobs:
        if job.last and conductor.states[job.name] == "done":
            print(job.results(out)[0] if job.stage == "report" else job.results(out)[0].parent)
    left = [job for job in conductor.plan.jobs if conductor.states[job.name] in ("waiting", "running")]
    if limit and left and (limit.over or not interrupted):
        print(f"becl: {limit.conclusion(left)}; the same command continues", flush=True)
        return 1 if states["failed"] else AGAIN
    if interrupted:
        print("becl: stopped; the same command continues", flush=True)
        return STOPPED
    return 1 if states["failed"] else 0
