"""Shows how a sweep is doing: a live table, a line now and then, or the status of its folder."""

import contextlib
import functools
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from becl.errors import UserError, printable
from becl.runs.progress import clock
from becl.signals import STOPPED
from becl.sweeps.jobs import job_folder, read_attempts, read_status
from becl.sweeps.plan import Job, Plan
from becl.sweeps.record import recorded_jobs
from becl.terminal import console

BETWEEN_LINES = 15.0  # Seconds, where there is no terminal.


def line_of(plan: Plan, out: Path, states: Mapping[str, str]) -> str:
    """One line that says where a sweep stands."""
    count = Counter(states.values())
    running = {name for name, state in states.items() if state == "running" and working(out, name)}
    count["waiting"] += count["running"] - len(running)
    parts = [f"{count['done']} of {len(states)} jobs done", f"{len(running)} running", f"{count['waiting']} waiting"]
    parts.append(f"{count['failed']} failed")
    rate, left = pace(plan, out, states, running)
    if rate:
        parts.append(f"{rate:,.0f} steps/s")
    return " · ".join([*parts, f"left {clock(left)}"])


def working(out: Path, name: str) -> Mapping[str, Any]:
    """The status of a job; empty unless a process is working on it."""
    facts, alive = read_status(job_folder(out, name))
    return facts if alive else {}


def pace(plan: Plan, out: Path, states: Mapping[str, str], running: set[str]) -> tuple[float, float]:
    """Steps per second of the jobs that run now, and seconds left for all."""
    facts = {name: working(out, name) for name in running}
    rate = sum((float(one.get("rate", 0.0)) for one in facts.values() if one.get("unit") == "steps"), 0.0)
    stages = {job.stage: [one for one in plan.jobs if one.stage == job.stage] for job in plan.jobs if job.work}
    seconds = {stage: seconds_each(jobs, out, states, facts) for stage, jobs in stages.items()}
    if seconds.get("finetune") == float("inf"):  # Until one has run: as fast as pretraining.
        seconds["finetune"] = seconds.get("pretrain", float("inf"))
    left = 0.0
    for stage, jobs in stages.items():
        todo = [job for job in jobs if states[job.name] not in ENDED]
        # A job that evaluates what it has learned counts the steps of that, which may be more than its work.
        work = sum(job.work - min(int(facts.get(job.name, {}).get("done", 0)), job.work) for job in todo)
        left += work * seconds[stage] if work else 0.0
    return rate, left / max(len(running), 1)


ENDED = ("done", "failed")


def seconds_each(jobs: Sequence[Job], out: Path, states: Mapping[str, str], facts: Mapping[str, Any]) -> float:
    """Seconds per step, or cycle, of a stage: from all the time of jobs that are done, or else the rates of jobs that
    run."""
    done = [(job.work, taken(out, job.name)) for job in jobs if states[job.name] == "done"]
    if known := [(work, seconds) for work, seconds in done if seconds is not None]:
        return sum(seconds for _, seconds in known) / sum(work for work, _ in known)
    rates = [float(facts[job.name]["rate"]) for job in jobs if facts.get(job.name, {}).get("rate")]
    return len(rates) / sum(rates) if rates else float("inf")


@functools.cache
def taken(out: Path, name: str) -> float | None:
    """Seconds that a finished job took, in all its attempts."""
    tries = read_attempts(job_folder(out, name))
    return sum(one["seconds"] for one in tries) if tries else None


@contextlib.contextmanager
def view(plan: Plan, out: Path, states: Mapping[str, str]) -> Iterator[None]:
    """Shows a live table on a terminal, otherwise prints a line now and then, from a thread. It writes to the present
    standard error, because a job in this process redirects all output to its log."""
    stream = sys.stderr
    if stream.isatty():
        from rich.console import Console
        from rich.live import Live

        table = functools.partial(status_table, plan, out, states)
        with Live(console=Console(file=stream), refresh_per_second=1, transient=True, get_renderable=table):
            yield
        return
    over = threading.Event()

    def tell() -> None:
        while not over.wait(BETWEEN_LINES):
            print(line_of(plan, out, states), file=stream, flush=True)

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def status_table(plan: Plan, out: Path, states: Mapping[str, str]) -> Any:
    """A table of how many jobs of each stage run, wait, are done or have failed, and one of those that run."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    stages = Table(box=None, pad_edge=False)
    for column in ("stage", "running", "waiting", "done", "failed", "runs"):
        stages.add_column(column, justify="left" if column == "stage" else "right")
    for stage in dict.fromkeys(job.stage for job in plan.jobs):
        jobs = [job for job in plan.jobs if job.stage == stage]
        count = Counter(states[job.name] for job in jobs)
        running = sum(states[job.name] == "running" and bool(working(out, job.name)) for job in jobs)
        waiting = count["waiting"] + count["running"] - running
        runs = f"{sum(job.runs for job in jobs):,}" if any(job.runs for job in jobs) else ""
        stages.add_row(stage, *map(str, (running, waiting, count["done"], count["failed"])), runs)
    live = Table(box=None, pad_edge=False)
    for column in ("running now", "where", "done", "rate", "left"):
        live.add_column(column, justify="left" if column in ("running now", "where") else "right")
    for job in plan.jobs:
        if states[job.name] == "running" and (facts := working(out, job.name)):
            rate, total = float(facts.get("rate", 0.0)), int(facts.get("total", 0))
            done = f"{100 * facts['done'] / total:.0f} %" if total else "starting"
            left = clock((total - facts["done"]) / rate) if rate else ""
            where = f"{facts.get('host')}/{facts.get('pid')}"
            row = (job.name, where, done, f"{rate:,.0f} {facts.get('unit', '')}/s" if rate else "", left)
            live.add_row(*(Text(printable(text)) for text in row))
    return Group(stages, live, line_of(plan, out, states))


def show_status(out: Path) -> int:
    """`becl sweep status`: shows what the folder says, whether or not a sweep is running there."""
    jobs = recorded_jobs(out)
    if not jobs:
        raise UserError(f"{out}: no sweep has begun there")
    plan = Plan(tuple(jobs), {})
    states: dict[str, str] = {}
    for job in jobs:
        folder = job_folder(out, job.name)
        done = job.done(out)
        states[job.name] = "done" if done else "running" if working(out, job.name) else "waiting"
        failures = [one for one in read_attempts(folder) if one["code"] not in (0, STOPPED)]
        if states[job.name] == "waiting" and failures:
            why = printable(str(failures[-1]["why"]))
            print(f"{job.name}: failed {len(failures)} times, last: {why} (see {folder / 'log.txt'})")
    console().print(status_table(plan, out, states))
    return 0
