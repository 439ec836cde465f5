"""The paper's maze study: which runs it has, and what is kept of each.

A study is a list of labelled runs (method, maze, number of skills, …), each trained with several seeds. It lives in a
folder of plain files:

    config.json              what was asked for; the folder takes no other configuration
    <label>/seed-<n>.csv     learning curve
    <label>/seed-<n>.json    what was measured at the end
    <label>/seed-<n>.npz     trajectories of every skill, and the MINE curve if asked for
    <label>/seed-<n>.safetensors    networks of policy, value and objective
    summary.csv, summary.json, figures as PNG and SVG

A seed counts as finished when its JSON exists, which is written last. The same command, typed again, continues with the
missing seeds.
"""

import contextlib
import dataclasses
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from becl.envs import maze
from becl.errors import UserError, unknown
from becl.experiments.maze_kinds import KINDS, PUBLISHED, Kind
from becl.experiments.maze_kinds import Setting as MazeSetting
from becl.experiments.settings import (
    Given,
    Setting,
    change,
    check_least,
    check_once,
    check_positive,
    check_seeds,
    positive_options,
    reading,
    settings_of,
)
from becl.learning.onpolicy import OnPolicy
from becl.learning.ppo import PPO
from becl.nn.adam import Adam
from becl.nn.networks import Network, options_of
from becl.objectives import METHODS, MazeStudy, find_method, kinds_of
from becl.objectives.protocol import chance_reward
from becl.objectives.registry import STUDIED
from becl.options import MazeOptions
from becl.runs.folder import read_config
from becl.runs.inside import inside, is_name
from becl.runs.sums import read_checked_text, write_checked
from becl.skills import OneHot
from becl.specs import check_numbers, from_dict, to_dict

TEMPERATURES = (1.0, 0.5, 0.1, 0.01)
SKILL_COUNTS = (10, 15, 20, 30)
DEMO_CYCLES = 800
PAPER_CYCLES = 2500
DEMO_METHODS = ("becl", "diayn")
EXAMPLE = "[METHOD:]OPTION=VALUE, for example becl:temperature=0.2"
WIDE = 5  # Inputs are whitened in mazes wider than this many cells, as the maze study does in the tree.


@dataclass(frozen=True)
class Study:
    """A resolved study."""

    kind: str
    runs: dict[str, OnPolicy]
    seeds: tuple[int, ...]
    cycles: int
    mine_iterations: int = 0
    setting: str = "tuned"

    def chance(self, label: str) -> float | None:
        """The chance level of a run's reward, when states say nothing about skills; None for methods without one."""
        run = self.runs[label]
        return chance_reward(run.objective, run.episodes * run.env.episode_length)

    def config(self) -> dict[str, Any]:
        """What must agree for two commands to share a folder. Seeds may be added later, so they are not part of it."""
        config: dict[str, Any] = {"study": self.kind, "cycles": self.cycles, "mine_iterations": self.mine_iterations}
        config |= {} if self.setting == "tuned" else {"setting": self.setting}
        return config | {"runs": {label: to_dict(run) for label, run in self.runs.items()}}


def load_study(out: Path, seeds: tuple[int, ...] | None = None) -> Study:
    """The study that a folder holds, with the given seeds, or else all that were ever asked for."""
    config = read_config(out)
    parts = (OnPolicy, PPO, maze.Maze, Network, Adam, OneHot)
    mazes = [*STUDIED.values(), *PUBLISHED.values()]
    specs = [method.objective for method in METHODS.values()] + [entry.objective for entry in mazes]
    kinds = [kind for one in specs for kind in kinds_of(one)]
    classes = {kind.__name__: kind for kind in (*parts, *kinds)}
    try:
        named = config["runs"]
        with reading(out / "config.json"):
            runs = {label: from_dict(run, classes, OnPolicy, f"runs.{label}") for label, run in named.items()}
            for run in runs.values():
                check(run)
        if other := [label for label in runs if not is_label(label)]:
            raise UserError(f"{out / 'config.json'} is damaged: {other[0]!r} is no name of a run")
        if seeds is None:
            seeds = tuple(int(seed) for seed in json.loads(read_checked_text(out / "seeds.json")))
        kind_of(config["study"])
        setting = config.get("setting", "tuned")
        with reading(out / "config.json"):
            for name, least in (("cycles", 1), ("mine_iterations", 0)):
                check_least(name, from_dict(config[name], {}, int, name), least)
            if not runs:
                raise UserError("runs: there is none")
            from_dict(setting, {}, MazeSetting, "setting")
            check_seeds([from_dict(seed, {}, int, "a seed in seeds.json") for seed in seeds] or [0])
        return Study(config["study"], runs, seeds, config["cycles"], config["mine_iterations"], setting)
    except OSError as error:
        raise UserError(f"{out}: seeds.json: {error.strerror}") from None
    except UserError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        raise UserError(f"{out} holds no run that can be resumed") from None


def is_label(label: str) -> bool:
    """Whether a text can be a label of `study_runs`: the name of a folder, and not a path."""
    return is_name(label) and re.fullmatch(r"[a-z0-9][\w.+-]*", label) is not None


