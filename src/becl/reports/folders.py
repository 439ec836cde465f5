"""What the folders of runs hold: scores of `becl finetune`, and what `becl pretrain` and `becl evaluate` left behind.

Read and checked here, line by line; nothing is compared yet.
"""

import csv
import itertools
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from becl.errors import UserError, printable
from becl.reports.names import domain_of, listed
from becl.runs.folder import check_printable
from becl.runs.metrics import read_metrics, read_study
from becl.runs.sums import read_checked_text
from becl.sharing import shared_command

Json = dict[str, Any]


class LeftOut(NamedTuple):
    """Something given that is not in the report."""

    what: str
    why: str


class Curve(NamedTuple):
    """Evaluations in one run of finetuning; the last is its score where nothing better was measured."""

    steps: Float[np.ndarray, " points"]
    returns: Float[np.ndarray, " points"]
    skill: str
    """The number of the skill in the last evaluation, if it had one."""


class Final(NamedTuple):
    """Mean return in the end, over more episodes than a point of the curve has."""

    value: float
    error: float
    """Standard error of the evaluation itself; not a number with one episode."""
    episodes: int


class TaskOutcome(NamedTuple):
    """What one seed of a configuration does on a task."""

    folder: Path
    command: str
    by_skill: dict[int | None, Curve]
    """One curve by None, except where every skill was finetuned."""
    final: Mapping[int | None, Final] = {}
    """By the same skills; empty in runs of earlier versions."""

    @property
    def score(self) -> float:
        """Return at the end; where every skill was finetuned, what a skill drawn at random gives on average."""
        return float(np.mean([self.score_of(skill) for skill in self.by_skill]))

    def score_of(self, skill: int | None) -> float:
        """The final score, or the curve's last point in runs that have none."""
        return self.final[skill].value if skill in self.final else float(self.by_skill[skill].returns[-1])

    @property
    def curve_score(self) -> float:
        """The last point of the curve, over fewer episodes."""
        return float(np.mean([curve.returns[-1] for curve in self.by_skill.values()]))

    @property
    def error(self) -> float:
        """Standard error of the evaluation behind the score; not a number where it is not known."""
        if not self.by_skill.keys() <= self.final.keys():
            return math.nan
        return float(np.sqrt(np.mean([one.error**2 for one in self.final.values()]) / len(self.final)))


class FinetuningFolder(NamedTuple):
    """A folder of `becl finetune`."""

    path: Path
    config: Json
    result: Json
    outcomes: dict[tuple[str, int], TaskOutcome]
    """By task and seed."""


class ZeroShot(NamedTuple):
    """Returns of skills without training, from one file of `becl evaluate`."""

    snapshot: int
    command: str
    rows: dict[tuple[int, str, str], float]
    """By seed, skill (empty where there is none) and task."""


class PretrainingFolder(NamedTuple):
    """A folder of `becl pretrain`."""

    path: Path
    config: Json
    command: str
    metrics: Json | None
    zero_shot: list[ZeroShot]
    """In the order of snapshots."""
    skills: dict[int, list[dict[str, str]]]
    """Rows about a snapshot's skills, one per seed."""
    chance: float | None = None
    """The reward that says nothing was learned, in runs whose result has it."""


class StudyFolder(NamedTuple):
    """A folder of `becl maze`."""

    path: Path
    kind: str
    summary: Json
    """By run: its seeds, and mean and standard deviation of each number."""
    curves: dict[str, Json]
    """By run: `seed`, `cycle`, and columns [seeds, points]."""


def find_folders(places: Sequence[Path]) -> tuple[list[Path], list[LeftOut]]:
    """Run folders in the order given, those below a place by name; none twice."""
    found: dict[Path, Path] = {}
    left_out = []
    for place in places:
        below = []
        for path, inner, files in os.walk(place):
            if "config.json" in files:
                below.append(Path(path))
                inner.clear()
            inner.sort()
        for path in below:
            found.setdefault(path.resolve(), path)
        if not place.exists():
            left_out.append(LeftOut(str(place), "does not exist"))
        elif not below:
            why = "no run in it (no config.json)" if place.is_dir() else "a file, not a folder of a run"
            left_out.append(LeftOut(str(place), why))
    return list(found.values()), left_out


def read_json(path: Path) -> Json:
    try:
        data = json.loads(read_checked_text(path))
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"{path.name}: {error.strerror}") from None
    except ValueError:
        raise UserError(f"{path.name} is damaged") from None
    if not isinstance(data, dict):
        raise UserError(f"{path.name} is damaged")
    check_printable(data, Path(path.name))
    return data


