"""A sweep with a time limit: only jobs that will finish in time are started, and those still running are stopped.

How long a job takes is estimated from the work that is left and the nearest rate that was measured, in this sweep or on
such a device before. If no rate is known, the job is started all the same; it writes a checkpoint when time is up.
"""

import _thread
import contextlib
import math
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from becl.errors import UserError
from becl.runs.checkpoint import Checkpoints
from becl.runs.progress import clock, counted
from becl.sweeps.cost import Rate, full_size, known_rates, rate_of
from becl.sweeps.device import Device
from becl.sweeps.jobs import job_folder, read_attempts
from becl.sweeps.plan import Job, Plan

AGAIN = 75
"""Exit code: time is up, and there is more to do."""
LAST = 30.0  # Seconds reserved for the last checkpoint, at most a tenth of the limit.
START = 40.0  # Seconds that a job takes to start and compile, which the rates that come with becl leave out.
SLACK = 1.1  # Rates vary between machines of one kind.
PAGE = 20.0  # Seconds for figures or a report.


class TimeLimit:
    """The time that a sweep may take, from now on, and what fits into it."""

    def __init__(self, seconds: float):
        if not 0 < seconds < math.inf:
            raise UserError(f"--time-limit {seconds:g}: must be greater than 0 and finite")
        self.seconds = seconds
        self.over = False
        """Whether time is up, so that jobs have to stop."""
        self._end = time.monotonic() + seconds - min(LAST, seconds / 10)
        self._seen: list[Rate] = []
        self._known: list[Rate] = []

    def measure(self, plan: Plan, out: Path, device: Device) -> None:
        """Reads the rates of all jobs that are done, and those that come with becl."""
        self._out, self._device = out, device.kind
        self._plan = plan
        self._seen = seen_rates(plan.jobs, out, device.kind)
        self._known = known_rates() if full_size(plan) else []

    @property
    def left(self) -> float:
        return self._end - time.monotonic()

    def needs(self, job: Job) -> float | None:
        """Seconds that a job takes from its last checkpoint on; None where no rate is known."""
        if job.last:
            return PAGE
        rate = rate_of(job, self._device, [*self._seen, *self._known])
        if rate is None:
            return None
        start = 0.0 if rate in self._seen else START
        return start + SLACK * (job.work - trained(job, self._out)) / rate.steps_per_second

    def fits(self, job: Job) -> bool:
        needs = self.needs(job)
        return not self.over and (self.left > 0 if needs is None else needs <= self.left)

    def fits_with_rest(self, job: Job) -> bool:
        """Whether there is time for the jobs that learn from this one as well.

        A pretraining without them is lost where only results are brought back (`becl sweep collect`).
        """
        return sum(self.needs(one) or 0.0 for one in (job, *self._plan.after(job))) <= self.left

    def choose(self, ready: Sequence[Job], places: int) -> list[Job]:
        """The jobs to start now, no more than there are places for: waiting in a queue takes time as well."""
        fit = [job for job in ready if self.fits(job)]
        return ([job for job in fit if self.fits_with_rest(job)] or fit)[: max(places, 0)]

    def preview(self, plan: Plan, out: Path, device: Device) -> Iterator[str]:
        """Lines of a dry run: the jobs that fit, one after another, each as if the time of those before had passed."""
        self.measure(plan, out, device)
        fit: list[str] = []
        done = {job.name for job in plan.jobs if job.done(out, plan.before(job))}
        while True:
            open_jobs = [job for job in plan.jobs if not job.last and job.name not in {*done, *fit}]
            ready = [job for job in open_jobs if {*job.needs} <= {*done, *fit} and self.needs(job) is not None]
            chosen = self.choose(ready, 1)
            if not chosen:
                break
            fit.append(chosen[0].name)
            self._end -= self.needs(chosen[0]) or 0.0
        yield f"within {clock(self.seconds)}: {', '.join(fit) if fit else 'no job, as far as rates are known'}"

    def check(self, jobs: Iterable[Job]) -> None:
        """Raises on a limit in which none of the next jobs could finish."""
        needs = {job.name: seconds for job in jobs if (seconds := self.needs(job)) is not None or not job.last}
        known = {name: seconds for name, seconds in needs.items() if seconds is not None}
        if known and len(known) == len(needs) and min(known.values()) > self.left:
            shortest = min(known, key=lambda name: known[name])
            raise UserError(
                f"--time-limit {clock(self.seconds)}: too short for any of the next jobs; the shortest, {shortest}, "
                f"takes about {clock(known[shortest])}"
            )

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Stops what runs inside, as Ctrl-C does, in time for its last checkpoint."""

        def stop() -> None:
            self.over = True
            _thread.interrupt_main()

        timer = threading.Timer(max(self.left, 0.0), stop)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def conclusion(self, left: Sequence[Job]) -> str:
        """A line that says what is still to do when time is up."""
        needs = self.needs(left[0])
        takes = f", which takes about {clock(needs)}" if needs is not None else ""
        return (
            f"the time limit of {clock(self.seconds)} ends here with {counted(len(left), 'job')} left; "
            f"next: {left[0].name}{takes}"
        )


def seen_rates(jobs: Iterable[Job], out: Path, device: str) -> list[Rate]:
    """Rates of the jobs that have finished in this folder, with all the time that they took."""
    rates = []
    for job in jobs:
        tries = read_attempts(job_folder(out, job.name))
        seconds = sum(one["seconds"] for one in tries)
        if job.work and tries and tries[-1]["code"] == 0 and seconds:
            rates.append(Rate(device, job.stage, job.method, job.env, job.runs, job.work / seconds, job.name))
    return rates


def trained(job: Job, out: Path) -> int:
    """The part of a job's work that its last checkpoint holds."""
    if job.stage == "maze":
        return job.work * sum(path.exists() for path in job.results(out)) // len(job.proofs)
    steps = Checkpoints(out / job.name / "checkpoint", {}).steps()
    return job.runs * steps[-1] if steps else 0
