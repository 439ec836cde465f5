"""Records the jobs of a sweep in its folder, in `sweep.json`: those that train, as they were planned."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from becl.errors import UserError
from becl.runs.inside import check_inside, is_name
from becl.runs.sums import SUMS, read_checked_text, write_checked
from becl.sweeps.plan import Job

KEPT = ("name", "stage", "words", "cell", "seeds", "tasks", "needs", "proofs", "runs", "work", "method", "env")
UNBEGUN = ("lock", "sweep.json.part", SUMS, f"{SUMS}.part")  # What a sweep leaves that was killed before it began.


def recorded_jobs(out: Path) -> list[Job]:
    """The jobs recorded in a sweep's folder; none if there is no such folder yet."""
    path = out / "sweep.json"
    try:
        if path.is_symlink() or path.exists():
            rows: list[dict[str, Any]] = json.loads(read_checked_text(path))["jobs"]
            check_inside(out)
            return [job_of(row) for row in rows]
        other = out.exists() and (not out.is_dir() or any(one.name not in UNBEGUN for one in out.iterdir()))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except UserError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError(f"{path} is damaged; choose another --out") from None
    if other:
        raise UserError(f"{out} is not the folder of a sweep, and not empty; choose another --out")
    return []


def job_of(row: dict[str, Any]) -> Job:
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
    job = Job(**values)
    if other := [path for path in (job.name, job.cell, *job.needs, *job.proofs) if not is_below(path)]:
        raise ValueError(f"{other[0]} is not inside the sweep's folder")
    return job


def is_below(path: str) -> bool:
    """Whether a relative path with slashes stays below the folder it starts from."""
    return all(map(is_name, path.split("/")))


def recorded_name(out: Path) -> str:
    """The name of the sweep in a folder."""
    return str(json.loads(read_checked_text(out / "sweep.json")).get("sweep"))


def record(jobs: Sequence[Job], name: str, out: Path) -> None:
    """Writes down the jobs that train; those that come last follow from them."""
    rows = [{key: getattr(job, key) for key in KEPT} for job in jobs if not job.last]
    text = json.dumps({"sweep": name, "jobs": rows}, indent=1) + "\n"
    path = out / "sweep.json"
    if not path.exists() or read_checked_text(path) != text:
        write_checked(path, text)