def read_table(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """Rows of a CSV with at least these columns; a line that is still being written does not count."""
    try:
        text = read_checked_text(path)
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"{path.name}: {error.strerror}") from None
    except ValueError:
        raise UserError(f"{path.name} is damaged: not text") from None
    if printable(text) != text:
        raise UserError(f"{path.name} is damaged: it has control characters")
    reader = csv.DictReader(text[: text.rfind("\n") + 1].splitlines(), restval="?")
    try:
        rows, found = list(reader), reader.fieldnames or []
    except csv.Error as error:
        raise UserError(f"{path.name} is damaged: {error}") from None
    if missing := [name for name in columns if name not in found]:
        raise UserError(f"{path.name} is damaged: no column {missing[0]}")
    if any(reader.restkey in row for row in rows):
        raise UserError(f"{path.name} is damaged: a line has more values than there are columns")
    return rows


def command_of(result: Json) -> str:
    command = result.get("command")
    return (isinstance(command, str) and shared_command(command)) or "not recorded"


def read_finetuning(path: Path, config: Json) -> tuple[FinetuningFolder, list[LeftOut]]:
    """The finished scores of a folder, and which of its tasks and seeds have none."""
    check_config(config, env=str, method=str, tasks=list, steps=int, skill=str, snapshot=int | None)
    domain = domain_of(config["env"])
    for task in config["tasks"]:
        if domain_of(str(task)) != domain:
            raise UserError(f"config.json is damaged: task {task} does not belong to {domain}")
    result = read_json(path / "result.json") if (path / "result.json").exists() else {}
    curves = read_scores(path / "scores.csv", config)
    finals = read_finals(path / "final.csv", config) if (path / "final.csv").exists() else {}
    outcomes: dict[tuple[str, int], TaskOutcome] = {}
    unfinished: dict[str, list[str]] = {}
    for task, seed in itertools.product(config["tasks"], config["seeds"]):
        by_skill = curves.get((task, seed), {})
        if why := _why_unfinished(config, by_skill):
            unfinished.setdefault(why, []).append(f"{task} seed {seed}")
        else:
            outcomes[task, seed] = TaskOutcome(path, command_of(result), by_skill, finals.get((task, seed), {}))
    left_out = [LeftOut(str(path), f"{listed(which)}: {why}") for why, which in unfinished.items()]
    return FinetuningFolder(path, config, result, outcomes), left_out


def check_config(config: Json, **kinds: type | UnionType) -> None:
    """Checks seeds, and that the other names have values of their kind that are not empty."""
    for name, kind in kinds.items():
        if not isinstance(config.get(name), kind) or config[name] in ("", []):
            raise UserError(f"config.json is damaged: {name} is {config.get(name)!r}")
    seeds = config.get("seeds")
    if not isinstance(seeds, list) or not seeds or not all(isinstance(seed, int) for seed in seeds):
        raise UserError(f"config.json is damaged: seeds is {seeds!r}")


def read_scores(path: Path, config: Json) -> dict[tuple[str, int], dict[int | None, Curve]]:
    """Curves by task and seed, then by skill where every skill was finetuned."""
    points: dict[tuple[str, int], dict[int | None, dict[int, tuple[float, str]]]] = {}
    for number, one in _read_evaluations(path, config, ()):
        evaluations = points.setdefault((one.task, one.seed), {}).setdefault(one.skill, {})
        if one.step in evaluations:
            raise UserError(
                f"{path.name} is damaged in line {number}: step {one.step} of {one.task} seed {one.seed} again"
            )
        evaluations[one.step] = one.value, one.row["skill"]
    return {
        unit: {skill: _curve(evaluations) for skill, evaluations in by_skill.items()}
        for unit, by_skill in points.items()
    }


def read_finals(path: Path, config: Json) -> dict[tuple[str, int], dict[int | None, Final]]:
    """Final scores by task and seed, then by skill where every skill was finetuned."""
    finals: dict[tuple[str, int], dict[int | None, Final]] = {}
    for number, one in _read_evaluations(path, config, ("stderr", "episodes")):
        by_skill = finals.setdefault((one.task, one.seed), {})
        if one.skill in by_skill:
            raise UserError(f"{path.name} is damaged in line {number}: {one.task} seed {one.seed} again")
        if one.step != config["steps"]:
            raise UserError(f"{path.name} is damaged in line {number}: step {one.step} of {config['steps']}")
        try:
            error, episodes = float(one.row["stderr"] or "nan"), int(one.row["episodes"])
        except ValueError:
            raise UserError(f"{path.name} is damaged in line {number}") from None
        by_skill[one.skill] = Final(one.value, error, episodes)
    return finals


class _Evaluation(NamedTuple):
    task: str
    seed: int
    skill: int | None
    """Where every skill was finetuned."""
    step: int
    value: float
    row: dict[str, str]


