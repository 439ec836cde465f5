"""What a report is about: runs read from their folders, merged into configurations that have a name and are compared.

Nothing here is drawn or written, and what cannot be read is left out by name.
"""

import csv
import itertools
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from becl.errors import UserError
from becl.measure.published import EXPERT
from becl.plugins import missing_plugin
from becl.specs import upgraded

Json = dict[str, Any]

# --- Reading ----------------------------------------------------------------------------------------------------------


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


class Outcome(NamedTuple):
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


class Folder(NamedTuple):
    """A folder of `becl finetune`."""

    path: Path
    config: Json
    result: Json
    outcomes: dict[tuple[str, int], Outcome]
    """By task and seed."""


class ZeroShot(NamedTuple):
    """Returns of skills without training, from one file of `becl evaluate`."""

    snapshot: int
    command: str
    rows: dict[tuple[int, str, str], float]
    """By seed, skill (empty where there is none) and task."""


class Pretraining(NamedTuple):
    """A folder of `becl pretrain`."""

    path: Path
    config: Json
    command: str
    metrics: Json | None
    zero_shot: list[ZeroShot]
    """In the order of snapshots."""
    skills: dict[int, list[dict[str, str]]]
    """Rows about a snapshot's skills, one a seed."""


@dataclass
class Configuration:
    """Everything with the same options, of any seed and on any task."""

    method: str
    options: Json
    label: str = ""
    folders: list[Folder] = field(default_factory=list)
    outcomes: dict[str, dict[int, Outcome]] = field(default_factory=dict)
    """By task and seed, both in order."""

    def scores(self, task: str) -> Float[np.ndarray, " seeds"]:
        return np.array([outcome.score for outcome in self.outcomes[task].values()])


class Found(NamedTuple):
    """All that was given, sorted."""

    configurations: list[Configuration]
    pretrainings: list[Pretraining]
    left_out: list[LeftOut]
    warnings: list[str]


def collect(places: Sequence[Path]) -> Found:
    """Reads every run in the places; what is damaged, unfinished or not comparable is left out by name."""
    paths, left_out = find_folders(places)
    folders: list[Folder] = []
    pretrainings: list[Pretraining] = []
    warnings: list[str] = []
    for path in paths:
        try:
            config = upgraded(read_json(path / "config.json"))
            if line := missing_plugin(config):
                warnings.append(f"{path}: {line}")
            if config.get("command") == "finetune":
                folder, missing = read_finetuning(path, config)
                if folder.outcomes:
                    folders.append(folder)
                if folder.outcomes and not folder.result:
                    warnings.append(f"{path} has no result.json: not finished, command unknown")
            elif config.get("command") == "pretrain":
                pretraining, missing = read_pretraining(path, config)
                pretrainings.append(pretraining)
            else:
                raise UserError("holds neither a finetuning nor a pretraining run")
        except UserError as error:
            missing = [LeftOut(str(path), str(error))]
        left_out += missing
    configurations = merge(folders)
    left_out += not_compared(configurations)
    return Found(configurations, pretrainings, left_out, warnings + different_versions(folders))


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
        data = json.loads(path.read_text())
    except OSError as error:
        raise UserError(f"{path.name}: {error.strerror}") from None
    except ValueError:
        raise UserError(f"{path.name} is damaged") from None
    if not isinstance(data, dict):
        raise UserError(f"{path.name} is damaged")
    return data


