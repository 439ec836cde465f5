"""`becl evaluate`: measures the skills of a pretrained run on all tasks of its domain, without training.

It writes into the run's folder, or where --out says:

    zero-shot-<snapshot>.csv    seed, skill, task, return, stderr
    per-skill-<snapshot>.csv    one row per seed and skill
    skills-<snapshot>.csv       one row per seed
    result-<snapshot>.json      what was evaluated and how; written last
"""

import json
import platform
import shlex
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from becl.envs.external import is_external
from becl.errors import UserError, unknown
from becl.experiments.environments import check_here, position_of
from becl.experiments.pretraining import Pretraining, load_pretraining
from becl.experiments.settings import check_positive, check_seeds
from becl.experiments.snapshots import load_snapshot, snapshot_path
from becl.invocation import own_version
from becl.measure.skills import SQUARE, STARTS, per_skill, rollout, sets_of, skills_of, summary, tasks_of, zero_shot
from becl.measure.verdicts import judge_accuracy, with_error
from becl.options import EvaluateOptions
from becl.runs.compiling import progress
from becl.runs.folder import check_place, choose_snapshot, six_digits, to_csv, trust_folder
from becl.runs.log import readable
from becl.runs.progress import counted
from becl.runs.sums import write_group
from becl.runs.writing import make_folder
from becl.seeds import seeds_text
from becl.sharing import shared_command
from becl.skills import SkillSpace
from becl.terminal import console, table

Row = dict[str, Any]


class Request(NamedTuple):
    """A command resolved and checked."""

    pretraining: Pretraining
    folder: Path
    snapshot: int
    seeds: list[int]
    tasks: list[str]
    vectors: np.ndarray
    names: list[Any]
    """Numbers of the skills; one empty text if there are none."""
    episodes: int
    out: Path
    position: tuple[int, ...] = ()
    square: float = SQUARE


class Evaluation(NamedTuple):
    """Rows of the three tables."""

    zero_shot: list[Row]
    per_skill: list[Row]
    skills: list[Row]


def measure(options: EvaluateOptions) -> Evaluation:
    """Does what a command asks for: evaluates, writes the tables, prints them in short."""
    request = resolve(options)
    skills, episodes = counted(len(request.names), "skill"), counted(request.episodes, "episode")
    seeds = f"seeds {_listed(request.seeds)}"
    announce(request.pretraining, request.snapshot, request.out, seeds, skills, episodes)
    began = time.perf_counter()
    measured = evaluate(request)
    write(request, measured, time.perf_counter() - began, command_line(options))
    show(request, measured)
    return measured


def announce(pretraining: Pretraining, snapshot: int, out: Path, *counts: str) -> None:
    """Says what is about to be played, and where the tables will be."""
    where = f"{pretraining.method} on {pretraining.env} at {snapshot:,} steps"
    print(f"{where} · {' × '.join(counts)} · {out}/", flush=True)


# --- Before the work --------------------------------------------------------------------------------------------------


def resolve(options: EvaluateOptions) -> Request:
    """Turns options into a request; refuses what cannot be measured, and writes nothing."""
    if options.trust:
        trust_folder(options.run)
    pretraining = load_pretraining(options.run)
    if options.episodes < 1:
        raise UserError(f"--episodes {options.episodes}: at least 1 is needed")
    seeds = seeds_of(options.run, pretraining.seeds, options.seeds)
    snapshot = choose_snapshot(options.run, seeds, options.snapshot)
    tasks = choose_tasks(pretraining.env, options.task)
    vectors, names = choose_skills(pretraining.method, pretraining.run.objective.skills, options.skills)
    out = options.out or options.run / "evaluation"
    check_place(out)
    check_here(pretraining.env, pretraining.run)
    check_positive({"--square": options.square})
    position = position_of(pretraining.env, options.position)
    return Request(
        pretraining,
        options.run,
        snapshot,
        seeds,
        tasks,
        vectors,
        names,
        options.episodes,
        out,
        position,
        options.square,
    )


def seeds_of(folder: Path, own: Sequence[int], wanted: Sequence[int] | None) -> list[int]:
    """The seeds asked for, or all."""
    seeds = list(own if wanted is None else wanted)
    if other := [seed for seed in seeds if seed not in own]:
        raise UserError(f"--seeds: {folder} has no seed {other[0]}; it has {_listed(own)}")
    check_seeds(seeds)
    return seeds