def _read_evaluations(path: Path, config: Json, more: Sequence[str]) -> Iterator[tuple[int, _Evaluation]]:
    """Rows of scores.csv or final.csv, checked, with their lines in the file; `more` columns must be there."""
    every_skill = config["skill"] == "each"
    columns = ("task", "seed", "skill", "step", "return", *more)
    for number, row in enumerate(read_table(path, columns), start=2):
        try:
            task, seed, step, value = row["task"], int(row["seed"]), int(row["step"]), float(row["return"])
            skill = int(row["skill"]) if every_skill else None
        except ValueError:
            raise UserError(f"{path.name} is damaged in line {number}") from None
        if task not in config["tasks"] or seed not in config["seeds"]:
            raise UserError(f"{path.name} is damaged in line {number}: the run has no {task} seed {seed}")
        if not math.isfinite(value):
            raise UserError(f"{path.name} is damaged in line {number}: return is {value}")
        yield number, _Evaluation(task, seed, skill, step, value, row)


def _curve(evaluations: Mapping[int, tuple[float, str]]) -> Curve:
    steps = sorted(evaluations)
    returns = [evaluations[step][0] for step in steps]
    return Curve(np.array(steps, float), np.array(returns), evaluations[steps[-1]][1])


def _why_unfinished(config: Json, by_skill: Mapping[int | None, Curve]) -> str:
    """Empty where there is a score."""
    steps = config["steps"]
    if not by_skill:
        return "not begun"
    last = min(int(curve.steps[-1]) for curve in by_skill.values())
    if last != steps:
        return f"unfinished, step {last:,} of {steps:,}"
    count = _skill_count(config)
    if config["skill"] == "each" and count is not None and len(by_skill) != count:
        return f"unfinished, {len(by_skill)} of {count} skills"
    return ""


def _skill_count(config: Json) -> int | None:
    try:
        return int((config.get("pretraining") or config)["run"]["objective"]["skills"]["dim"])
    except (KeyError, TypeError, ValueError):
        return None


def read_pretraining(path: Path, config: Json) -> tuple[PretrainingFolder, list[LeftOut]]:
    """Metrics and evaluations of a folder, those that are there and whole."""
    check_config(config, env=str, method=str)
    left_out = []
    metrics, zero_shot, skills = None, [], {}
    chance = None
    try:
        result = read_json(path / "result.json")
        command, chance = command_of(result), result.get("chance_reward")
    except UserError:
        command = "not recorded (unfinished)"
    try:
        metrics = read_metrics(path)
    except UserError as error:
        left_out.append(LeftOut(str(path / "metrics.csv"), str(error)))
    for file in sorted((path / "evaluation").glob("*.csv")):
        kind, _, snapshot = file.stem.rpartition("-")
        try:
            if kind == "zero-shot" and snapshot.isdecimal():
                zero_shot.append(read_zero_shot(file, int(snapshot), domain_of(config["env"])))
            elif kind == "skills" and snapshot.isdecimal():
                skills[int(snapshot)] = read_rows(file, ("seed",))
        except UserError as error:
            left_out.append(LeftOut(str(file), str(error)))
    zero_shot.sort(key=lambda one: one.snapshot)
    chance = chance if isinstance(chance, float) else None
    return PretrainingFolder(path, config, command, metrics, zero_shot, skills, chance), left_out


def read_study_folder(path: Path, config: Json) -> StudyFolder:
    """What a maze study has summed up of its finished seeds."""
    runs = config["runs"]
    if not isinstance(runs, dict):
        raise UserError("config.json is damaged")
    summary = read_json(path / "summary.json")
    known = {label: row for label, row in summary.items() if label in runs and isinstance(row, dict)}
    if not known or not all(isinstance(row.get("seeds"), list) for row in known.values()):
        raise UserError("summary.json is damaged, or no seed is finished")
    return StudyFolder(path, str(config["study"]), known, read_study(path, list(known)))


def read_rows(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """Reads a table as `read_table` does; the file must have a row."""
    if rows := read_table(path, columns):
        return rows
    raise UserError(f"{path.name} has no rows")


def read_zero_shot(path: Path, snapshot: int, domain: str) -> ZeroShot:
    rows: dict[tuple[int, str, str], float] = {}
    for number, row in enumerate(read_rows(path, ("seed", "skill", "task", "return")), start=2):
        try:
            key, value = (int(row["seed"]), row["skill"], row["task"]), float(row["return"])
        except ValueError:
            raise UserError(f"{path.name} is damaged in line {number}") from None
        if domain_of(row["task"]) != domain or not math.isfinite(value) or key in rows:
            raise UserError(f"{path.name} is damaged in line {number}")
        rows[key] = value
    if len(rows) != math.prod(len(set(values)) for values in zip(*rows, strict=True)):
        raise UserError(f"{path.name} is damaged: not every seed has every skill on every task")
    result = path.with_name(f"result-{snapshot}.json")
    return ZeroShot(snapshot, command_of(read_json(result) if result.exists() else {}), rows)