def note_seeds(study: Study, out: Path) -> None:
    """Writes down which seeds were asked for, so that the study can be resumed without naming them again."""
    path = out / "seeds.json"
    known: list[int] = []
    with contextlib.suppress(OSError, ValueError, TypeError):
        known = [int(seed) for seed in json.loads(read_checked_text(path))]
    write_checked(path, json.dumps(sorted({*known, *study.seeds})) + "\n")


def kind_of(name: str) -> Kind:
    if name not in KINDS:
        raise unknown("study", name, KINDS)
    return KINDS[name]


def maze_settings(method: str, setting: str = "tuned") -> MazeStudy:
    """A method's settings in the maze study; refuses methods that have none."""
    if setting == "published" and method in METHODS:
        if method not in PUBLISHED:
            raise UserError(f"{method} is not part of the published maze study, only {', '.join(PUBLISHED)}")
        return PUBLISHED[method]
    if method not in STUDIED and (method in METHODS or "+" in method):
        find_method(method)
        raise UserError(
            f"{method} is not part of the maze study: becl pretrain square_a --method {method} trains it there"
        )
    if method not in STUDIED:
        raise unknown("method", method, STUDIED)
    return STUDIED[method]


def make_run(method: str, maze_name: str, skills: int, settings: Given = (), setting: str = "tuned") -> OnPolicy:
    """A run of a method with the maze study's sizes, changed by settings `[METHOD:]PATH=VALUE`."""
    run = sized_run(method, maze_name, skills, setting)
    for given in settings_of(settings, EXAMPLE):
        run = apply_setting(run, method, given)
    if "episode_length" in {field.name for field in dataclasses.fields(run.objective)}:  # type: ignore[arg-type]
        objective = dataclasses.replace(run.objective, episode_length=run.env.episode_length)  # type: ignore[type-var]
        run = dataclasses.replace(run, objective=objective)
    return run


def sized_run(method: str, maze_name: str, skills: int, setting: str) -> OnPolicy:
    """A run of a method with the maze study's sizes."""
    entry = maze_settings(method, setting)
    if maze_name not in maze.names():
        raise unknown("maze", maze_name, maze.names())
    if skills < 2:
        raise UserError(f"--skills {skills}: at least 2 skills are needed to tell them apart")
    bounds = maze.geometry(maze_name).bounds
    wide = max(bounds[1] - bounds[0], bounds[3] - bounds[2]) > WIDE
    network = Network((128, 128), "uniform", normalize=wide)
    return OnPolicy(
        maze.Maze(maze_name, leak=entry.as_released),
        sized(entry.objective or METHODS[method].objective, skills, network),
        PPO(
            network=network,
            entropy_weight=entry.entropy_weight,
            concatenate=entry.as_released,
            optimizer=Adam(entry.learning_rate, 1e-3, corrected=False),
        ),
        # At least two trajectories of each skill, to compare one with the other.
        episodes=max(50, 2 * skills),
        fit_epochs=entry.fit_epochs,
        balanced=not entry.as_released,
    )


def sized(objective: Any, skills: int, network: Network) -> Any:
    """An objective with the maze study's sizes: the given number of skills and features, and the study's networks and
    optimisers in place of its own, which are found by their types. Optional hidden layers are left out."""
    by_name = {"skills": OneHot(skills), "feature_dim": skills}
    changes: dict[str, Any] = {}
    for option in options_of(objective):
        if isinstance(option.value, Network):
            changes[option.name] = network
        elif isinstance(option.value, Adam):
            changes[option.name] = Adam(1e-3, 1e-3, corrected=False)
        elif option.widths and option.optional:
            changes[option.name] = None
        elif option.name in by_name:
            changes[option.name] = by_name[option.name]
    return dataclasses.replace(objective, **changes)


def apply_setting(run: OnPolicy, method: str, setting: Setting) -> OnPolicy:
    """A run with one option changed that has no flag of its own; an option of another method changes nothing."""
    target, colon, path = setting.path.partition(":")
    own = setting._replace(path=path) if colon else setting
    if colon:
        maze_settings(target)
        if target != method:
            return run
    if own.path in ("env.name", "skills.dim", "objective.skills.dim"):
        raise UserError(f"--set {setting}: use {'--maze' if own.path == 'env.name' else '--skills'}")
    if own.path in ("episode_length", "objective.episode_length"):
        raise UserError(f"--set {setting}: use env.episode_length, which the objective follows")
    known = {field.name for part in (run, run.objective) for field in dataclasses.fields(part)}  # type: ignore
    if own.first not in known and not colon:
        others = [n for n, entry in STUDIED.items() if hasattr(entry.objective or METHODS[n].objective, own.first)]
        if others:
            example = f"name the method, for example {others[0]}:{setting}"
            raise UserError(f"--set {setting}: {method} has no {own.first}; {example}")
    return change(run, own)