def choose_seed(folder: Path, seeds: Sequence[int], wanted: int | None) -> int:
    """The seed that was asked for, or the first."""
    if wanted is None:
        return seeds[0]
    if wanted not in seeds:
        raise UserError(f"--seed {wanted}: {folder} has {', '.join(map(str, seeds))}")
    return wanted


def choose_tasks(env: str, wanted: Sequence[str]) -> list[str]:
    allowed = tasks_of(env)
    if tuple(wanted) == ("all",):
        return allowed
    if not wanted:
        raise UserError("--task: at least one is needed, or all")
    if not allowed:
        raise UserError(f"--task {wanted[0]}: {env} is a maze and has no tasks")
    if allowed == [env]:  # Somebody else's environment.
        raise UserError(f"--task {wanted[0]}: {env} has one task, its own reward; leave it out")
    for task in wanted:
        if task not in allowed:
            raise unknown(f"task of {env.partition('_')[0]}", task, [*allowed, "all"])
    return list(dict.fromkeys(wanted))


def choose_skills(method: str, space: SkillSpace, wanted: Sequence[int]) -> tuple[np.ndarray, list[Any]]:
    """Vectors of the skills that were asked for, or of all, and their numbers."""
    vectors = skills_of(space)
    if not space.dim:
        if wanted:
            raise UserError(f"--skills {wanted[0]}: {method} has no skills")
        return vectors, [""]
    for skill in wanted:
        if not 0 <= skill < len(vectors):
            raise UserError(f"--skills {skill}: the run has skills 0 to {len(vectors) - 1}")
        if wanted.count(skill) > 1:
            raise UserError(f"--skills: {skill} given more than once")
    names = list(wanted) or list(range(len(vectors)))
    return vectors[names], names


def command_line(options: EvaluateOptions) -> str:
    """The command as it could be typed."""
    words = ["becl", "evaluate", str(options.run), "--episodes", str(options.episodes)]
    words += [] if options.snapshot is None else ["--snapshot", str(options.snapshot)]
    words += [] if options.task == ("all",) else ["--task", *options.task]
    words += ["--skills", *map(str, options.skills)] if options.skills else []
    words += [] if options.seeds is None else ["--seeds", seeds_text(options.seeds)]
    words += [] if options.position is None else ["--position", position_text(options.position)]
    words += [] if options.square == SQUARE else ["--square", f"{options.square:g}"]
    words += [] if options.out is None else ["--out", str(options.out)]
    return str(shared_command(shlex.join(words)))


def position_text(given: str | Sequence[int]) -> str:
    return given if isinstance(given, str) else ",".join(map(str, given))


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


# --- The work ---------------------------------------------------------------------------------------------------------


def evaluate(request: Request) -> Evaluation:
    """Rolls out and measures one seed after another."""
    pretraining, names = request.pretraining, request.names
    # All snapshots are read first, so that a damaged one shows before time is spent.
    actors = [load_snapshot(pretraining, snapshot_path(request.folder, seed, request.snapshot))[0].actor
              for seed in request.seeds]  # fmt: skip
    steps = len(names) * request.episodes * pretraining.run.env.episode_length * len(sets_of(request.tasks))
    measured = Evaluation([], [], [])
    with progress(steps * len(actors), "steps") as bar:
        for seed, actor in zip(request.seeds, actors, strict=True):
            bar.note = f"seed {seed}"
            done = rollout(actor, pretraining.env, request.vectors, request.episodes, tasks=request.tasks,
                           episode_length=pretraining.episode_length, advance=bar.advance,
                           vision=pretraining.run.vision, position=request.position)  # fmt: skip
            each = per_skill(done, pretraining.env, names, request.square)
            measured.zero_shot.extend({"seed": seed, **row} for row in zero_shot(done, names))
            measured.per_skill.extend({"seed": seed, **row} for row in each)
            measured.skills.append({"seed": seed, **summary(done, pretraining.env, request.square)})
    return measured


