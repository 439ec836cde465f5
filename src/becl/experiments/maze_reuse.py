"""Copies finished seeds of identical runs from other studies, so that what serves several figures is computed once."""

import json
from collections.abc import Sequence
from pathlib import Path

from becl.errors import UserError
from becl.experiments.maze_results import finished
from becl.experiments.maze_study import Study, load_study, seed_path, unfinished
from becl.runs.inside import inside
from becl.runs.sums import read_checked, write_group

KEPT = ("csv", "npz", "safetensors")  # The JSON comes last, as in training.


def take_over(study: Study, out: Path, folders: Sequence[Path]) -> int:
    """Copies every missing seed from the first folder that has it; returns how many were copied."""
    sources = [(folder, suitable(study, folder)) for folder in folders]
    taken = 0
    for label, seed in unfinished(study, out):
        for folder, theirs in sources:
            twin = next((name for name, run in theirs.runs.items() if run == study.runs[label]), None)
            if twin is not None and is_whole(folder, twin, seed):
                copy(study, (folder, twin), (out, label), seed)
                taken += 1
                break
    return taken


def suitable(study: Study, folder: Path) -> Study:
    """The study in a folder; refuses one of whose seeds none could be reused."""
    theirs = load_study(folder, seeds=())
    if theirs.cycles != study.cycles:
        raise UserError(f"--reuse {folder}: its runs have {theirs.cycles:,} cycles, these have {study.cycles:,}")
    if study.mine_iterations and theirs.mine_iterations != study.mine_iterations:
        raise UserError(
            f"--reuse {folder}: it has no MINE with {study.mine_iterations:,} iterations, which {study.kind} needs"
        )
    if not any(run in study.runs.values() for run in theirs.runs.values()):
        raise UserError(f"--reuse {folder}: none of its runs is one of these: {', '.join(study.runs)}")
    finished(theirs, folder)  # Says what is damaged.
    return theirs


def is_whole(folder: Path, label: str, seed: int) -> bool:
    return all(seed_path(folder, label, seed, suffix).exists() for suffix in (*KEPT, "json"))


def copy(study: Study, source: tuple[Path, str], target: tuple[Path, str], seed: int) -> None:
    """Copies one seed's files, under the run's name here, without numbers that this study does not have."""
    inside(*target).mkdir(exist_ok=True)
    files = {suffix: read_checked(seed_path(*source, seed, suffix)) for suffix in KEPT}
    result = json.loads(read_checked(seed_path(*source, seed, "json"))) | {"label": target[1]}
    if not study.mine_iterations:
        result.pop("mine", None)
    files["json"] = json.dumps(result, indent=1).encode() + b"\n"
    write_group({seed_path(*target, seed, suffix): data for suffix, data in files.items()})