def check(run: OnPolicy) -> None:
    """Raises on values with which no run can work."""
    positive = {
        "env.episode_length": run.env.episode_length,
        "episodes": run.episodes,
        "fit_minibatches": run.fit_minibatches,
        "fit_epochs": run.fit_epochs,
        "learner.epochs": run.learner.epochs,
        "learner.minibatches": run.learner.minibatches,
        "learner.optimizer.learning_rate": run.learner.optimizer.learning_rate,
        "learner.network.hidden": min(run.learner.network.hidden, default=1),
    }
    check_positive(positive | positive_options(run.objective))
    transitions = run.episodes * run.env.episode_length
    for name in ("fit_minibatches", "learner.minibatches"):
        if positive[name] > transitions:
            raise UserError(f"{name} {positive[name]}: there are only {transitions} transitions in a collection")
    for name in ("discount", "gae_lambda"):
        if not 0 <= getattr(run.learner, name) <= 1:
            raise UserError(f"learner.{name} {getattr(run.learner, name):g}: must lie in [0, 1]")
    check_numbers(run)


def make_study(options: MazeOptions) -> Study:
    """Makes the study that options ask for, validated."""
    kind, setting = kind_of(options.study), setting_of(options)
    if options.demo and options.study != "comparison":
        raise UserError(f"--demo is a comparison: leave out --study {options.study}")
    as_asked = kind if setting == kind.setting else next(one for one in KINDS.values() if one.twin == options.study)
    methods = options.methods or (DEMO_METHODS if options.demo else as_asked.methods)
    cycles = options.cycles if options.cycles is not None else DEMO_CYCLES if options.demo else PAPER_CYCLES
    check_least("--cycles", cycles)
    check_seeds(options.seeds)
    check_once("--methods", methods)
    for name in methods:
        maze_settings(name, setting)
    check_temperature(options, methods)
    settings = list(settings_of(options.set, EXAMPLE))
    for given in settings:
        target, colon, _ = given.path.partition(":")
        if colon and target in STUDIED and target not in methods:
            raise UserError(f"--set {given}: {target} is not among --methods {' '.join(methods)}")
    check_least("--mine-iterations", options.mine_iterations)
    check_least("--workers", options.workers)
    runs = study_runs(options, methods, settings)
    mine_iterations = options.mine_iterations if kind.mine else 0
    return Study(options.study, runs, tuple(options.seeds), cycles, mine_iterations, setting)


def setting_of(options: MazeOptions) -> str:
    """Whether the methods have tuned or published settings."""
    kind = kind_of(options.study)
    if kind.setting == "published" and options.setting == "tuned":
        raise UserError(f"--setting tuned: {options.study} is the paper's; use --study {kind.twin} for ours")
    if options.demo and options.setting == "published":
        raise UserError("--setting published: not in a demo, whose methods need fewer cycles")
    return options.setting or kind.setting


def check_temperature(options: MazeOptions, methods: Sequence[str]) -> None:
    """Raises on a temperature that none of the methods can use."""
    if options.temperature is None:
        return
    if not 0 < options.temperature < float("inf"):
        raise UserError(f"--temperature {options.temperature:g}: must be greater than 0 and finite")
    kind = kind_of(options.study)
    if kind.varied == "temperature":
        raise UserError(f"--temperature: the {options.study} study has its own, 1, 0.5, 0.1 and 0.01")
    if kind.also:
        raise UserError(f"--temperature: {options.study} compares the published temperature with 0.01")
    if not any(name.startswith("becl") for name in methods):
        raise UserError("--temperature is BeCL's: there is no BeCL among --methods")


def study_runs(options: MazeOptions, methods: Sequence[str], settings: Sequence[Setting]) -> dict[str, OnPolicy]:
    """The runs of a study by their labels."""
    kind, setting = kind_of(options.study), setting_of(options)
    maze_name = kind.maze if options.maze is None else options.maze
    if options.temperature is not None:
        becl = (name for name in methods if name.startswith("becl"))
        settings = [*settings, *(Setting(f"{name}:temperature", options.temperature) for name in becl)]

    def run(method: str, skills: int | None = options.skills, extra: Sequence[Setting] = ()) -> OnPolicy:
        count = 10 if skills is None else skills
        found = make_run(method, maze_name, count, [*settings, *extra], setting)
        check(found)
        return found

    def warm(method: str, value: float) -> tuple[str, OnPolicy]:
        return f"{method}-temperature-{value:g}", run(method, extra=[Setting("temperature", value)])

    if kind.varied == "skills":
        counts = SKILL_COUNTS if options.skills is None else (options.skills,)
        return {f"{method}-{count}-skills": run(method, count) for method in methods for count in counts}
    if kind.varied == "temperature":
        return dict(warm(method, value) for method in methods for value in TEMPERATURES)
    becl = [method for method in methods if method.startswith("becl")]
    others = dict(warm(method, value) for method in becl for value in kind.also)
    return {method: run(method) for method in methods} | others


def seed_path(out: Path, label: str, seed: int, suffix: str) -> Path:
    return inside(out, label, f"seed-{seed}.{suffix}")


def unfinished(study: Study, out: Path) -> list[tuple[str, int]]:
    """Labels and seeds of the runs still to do."""
    return [
        (label, seed)
        for label in study.runs
        for seed in study.seeds
        if not seed_path(out, label, seed, "json").exists()
    ]