def write(request: Request, measured: Evaluation, seconds: float, line: str) -> None:
    """Writes the tables, then the JSON that says what was evaluated."""
    pretraining, out = request.pretraining, request.out
    result = {
        "command": line,
        "env": pretraining.env,
        "method": pretraining.method,
        "snapshot": request.snapshot,
        "seeds": request.seeds,
        "skills": [name for name in request.names if name != ""],
        "tasks": request.tasks,
        "episodes": request.episodes,
        **({"square": request.square, "position": list(request.position)} if is_external(pretraining.env) else {}),
        "starts": STARTS,
        "seconds": round(seconds, 1),
        "becl": own_version(),
        **{name: version(name) for name in ("jax", "mujoco", "numpy")},
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    tables = {"zero-shot": measured.zero_shot, "per-skill": measured.per_skill, "skills": measured.skills}
    about = out / f"result-{request.snapshot}.json"
    try:
        make_folder(out)
        about.unlink(missing_ok=True)  # It may be from an earlier evaluation.
        paths = {out / f"{name}-{request.snapshot}.csv": rows for name, rows in tables.items()}
        for path in [path for path, rows in paths.items() if not rows]:
            path.unlink(missing_ok=True)  # A maze has no tasks.
        files = {path: table_text(rows) for path, rows in paths.items() if rows}
        write_group(files | {about: json.dumps(result, indent=1) + "\n"})
    except OSError as error:
        raise UserError(f"cannot write in {out}: {error.strerror}") from None


def table_text(rows: list[Row]) -> str:
    columns = dict.fromkeys(name for row in rows for name in row)
    return to_csv([six_digits({name: row.get(name, "") for name in columns}) for row in rows])


HEADINGS = {
    "seed": "seed",
    "cells": "cells",
    "coverage": "coverage",
    "cells_per_skill": "cells per skill",
    "squares": "squares",
    "squares_per_skill": "squares per skill",
    "entropy": "H(S)",
    "mutual_information": "I(S;Z)",
    "chance_information": "by chance",
    "knn_accuracy": "accuracy",
    "centroid_accuracy": "by centroid",
    "distance": "distance",
    "speed": "speed",
    "length": "steps",
    "joint_speed": "joint speed",
    "still": "still",
    "diverged": "diverged",
}


def show(request: Request, measured: Evaluation) -> None:
    """Prints the tables in short on the terminal."""
    if measured.zero_shot:
        columns = ("seed", "task", "best skill", "its return", "mean", "worst")
        console().print(table("return of single skills, without training", columns, best_rows(measured.zero_shot)))
    count = len(request.names)
    hidden = {"diverged"} if not any(row.get("diverged") for row in measured.skills) else set()
    columns = [name for name in HEADINGS if name in measured.skills[0] and name not in hidden]
    rows = [[_cell(row[name]) for name in columns] for row in measured.skills]
    title = "all skills together" + (f"; guessing has an accuracy of {1 / count:.2g}" if count > 1 else "")
    console().print(table(title, [HEADINGS[name] for name in columns], rows))
    print(f"tables of every skill: {request.out}/*-{request.snapshot}.csv")
    print(*verdict_lines(request, measured), sep="\n")


def verdict_lines(request: Request, measured: Evaluation) -> list[str]:
    """Says whether skills can be told apart, and what to do next; with a single skill, only the latter."""
    count, folder = len(request.names), shlex.quote(str(request.folder))
    if count == 1:
        return [f"next: becl finetune {folder}"]
    if request.episodes == 1:
        return ["one episode per skill cannot show whether skills can be told apart: --episodes 10"]
    accuracy = np.array([float(row["knn_accuracy"]) for row in measured.skills])
    verdict = judge_accuracy(accuracy, count, request.episodes)
    if verdict.learned:
        note = "networks that were never trained may be above chance too: see docs/evaluation.md"
        return [f"{verdict.sentence} ({note})", f"look at them: becl gallery {folder}"]
    return [verdict.sentence, f"did the run learn anything? becl plot {folder}"]


def best_rows(zero_shot: list[Row]) -> list[tuple[Any, ...]]:
    """Best, mean and worst over skills, one row per seed and task."""
    found: dict[tuple[Any, Any], list[Row]] = {}
    for row in zero_shot:
        found.setdefault((row["seed"], row["task"]), []).append(row)
    rows = []
    for (seed, task), group in found.items():
        best = max(group, key=lambda row: row["return"])
        mean = sum(row["return"] for row in group) / len(group)
        worst = min(row["return"] for row in group)
        its = with_error(best["return"], best["stderr"])
        rows.append((seed, task, best["skill"], its, readable(mean), readable(worst)))
    return rows


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "" if value != value else f"{value:.2f}"
    return str(value)