def read_table(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """Rows of a CSV with at least these columns; a line that is still being written does not count."""
    try:
        text = path.read_text()
    except OSError as error:
        raise UserError(f"{path.name}: {error.strerror}") from None
    except ValueError:
        raise UserError(f"{path.name} is damaged: not text") from None
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
    return result.get("command") or "not recorded"


def read_finetuning(path: Path, config: Json) -> tuple[Folder, list[LeftOut]]:
    """The finished scores of a folder, and which of its tasks and seeds have none."""
    check_config(config, env=str, method=str, tasks=list, steps=int, skill=str, snapshot=int | None)
    domain = domain_of(config["env"])
    for task in config["tasks"]:
        if domain_of(str(task)) != domain:
            raise UserError(f"config.json is damaged: task {task} does not belong to {domain}")
    result = read_json(path / "result.json") if (path / "result.json").exists() else {}
    curves = read_scores(path / "scores.csv", config)
    finals = read_finals(path / "final.csv", config) if (path / "final.csv").exists() else {}
    outcomes: dict[tuple[str, int], Outcome] = {}
    unfinished: dict[str, list[str]] = {}
    for task, seed in itertools.product(config["tasks"], config["seeds"]):
        by_skill = curves.get((task, seed), {})
        if why := _why_unfinished(config, by_skill):
            unfinished.setdefault(why, []).append(f"{task} seed {seed}")
        else:
            outcomes[task, seed] = Outcome(path, command_of(result), by_skill, finals.get((task, seed), {}))
    left_out = [LeftOut(str(path), f"{listed(which)}: {why}") for why, which in unfinished.items()]
    return Folder(path, config, result, outcomes), left_out


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


def read_pretraining(path: Path, config: Json) -> tuple[Pretraining, list[LeftOut]]:
    """Metrics and evaluations of a folder, those that are there and whole."""
    from becl.runs.metrics import read_metrics

    check_config(config, env=str, method=str)
    left_out = []
    metrics, zero_shot, skills = None, [], {}
    try:
        command = command_of(read_json(path / "result.json"))
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
    return Pretraining(path, config, command, metrics, zero_shot, skills), left_out


def read_rows(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """As `read_table`, of a file that must have a row."""
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


def domain_of(env: str) -> str:
    """The robot of a task, or of itself; a maze is its own."""
    from becl.envs import DOMAINS

    first = env.partition("_")[0]
    return first if first in DOMAINS else env


PROGRAMS = ("becl", "jax", "python")


def different_versions(folders: Sequence[Folder]) -> list[str]:
    """A line for each program of which the runs had several versions."""
    lines = []
    for program in PROGRAMS:
        versions = sorted({str(folder.result[program]) for folder in folders if folder.result.get(program)})
        if len(versions) > 1:
            lines.append(f"runs were made by different versions of {program}: {', '.join(versions)}")
    return lines


# --- Configurations ---------------------------------------------------------------------------------------------------

# In the order of the paper's table.
NAMES = {
    "ddpg": "DDPG",
    "icm": "ICM",
    "disagreement": "Disagreement",
    "rnd": "RND",
    "apt": "APT",
    "proto": "ProtoRL",
    "smm": "SMM",
    "diayn": "DIAYN",
    "aps": "APS",
    "dads": "DADS",
    "cic": "CIC",
    "becl": "BeCL",
}
# What does not make a run another configuration: which tasks and seeds, where from, and how often it was looked at.
NOT_OPTIONS = (
    "command", "plugins", "env", "tasks", "seeds", "source", "eval_every", "final_episodes", "log_every", "run.env",
    "pretraining.command", "pretraining.env", "pretraining.seeds", "pretraining.log_every", "pretraining.run.env",
)  # fmt: skip
USUAL = {"snapshot": 2_000_000, "steps": 100_000, "eval_episodes": 10}  # URLB's, with which numbers are published.
SKILLS = "run.objective.skills.dim"
TEMPERATURE = "run.objective.temperature"
FOLLOWED = ("skill", "transfer", "pretraining")  # Options of finetuning's learner follow from these.
FIRST = (
    "pretraining", "skill", "transfer", "snapshot", "steps",
    f"pretraining.{SKILLS}", SKILLS, f"pretraining.{TEMPERATURE}", TEMPERATURE,
)  # fmt: skip
MOST_WORDS = 3  # Differences that a label spells out.


def merge(folders: Sequence[Folder]) -> list[Configuration]:
    """Configurations in the order of the paper's table, with what all folders know of them."""
    by_options: dict[str, Configuration] = {}
    for folder in folders:
        options = options_of(folder.config)
        key = json.dumps(options, sort_keys=True)
        one = by_options.setdefault(key, Configuration(folder.config["method"], options))
        one.folders.append(folder)
        for (task, seed), outcome in folder.outcomes.items():
            seeds = one.outcomes.setdefault(task, {})
            if seed in seeds:
                raise UserError(
                    f"{task} seed {seed} of the same configuration is in {seeds[seed].folder} and in {folder.path}: "
                    "leave one out"
                )
            seeds[seed] = outcome
    merged = list(by_options.values())
    for one, label in zip(merged, labels_of([(one.method, one.options) for one in merged]), strict=True):
        one.label = label
        one.outcomes = {task: dict(sorted(one.outcomes[task].items())) for task in sorted_tasks(one.outcomes)}
    return sorted(merged, key=lambda one: (_rank(one.method), len(one.label), one.label))


def options_of(config: Json) -> Json:
    """What makes a configuration, by dotted path."""
    options = without(dict(_flat(config)), NOT_OPTIONS)
    before = config.get("pretraining")
    if isinstance(before, dict):
        # A domain carries the reward of one task; pretraining on another task is something else.
        env = str(before.get("env", ""))
        options["pretraining.task"] = env.removeprefix(domain_of(env)).strip("_")
    return options


def _flat(data: Json, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in data.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def without(options: Json, paths: Sequence[str]) -> Json:
    """Options that are neither at nor below one of the paths."""
    below = tuple(f"{path}." for path in paths)
    return {path: value for path, value in options.items() if path not in paths and not path.startswith(below)}


def _rank(method: str) -> tuple[int, str]:
    return _place(method.partition("-")[0], tuple(NAMES)), method


def _place(name: str, order: Sequence[str]) -> int:
    """Where a name is, behind the others if it is not there."""
    return order.index(name) if name in order else len(order)


def sorted_tasks(tasks: Iterable[str]) -> list[str]:
    """URLB's order, then any others by name."""
    return sorted(tasks, key=lambda task: (_place(task, tuple(EXPERT)), task))


def all_tasks(configurations: Iterable[Configuration]) -> list[str]:
    return sorted_tasks({task for one in configurations for task in one.outcomes})


def labels_of(configurations: Sequence[tuple[str, Json]]) -> list[str]:
    """A name for each configuration: its method, and what tells it from others of the method.

    An option is mentioned if it varies between the method's configurations and is not the method's default. Where it
    changes what is rewarded, not being the default is enough: such a run is not what the method's name stands for.
    """
    labels = []
    for method, options in configurations:
        same_method = [other for name, other in configurations if name == method]
        usual = _usual(method)
        told = [
            path
            for path, value in options.items()
            if (_varies(path, options, same_method) and not (path in usual and usual[path] == value))
            or (_decides_rewards(path) and path in usual and usual[path] != value)
        ]
        phrases = dict.fromkeys(_phrase(path, options[path]) for path in sorted(told, key=importance))
        words = [word for word in phrases if word]
        shown = words[:MOST_WORDS] + (["…"] if len(words) > MOST_WORDS else [])
        labels.append(", ".join([pretty_method(method), *shown]))
    return _numbered(labels)


def _decides_rewards(path: str) -> bool:
    """Whether an option of pretraining is part of what the method rewards, rather than of sizes and rates."""
    option = path.removeprefix("pretraining.run.")
    if option == path:
        return False
    inner = option.removeprefix("objective.")
    sizes = ("network", "head", "optimizer", "feature_dim", "skills", "spec")
    return option in ("fits_per_update", "replay.released_skill") or (inner != option and not inner.startswith(sizes))


def _varies(path: str, options: Json, same_method: Sequence[Json]) -> bool:
    """Whether other configurations of the method have the option too and with another value.

    Options of finetuning's learner follow from the choice of the skill and from what is transferred, so they count
    only between configurations that agree in both.
    """
    value = options[path]
    if path == "pretraining" and value is None:
        return any("pretraining" not in other for other in same_method)
    if path.endswith("critic_dim"):  # That follows from the skills.
        return False
    others = same_method
    if path.startswith("run."):
        others = [other for other in others if all(other.get(name) == options.get(name) for name in FOLLOWED)]
    return any((path in other and other[path] != value) or _left_out(path, other) for other in others)


def _left_out(path: str, options: Json) -> bool:
    """Whether a configuration lacks an option whose neighbours it has: a newer one, which is kept only where it is not
    the default."""
    above = path.rpartition(".")[0] + "."
    return path not in options and above != "." and any(other.startswith(above) for other in options)


def _usual(method: str) -> Json:
    """A method's defaults by path; of an unknown method only those of finetuning."""
    from becl.experiments.pretraining import make_pretraining
    from becl.objectives import METHODS
    from becl.options import PretrainOptions

    if method not in METHODS:
        return USUAL
    config = json.loads(json.dumps(make_pretraining(PretrainOptions("walker", method)).config()))
    finetuning = {"skill": METHODS[method].finetune_skill, "transfer": METHODS[method].transfer}
    return options_of({"run": config["run"], "pretraining": config}) | finetuning | USUAL


def importance(path: str) -> tuple[int, str]:
    """To sort options by."""
    return _place(path, FIRST), path


def _phrase(path: str, value: Any) -> str:
    """An option in a label's few words."""
    name = path.removeprefix("pretraining.").removeprefix("run.").removeprefix("objective.")
    if path == "pretraining":
        return "from scratch"
    if path == "snapshot":
        return f"snapshot {short(value)}" if value is not None else ""
    if path == "skill":
        return f"skill {value.removeprefix('fixed:')}" if value.startswith("fixed:") else f"{value} skill"
    if path == "transfer":
        return f"transfer {value}" if value != "none" else ""  # Said by other words: from scratch, or meta.
    if path.endswith("steps") and isinstance(value, int):
        return f"{name.replace('_', ' ')} {short(value)}"
    if name == "temperature":
        return f"κ = {value:g}" if isinstance(value, int | float) else f"κ = {value}"
    if name == "skills.dim":
        return f"{value} skills"
    return f"{name} = {json.dumps(value, ensure_ascii=False)}"


def _numbered(labels: Sequence[str]) -> list[str]:
    """Labels that are all different: the second of the same name is (2)."""
    earlier = [labels[:i].count(label) for i, label in enumerate(labels)]
    return [f"{label} ({count + 1})" if count else label for label, count in zip(labels, earlier, strict=True)]


def pretty_method(method: str) -> str:
    family, dash, rest = method.partition("-")
    return NAMES.get(family, family) + dash + rest


def pretty_task(task: str) -> str:
    """Walker run; names of others' environments stay as they are."""
    return task if ":" in task else task.replace("_reach_", " ").replace("_", " ").capitalize()


def short(number: int) -> str:
    """100k for 100,000."""
    for unit, letter in ((1_000_000, "M"), (1_000, "k")):
        if number >= unit and number % (unit // 10) == 0:
            return f"{number / unit:g}{letter}"
    return str(number)


def listed(names: Sequence[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


# --- What is compared -------------------------------------------------------------------------------------------------


class Summary(NamedTuple):
    """Scores of a configuration on a task, over seeds."""

    mean: float
    error: float
    """Standard error; not a number with one seed."""
    seeds: int


def summarise(scores: Float[np.ndarray, " seeds"]) -> Summary:
    error = float(scores.std(ddof=1)) / math.sqrt(len(scores)) if len(scores) > 1 else math.nan
    return Summary(float(scores.mean()), error, len(scores))


def by_task(configurations: Sequence[Configuration]) -> dict[str, dict[str, Summary]]:
    """Summaries by task and label."""
    return {
        task: {one.label: summarise(one.scores(task)) for one in configurations if task in one.outcomes}
        for task in all_tasks(configurations)
    }


def leaders(row: Mapping[str, Summary]) -> set[str]:
    """Labels with the highest mean as printed; none where there is nothing to compare."""
    if len(row) < 2:
        return set()
    best = max(round(one.mean) for one in row.values())
    return {label for label, one in row.items() if round(one.mean) == best}


class Comparison(NamedTuple):
    """Configurations that share some tasks, and their scores: returns over the expert's."""

    name: str
    tasks: tuple[str, ...]
    scores: dict[str, dict[str, Float[np.ndarray, " seeds"]]]
    """By label and task."""


def comparisons(configurations: Sequence[Configuration]) -> list[Comparison]:
    """The tasks that most configurations share, then each robot's where that is something else."""
    known = [task for task in all_tasks(configurations) if task in EXPERT]
    robots = dict.fromkeys(map(domain_of, known))
    scopes = {"all tasks": known} | {robot: [task for task in known if domain_of(task) == robot] for robot in robots}
    made: list[Comparison] = []
    for name, allowed in scopes.items():
        shared = shared_tasks([set(one.outcomes) & set(allowed) for one in configurations])
        tasks = tuple(task for task in known if task in shared)
        if not tasks or any(tasks == other.tasks for other in made):
            continue
        scores = {
            one.label: {task: one.scores(task) / EXPERT[task] for task in tasks}
            for one in configurations
            if shared <= set(one.outcomes)
        }
        made.append(Comparison(name, tasks, scores))
    return made


def shared_tasks(sets: Sequence[set[str]]) -> set[str]:
    """Of the sets of tasks, the one with the most (configuration, task) pairs among configurations that have it all."""

    def pairs(tasks: set[str]) -> tuple[int, int]:
        having = sum(tasks <= other for other in sets)
        return len(tasks) * having, having

    return max(sets, key=pairs, default=set())


def not_compared(configurations: Sequence[Configuration]) -> list[LeftOut]:
    """Tasks without an expert, and configurations without an aggregate over the shared tasks."""
    left_out = [
        LeftOut(task, "no expert's score is known: not in scores and aggregates")
        for task in all_tasks(configurations)
        if task not in EXPERT
    ]
    compared = comparisons(configurations)
    tasks = compared[0].tasks if compared else ()
    for one in configurations if compared else ():
        if missing := [task for task in tasks if task not in one.outcomes]:
            why = f"not in the aggregates over {len(tasks)} tasks: no runs on {listed(missing)}"
            left_out.append(LeftOut(one.label, why))
        elif other := [task for task in one.outcomes if task in EXPERT and task not in tasks]:
            left_out.append(LeftOut(one.label, f"aggregates are without {listed(other)}, which others lack"))
    return left_out


def groups_but(configurations: Sequence[Configuration], ignored: Sequence[str]) -> list[list[Configuration]]:
    """Configurations that differ only in options at or below the ignored paths."""
    groups: dict[str, list[Configuration]] = {}
    for one in configurations:
        groups.setdefault(json.dumps(without(one.options, ignored), sort_keys=True), []).append(one)
    return [group for group in groups.values() if len(group) > 1]


def skill_choices(configurations: Sequence[Configuration]) -> list[dict[str, Configuration]]:
    """Groups of the same pretrained skills, by how finetuning chose among them."""
    made = []
    for group in groups_but(configurations, ("skill", "transfer", "run")):
        if len({one.options["skill"] for one in group}) > 1:
            transfers = len({one.options.get("transfer") for one in group}) > 1
            names = [one.options["skill"] + (f", {one.options.get('transfer')}" if transfers else "") for one in group]
            if len({*names}) < len(names):  # Something else differs too, which labels tell.
                names = [one.label for one in group]
            made.append(dict(zip(names, group, strict=True)))
    return made


class Ablation(NamedTuple):
    """Configurations by the value of the one option in which they differ."""

    label: str
    by_value: dict[float, Configuration]


def ablations(configurations: Sequence[Configuration], option: str) -> list[Ablation]:
    """Groups that differ in an option of pretraining's objective, and in what follows from it."""
    path = f"pretraining.{option}"
    having = [one for one in configurations if isinstance(one.options.get(path), int | float)]
    follows = ("run.objective", "run.learner.critic_dim", "pretraining.run.learner.critic_dim")
    labels, made = [], []
    for group in groups_but(having, (path, *follows)):
        by_value = {float(one.options[path]): one for one in group}
        if len(by_value) == len(group):
            base = min(group, key=lambda one: len(one.label))
            word = _phrase(path, base.options[path])
            labels.append(", ".join(part for part in base.label.split(", ") if part != word))
            made.append(by_value)
    return [Ablation(label, by_value) for label, by_value in zip(_numbered(labels), made, strict=True)]
