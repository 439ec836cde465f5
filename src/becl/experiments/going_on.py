"""A finished pretraining that goes on: with more steps, or with more seeds.

More steps begin at the last snapshots. Networks are what they were; optimisers, the replay, the statistics that scale
rewards and the count of visited cells begin anew, and nothing is learned until the replay has as many steps as there
were random ones at the beginning: what follows is close to a longer run, not equal to one.

More seeds are trained in the folder `more` of the run's, as a run of their own. Once that is finished, its files become
those of the run. Whatever stops it, the same command goes on: `more` is removed last.
"""

import contextlib
import csv
import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from becl.errors import UserError
from becl.experiments.pretraining import Pretraining, check, load_pretraining
from becl.experiments.snapshots import load_snapshot, snapshot_path
from becl.learning.offpolicy import RunState
from becl.runs.checkpoint import Checkpoints
from becl.runs.folder import kept_snapshots, read_config, to_csv
from becl.runs.inside import inside
from becl.runs.lock import locked
from becl.runs.result import identity, read_result
from becl.runs.sums import SUMS, read_checked_text, write_checked
from becl.seeds import seeds_named

MORE = "more"


# --- More steps -------------------------------------------------------------------------------------------------------


def with_steps(folder: Path, before: Pretraining, steps: int) -> Pretraining:
    """A finished run with more steps; nothing is written yet. A run that has as many already is what it was."""
    if steps == before.steps:
        return before
    if steps < before.steps:
        raise UserError(f"--steps {steps:,}: {folder} has {before.steps:,} steps already; more are needed to go on")
    if read_result(folder) is None:
        raise UserError(
            f"--steps {steps:,}: {folder} has not finished its {before.steps:,} steps; becl resume {folder} goes on "
            "with these first"
        )
    after = dataclasses.replace(before, steps=steps, went_on=(*before.went_on, before.steps))
    check(after)
    for seed in before.seeds:
        if not (path := snapshot_path(folder, seed, before.steps)).is_file():
            raise UserError(f"--steps {steps:,}: {path}, from which seed {seed} would go on, is missing")
    return after


def note_steps(folder: Path, after: Pretraining) -> None:
    """Makes a folder that of the longer run. The result in it is of a shorter one, and so says nothing any more."""
    plugins = read_config(folder).get("plugins")
    config = after.config() | ({"plugins": plugins} if plugins else {})
    with locked(folder):
        Checkpoints(folder / "checkpoint", {}).clear()  # Of a run that was killed as it ended.
        write_checked(folder / "config.json", json.dumps(config, indent=1) + "\n")


def continued(pretraining: Pretraining, folder: Path, state: RunState) -> RunState:
    """The state of all seeds with the networks that they went on from."""
    step = pretraining.went_on[-1]
    loaded = [load_snapshot(pretraining, snapshot_path(folder, seed, step)) for seed in pretraining.seeds]
    learner, objective = jax.tree.map(lambda *leaves: jnp.stack(leaves), *loaded)
    return state._replace(learner=learner, objective=objective)


def seconds_before(folder: Path) -> float:
    """What the shorter run took."""
    try:
        return float(json.loads(read_checked_text(folder / "result.json"))["seconds"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return 0.0


def check_not_over(pretraining: Pretraining, folder: Path, force: bool = False) -> None:
    """Refuses to train a finished run again whose result.json is gone, unless this is wanted.

    A run that was killed as it ended left its lock; one that was stopped or failed, a checkpoint or no last networks.
    """
    killed = os.path.lexists(folder / "lock")
    if force or killed or any(inside(folder, "checkpoint").glob("step-*.json")):
        return
    if os.path.lexists(folder / "result.json"):  # Of this run or another; `read_result` says so.
        return
    if kept := [seed for seed in pretraining.seeds if pretraining.steps in kept_snapshots(folder, seed)]:
        raise UserError(
            f"{folder} has the networks of the last step of {seeds_named(kept)} but no result.json and no checkpoint; "
            f"to train it from the beginning, over them, add --force to becl resume {folder}"
        )


# --- More seeds -------------------------------------------------------------------------------------------------------


def with_seeds(folder: Path, before: Pretraining, seeds: Sequence[int]) -> Pretraining:
    """The seeds that a finished run does not have yet, as a run of their own."""
    if read_result(folder) is None:
        raise UserError(f"--seeds: {folder} is not finished; becl resume {folder} goes on with its own seeds first")
    if before.went_on:
        raise UserError(
            f"--seeds: {folder} has gone on from its snapshots, which new seeds would not; "
            "pretrain them in a folder of their own"
        )
    new = tuple(seed for seed in seeds if seed not in before.seeds)
    if not new:
        raise UserError(f"--seeds: {folder} has {seeds_named(before.seeds)} already")
    return dataclasses.replace(before, seeds=new)


def seeds_under_way(folder: Path) -> Pretraining | None:
    """The additional seeds of a run that are not part of it yet."""
    more = inside(folder, MORE)
    return load_pretraining(more) if more.is_dir() and os.path.lexists(more / "config.json") else None


def take_in(folder: Path) -> None:
    """Makes the finished run in `more` part of the run around it."""
    more = inside(folder, MORE)
    with locked(folder), locked(more):
        before, new = load_pretraining(folder), load_pretraining(more)
        both = dataclasses.replace(before, seeds=(*before.seeds, *(s for s in new.seeds if s not in before.seeds)))
        for seed in new.seeds:
            _move(inside(more, f"seed-{seed}"), inside(folder, f"seed-{seed}"))
            _move(inside(more, "tensorboard", f"seed-{seed}"), inside(folder, "tensorboard", f"seed-{seed}"))
        config, result = read_config(folder), _merged(folder, more, before, both)
        write_checked(folder / "metrics.csv", _table(folder, more, both))
        write_checked(folder / "config.json", json.dumps(config | {"seeds": list(both.seeds)}, indent=1) + "\n")
        write_checked(folder / "result.json", json.dumps(result | identity(folder), indent=1) + "\n")
        for name in ("metrics.csv", "result.json", "config.json", SUMS):
            inside(more, name).unlink(missing_ok=True)
    for empty in (more / "tensorboard", more / "checkpoint", more):
        with contextlib.suppress(OSError):  # Files of others stay, and the folder with them.
            empty.rmdir()


def _merged(folder: Path, more: Path, before: Pretraining, both: Pretraining) -> dict[str, Any]:
    """The result of a run and of its additional seeds together."""
    one, other = (json.loads(read_checked_text(place / "result.json")) for place in (folder, more))
    if len(both.seeds) == len(before.seeds):  # It was taken in already, and this stopped before the end.
        return one
    seconds = one["seconds"] + other["seconds"]
    rate = both.steps * len(both.seeds) / max(seconds, 0.1)
    return one | {"seconds": round(seconds, 1), "steps_per_second": round(rate, 1)}


def _table(folder: Path, more: Path, both: Pretraining) -> str:
    """metrics.csv of all seeds, in the order in which they would have been written together."""
    place = {str(seed): number for number, seed in enumerate(both.seeds)}
    texts = [read_checked_text(one / "metrics.csv").splitlines() for one in (folder, more)]
    rows = {(int(row["step"]), place[row["seed"]]): row for text in texts for row in csv.DictReader(text)}
    return to_csv([rows[key] for key in sorted(rows)])


def _move(source: Path, target: Path) -> None:
    """Moves a folder; one that was moved already stays."""
    if source.is_dir() and not target.exists():
        target.parent.mkdir(exist_ok=True)
        source.rename(target)
