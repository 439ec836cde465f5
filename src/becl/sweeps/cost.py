"""What a sweep will cost: time from measured rates, disk from the sizes of what is kept."""

import functools
import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from becl.experiments.memory import size
from becl.nn.adam import without_optimizers
from becl.runs.progress import counted
from becl.runs.sums import read_checked_text
from becl.sweeps.device import Device
from becl.sweeps.plan import GridCell, Job, Plan


class Rate(NamedTuple):
    """A measured rate: environment steps per second of all runs of a job together."""

    device: str
    stage: str
    method: str
    env: str
    together: int
    steps_per_second: float
    source: str


def known_rates() -> list[Rate]:
    """The rates that come with becl, measured with networks of 1024 and a batch of 1024."""
    path = resources.files("becl") / "data" / "rates.json"
    return [Rate(**row) for row in json.loads(path.read_text())]


def own_rates(plan: Plan, out: Path) -> list[Rate]:
    """The rates of the jobs that this sweep has finished."""
    found = []
    for job in plan.jobs:
        try:
            result = json.loads(read_checked_text(out / job.name / "result.json"))
            found.append(
                Rate(result["device"], job.stage, job.method, job.env, job.runs, result["steps_per_second"], job.name)
            )
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return found


def rate_of(job: Job, device: str, rates: Sequence[Rate]) -> Rate | None:
    """The nearest rate that was measured on a device: of the same stage, method and environment if there is one, and
    with about as many runs together."""
    here = [rate for rate in rates if rate.device == device]

    def distance(rate: Rate) -> tuple[bool, bool, bool, float]:
        apart = abs(math.log(max(job.runs, 1) / rate.together))
        return rate.stage != job.stage, rate.method != job.method, rate.env != job.env, apart

    return min(here, key=distance, default=None)


class Cost(NamedTuple):
    jobs: int
    runs: int
    largest: int
    """Runs in the largest group."""
    hours: float | None
    """On one device; None if nothing was measured there."""
    disk: int
    assumed: int
    """Number of jobs whose own rate is not known."""


def cost_of(jobs: Sequence[Job], cells: Mapping[str, GridCell], device: str, rates: Sequence[Rate]) -> Cost:
    hours, assumed = 0.0, 0
    for job in jobs:
        rate = rate_of(job, device, rates)
        hours = math.nan if rate is None else hours + job.work / rate.steps_per_second / 3600
        assumed += rate is not None and (rate.stage, rate.method, rate.env) != (job.stage, job.method, job.env)
    return Cost(
        len(jobs),
        sum(job.runs for job in jobs),
        max(job.runs for job in jobs),
        None if math.isnan(hours) else hours,
        sum(disk_of(job, cells[job.cell]) for job in jobs),
        assumed,
    )


def disk_of(job: Job, cell: GridCell) -> int:
    """Bytes of the networks that a job keeps; checkpoints come and go."""
    if job.stage == "maze":
        return job.runs * MAZE_RUN
    times = len(cell.planned.snapshots) if job.stage == "pretrain" else 1
    return job.runs * times * kept_bytes(cell.planned.run)


@functools.cache
def kept_bytes(run: Any) -> int:
    """Bytes of the networks of one run."""
    import jax

    state, _ = jax.eval_shape(run.init, jax.random.key(0))
    networks = without_optimizers({"learner": state.learner, "objective": state.objective})
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(networks))


MAZE_RUN = 1_000_000  # Bytes of a run of the maze study, roughly.
PAPER = "the paper: 18 h per pretrained seed and 30 min per finetuned one on an A100"
PAPER_HOURS = {"pretrain": 18.0, "finetune": 0.5}


def describe(plan: Plan, out: Path, device: Device) -> Iterator[str]:
    """Lines of a dry run."""
    training = [job for job in plan.jobs if not job.last]
    for job in plan.jobs:
        state = "done" if job.done(out, plan.before(job)) else counted(job.runs, "run") if job.runs else "last"
        yield f"{job.name:<40} {state:<10} {shlex.join(['becl', *job.line(out)])}"
    yield ""
    known = known_rates() if full_size(plan) else []
    rates = [*own_rates(plan, out), *known]
    places = dict.fromkeys([device.kind, *(rate.device for rate in known)])
    for stage in dict.fromkeys(job.stage for job in training):
        jobs = [job for job in training if job.stage == stage]
        cost = cost_of(jobs, plan.cells, device.kind, rates)
        yield (
            f"{stage}: {counted(cost.runs, 'run')} in {counted(cost.jobs, 'job')} of up to {cost.largest} together, "
            f"{size(cost.disk)} of networks"
        )
    for place in places:
        yield time_line(training, plan.cells, place, rates)
    if full_size(plan):
        hours = sum(job.runs * PAPER_HOURS.get(job.stage, 0.0) for job in training)
        if hours:
            yield f"time by the rates of {PAPER}: {hours:,.0f} GPU hours"


def full_size(plan: Plan) -> bool:
    """Whether all networks have the published width, for which the rates were measured."""
    runs = [cell.planned.run for cell in plan.cells.values() if cell.stage != "maze"]
    return bool(runs) and all(getattr(run.learner, "hidden", 1024) == 1024 for run in runs)


def time_line(jobs: Sequence[Job], cells: Mapping[str, GridCell], device: str, rates: Sequence[Rate]) -> str:
    robots = [job for job in jobs if job.stage != "maze"]
    if not robots:
        return f"time on {device}: not known before it has run (docs/maze.md has some times)"
    cost = cost_of(robots, cells, device, rates)
    if cost.hours is None:
        return f"time on {device}: no rate is known there; becl pretrain ... --dry-run times a run"
    used = {rate for job in robots if (rate := rate_of(job, device, rates))}
    assumed = (
        f"; {cost.assumed} of {len(robots)} jobs at the rate of another method, domain or stage" if cost.assumed else ""
    )
    by = counted(len(used), "measured rate")
    return f"time on one {device}: {cost.hours:,.1f} hours, by {by}{assumed}"
