"""Collects from a sweep what a report needs: configurations, tables and results, but no networks.

The collected folder is again the folder of a sweep, in which finished jobs count as done. Everything is checked before
the first file is written.
"""

import csv
import json
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from becl.errors import UserError
from becl.plugins import bare
from becl.reports.folders import read_finetuning, read_json, read_pretraining
from becl.runs.folder import check_place, read_config
from becl.runs.inside import inside
from becl.runs.progress import counted
from becl.runs.sums import read_checked, read_checked_text, write_checked
from becl.runs.writing import make_folder
from becl.sweeps.plan import Job, bare_words
from becl.sweeps.record import record, recorded_jobs, recorded_name

TABLES = {"pretrain": ("metrics.csv",), "finetune": ("metrics.csv", "scores.csv", "final.csv")}
MAZE = ("csv", "npz", "json")
"""Kinds of files of every seed of a maze study; the JSON says that the seed is finished, and comes last."""
TIMING = "steps_per_second"
"""The column that differs from machine to machine."""


class Harvest(NamedTuple):
    """What can be collected from a folder."""

    jobs: list[Job]
    left_out: list[tuple[str, str]]
    """Names of the jobs that are not collected, and why."""


def collect(source: Path, target: Path) -> Iterator[str]:
    """Copies the finished jobs of a sweep into another folder of the same sweep; yields lines about what was done."""
    harvest = ripe(source)
    known = {job.name: job for job in recorded_jobs(target)}
    check_same_sweep(source, target, harvest.jobs, list(known.values()))
    for job in harvest.jobs:
        check_whole(source, job)
        if job.name in known:
            check_equal(source, target, job)
    fresh = [job for job in harvest.jobs if job.name not in known]
    if fresh:
        check_place(target)
        target.mkdir(parents=True, exist_ok=True)
        for job in fresh:
            copy(source, target, job)
        record([*known.values(), *fresh], recorded_name(source), target)
    for name, why in harvest.left_out:
        yield f"left out: {name}: {why}"
    runs = sum(job.runs for job in fresh)
    again = f", {len(harvest.jobs) - len(fresh)} were there already" if len(harvest.jobs) > len(fresh) else ""
    yield f"{counted(len(fresh), 'job')} with {counted(runs, 'run')} collected in {target}/{again}"


def ripe(source: Path) -> Harvest:
    """The finished jobs of a sweep. A pretraining job whose finetuning is not finished is left out, because the
    finetuning needs its networks, which are not collected."""
    jobs = recorded_jobs(source)
    if not jobs:
        raise UserError(f"{source}: no sweep has begun there")
    done = {job.name for job in jobs if job.done(source)}
    waits = {name: job.name for job in jobs if job.name not in done for name in job.needs}
    left_out = [(job.name, "not finished") for job in jobs if job.name not in done]
    left_out += [(name, f"{waits[name]} is not finished and needs its networks") for name in waits if name in done]
    away = {name for name, _ in left_out}
    return Harvest([job for job in jobs if job.name not in away], left_out)


def check_same_sweep(source: Path, target: Path, jobs: Sequence[Job], known: Sequence[Job]) -> None:
    """Raises if two sweeps would be mixed, or two jobs that trained the same run."""
    if not known:
        return

    def other(what: str) -> UserError:
        return UserError(f"{target} holds another sweep than {source}: {what}; choose another folder")

    if (here := recorded_name(target)) != (there := recorded_name(source)):
        raise other(f"{here}, not {there}")
    words = {job.cell: bare_words(job) for job in known}
    if changed := [job for job in jobs if words.get(job.cell, bare_words(job)) != bare_words(job)]:
        raise other(f"{changed[0].cell} has other options")
    runs = {run: job.name for job in known for run in runs_of(job)}
    for job in jobs:
        if twice := [run for run in runs_of(job) if runs.get(run, job.name) != job.name]:
            _, seed, task = twice[0]
            what = f"seed {seed} of {task}" if task else f"seed {seed}"
            raise UserError(f"{what} is in two jobs, {runs[twice[0]]} in {target} and {job.name} in {source}")


def runs_of(job: Job) -> list[tuple[str, int, str]]:
    """Cell, seed and task of each run of a job."""
    return list(product((job.cell,), job.seeds, job.tasks or ("",)))


def check_whole(source: Path, job: Job) -> None:
    """Raises on a finished job whose tables are damaged or end too early."""
    if job.stage == "maze":
        for path in files_of(source, job):
            if not path.exists():
                raise UserError(f"{path} is missing: the folder was copied in part; copy it again")
        return
    folder = source / job.name
    try:
        config = read_config(folder)
        read_json(folder / "result.json")
        if job.stage == "finetune":
            why = [one.why for one in read_finetuning(folder, config)[1]]
        else:
            pretraining, missing = read_pretraining(folder, config)
            last = 0 if pretraining.metrics is None else int(pretraining.metrics["step"][-1])
            why = [one.why for one in missing] or ([f"ends at step {last:,}"] if last != config["steps"] else [])
    except UserError as error:
        raise UserError(f"{folder}: {error}") from None
    if why:
        raise UserError(f"{folder} is finished, but its tables are incomplete: {why[0]}; copy the folder again")


def check_equal(source: Path, target: Path, job: Job) -> None:
    """Raises on a run that two machines have trained with different outcomes."""
    where = f"{job.name} is in {source} and in {target}, with different"
    if job.stage != "maze" and configuration(source / job.name) != configuration(target / job.name):
        raise UserError(f"{where} configurations; keep one of them")
    for path in files_of(source, job):
        if path.suffix == ".csv" and numbers(path) != numbers(target / path.relative_to(source)):
            raise UserError(f"{where} numbers ({path.name}); keep one of them")


def configuration(folder: Path) -> dict:
    return {name: value for name, value in bare(read_config(folder)).items() if name != "source"}


def numbers(path: Path) -> list[dict[str, str]]:
    """The rows of a table, without the column of rates."""
    try:
        rows = list(csv.DictReader(read_checked_text(path).splitlines()))
    except UserError:
        raise
    except (OSError, ValueError, csv.Error):
        raise UserError(f"{path} is missing or damaged") from None
    return [{name: value for name, value in row.items() if name != TIMING} for row in rows]


def files_of(source: Path, job: Job) -> list[Path]:
    """The files of a job that are collected; the one that says that it is finished comes last."""
    if job.stage == "maze":
        places = [source / proof for proof in job.proofs]
        return [source / job.cell / "config.json", *(path.with_suffix(f".{one}") for path in places for one in MAZE)]
    folder = inside(source, *job.name.split("/"))
    tables = [folder / name for name in TABLES[job.stage]]
    evaluated = sorted((folder / "evaluation").glob("*.*"))
    found = [path for path in (*tables, *evaluated) if path.suffix in (".csv", ".json") and path.exists()]
    return [folder / "config.json", *found, folder / "result.json"]


def copy(source: Path, target: Path, job: Job) -> None:
    for path in files_of(source, job):
        place = target / path.relative_to(source)
        make_folder(place.parent)
        write_checked(place, read_checked(path))
    if job.stage == "maze":
        note = target / job.cell / "seeds.json"
        before = json.loads(read_checked_text(note)) if note.exists() else []
        write_checked(note, json.dumps(sorted({*before, *job.seeds})) + "\n")
