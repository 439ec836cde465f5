"""What each command of the `becl` program does, with its options as a dataclass."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from becl.errors import UserError


@dataclass(frozen=True)
class MazeCommand:
    """Learn skills in a 2-D maze without a reward, and draw them: the paper's maze study."""

    methods: tuple[str, ...] = ()
    """Methods to compare (`becl methods` lists them); which by default depends on the study."""
    study: Literal["comparison", "estimates", "temperature", "skills"] = "comparison"
    """comparison: methods side by side. estimates: the same with MINE and particle entropy. temperature: κ of 1, .5,
    .1, .01. skills: 10, 15, 20, 30 of them in the tree maze."""
    maze: str | None = None
    """Maze (`becl envs` shows them); square_a, for the skills study square_tree."""
    skills: int | None = None
    """Number of skills; 10 by default."""
    temperature: float | None = None
    """κ of BeCL's contrast; each preset has its own."""
    seeds: str = "1"
    """How many (5: seeds 0 to 4), a range (100:105), or a list (3,7,9)."""
    cycles: int | None = None
    """Training cycles; by default the paper's budget of 2500, each of 2 × 50 episodes of 50 steps."""
    set: tuple[str, ...] = ()
    """Any other option as [METHOD:]OPTION=VALUE, for example becl:positive=mean learner.entropy_weight=0.1."""
    mine_iterations: int = 10_000
    """Iterations of MINE in the estimates study."""
    workers: int | None = None
    """Processes on a CPU; one a core by default."""
    out: Path | None = None
    """Folder for results; runs/maze-STUDY by default. The same command again goes on where it stopped."""
    demo: bool = False
    """BeCL beside DIAYN with one seed and a few hundred cycles: a first look in about a minute."""


DEMO_CYCLES = 800
PAPER_CYCLES = 2500
DEFAULT_METHODS = {
    "demo": ("becl", "diayn"),
    "comparison": ("becl", "diayn", "dads", "cic"),
    "estimates": ("becl", "diayn", "dads", "cic"),
    "temperature": ("becl",),
    "skills": ("becl", "diayn", "dads"),
}


def maze_command(command: MazeCommand) -> int:
    from becl.folder import open_folder
    from becl.study import make_study

    methods = command.methods or DEFAULT_METHODS["demo" if command.demo else command.study]
    out = command.out or (Path("demo") if command.demo else Path("runs") / f"maze-{command.study}")
    cycles = command.cycles if command.cycles is not None else DEMO_CYCLES if command.demo else PAPER_CYCLES
    if command.demo and command.study != "comparison":
        raise UserError(f"--demo is a comparison: leave out --study {command.study}")
    if command.workers is not None and command.workers < 1:
        raise UserError(f"--workers {command.workers}: at least 1 is needed")
    study = make_study(
        command.study,
        methods,
        command.maze,
        command.skills,
        command.temperature,
        parse_seeds(command.seeds),
        cycles,
        command.set,
        command.mine_iterations,
    )
    open_folder(study.config(), out)
    return run_study(study, out, command.workers, demo=command.demo)


def run_study(study: Any, out: Path, workers: int | None, demo: bool) -> int:
    """Trains, then draws and tabulates whatever is finished, also after Ctrl-C."""
    from becl.execute import execute
    from becl.maze_report import draw, print_table
    from becl.study import unfinished, write_summary

    todo = len(unfinished(study, out))
    total = len(study.runs) * len(study.seeds)
    names = ", ".join(study.runs)
    print(f"{names} · {study.cycles:,} cycles · {total - todo} of {total} runs finished before · {out}/")
    interrupted, failures = False, []
    try:
        failures = execute(study, out, workers)
    except KeyboardInterrupt:
        interrupted = True
    summary = write_summary(study, out)
    if summary:
        print_table(summary)
        for path in draw(study, out, demo):
            print(path)
    for failure in failures:
        print(f"becl: failed: {failure}", file=sys.stderr)
    left = len(unfinished(study, out))
    if interrupted:
        print(f"becl: stopped; {total - left} of {total} runs are kept in {out}/, the same command goes on", flush=True)
        return 130
    if demo and not failures:
        print(NEXT_STEPS)
    return 1 if failures else 0


NEXT_STEPS = """
What you see: each colour is a skill, learned without any reward; trajectories start at the black dot. To go on
(`. .venv/bin/activate` puts `becl` on your path):
  becl maze --seeds 2                                  four methods, full budget: about 15 minutes on two cores
  becl maze --demo --maze square_tree --out demo-tree  another maze
  becl maze --study temperature                        what κ does
  becl methods, becl envs, becl theory                 what there is, and why it works"""


@dataclass(frozen=True)
class PretrainCommand:
    """Learn skills, or explore, without a reward: seeds of one method trained together."""

    env: Annotated[str, tyro.conf.Positional]
    """walker, quadruped, jaco, one of their tasks (walker_run), or a maze; `becl envs` shows them."""
    method: str = "becl"
    """`becl methods` lists them."""
    seeds: str = "1"
    """How many (5: seeds 0 to 4), a range (100:105), or a list (3,7,9); trained together."""
    steps: int = 2_000_000
    """Environment steps of each seed."""
    skills: int | None = None
    """Number of skills, or of dimensions of continuous ones; each method has its own."""
    envs: int | None = None
    """Environments a seed, stepped together; 1 is the published schedule to the letter."""
    hidden: int | None = None
    """Width of all networks, 1024 by default; 256 is fit for a laptop."""
    precision: Literal["float32", "tf32", "bf16"] | None = None
    """Of matrix products; weights and optimisers are always float32."""
    set: tuple[str, ...] = ()
    """Any other option as OPTION=VALUE, for example temperature=0.2 replay.capacity=200000."""
    log_every: int = 10_000
    """Steps of each seed between two rows of metrics."""
    out: Path | None = None
    """Folder for results; runs/pretrain-ENV-METHOD by default."""
    dry_run: bool = False
    """Only show the resolved configuration, the memory it needs and the time it would take."""


def pretrain_command(command: PretrainCommand) -> int:
    from becl.folder import open_folder
    from becl.pretrain import check_memory, describe, make_pretraining, run_pretraining

    made = make_pretraining(
        command.env,
        command.method,
        parse_seeds(command.seeds),
        command.steps,
        skills=command.skills,
        parallel=command.envs,
        hidden=command.hidden,
        precision=command.precision,
        settings=command.set,
        log_every=command.log_every,
    )
    if command.dry_run:
        for line in describe(made):
            print(line, flush=True)
        return 0
    needs = check_memory(made)
    out = command.out or Path("runs") / f"pretrain-{command.env}-{command.method}"
    open_folder(made.config(), out)
    return run_pretraining(made, out, needs)


@dataclass(frozen=True)
class PlotCommand:
    """Draw learning curves of pretraining runs: intrinsic reward, states visited and the task's reward."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Folders of `becl pretrain`, finished or not."""
    out: Path | None = None
    """Figure, as PNG and SVG; curves.png in the first folder by default."""


def plot_command(command: PlotCommand) -> int:
    from becl import figures

    if not command.runs:
        raise UserError("no runs to plot: name folders of becl pretrain")
    folders = [folder.resolve() for folder in command.runs]
    if repeated := [str(one) for one, path in zip(command.runs, folders, strict=True) if folders.count(path) > 1]:
        raise UserError(f"{repeated[0]} given more than once")
    labels = run_labels(command.runs, [read_run(folder) for folder in command.runs])
    columns = [read_metrics(folder) for folder in command.runs]
    out = command.out or command.runs[0] / "curves.png"
    _check_writable(out.parent)
    stem = out.with_suffix("") if out.suffix in (".png", ".svg") else out
    for path in figures.save(figures.pretraining_curves(dict(zip(labels, columns, strict=True))), stem):
        print(path)
    return 0


def read_run(folder: Path) -> dict[str, Any]:
    """The configuration of a pretraining run."""
    from becl.folder import read_pretraining

    config = read_pretraining(folder)
    if not {"method", "env"} <= config.keys():
        raise UserError(f"{folder} holds no pretraining run")
    return config


def read_metrics(folder: Path) -> dict[str, Any]:
    """The columns of metrics.csv: `step` [points], the others [seeds, points], NaN where nothing was measured."""
    import csv

    import numpy as np

    path = folder / "metrics.csv"
    try:
        text = path.read_text()
        whole = text[: text.rfind("\n") + 1]  # A run may be in the middle of a line.
        rows = {(int(row["step"]), int(row["seed"])): row for row in csv.DictReader(whole.splitlines(), restval="?")}
        names = next(iter(rows.values())).keys() - {"step", "seed"} if rows else set()
        seeds = sorted({seed for _, seed in rows})
        steps = [step for step in sorted({step for step, _ in rows}) if all((step, seed) in rows for seed in seeds)]
        columns = {
            name: np.array([[float(rows[step, seed][name] or "nan") for step in steps] for seed in seeds])
            for name in sorted(names)
        }
    except OSError as error:
        raise UserError(f"{folder} has no metrics: {path.name}: {error.strerror}") from None
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{path} is damaged") from None
    if not steps:
        raise UserError(f"{path} has no rows yet: the first comes after the random steps of the run")
    if "reward" not in columns:
        raise UserError(f"{path} is damaged: no column reward")
    return columns | {"step": np.array(steps, float)}


def run_labels(folders: Sequence[Path], configs: Sequence[dict[str, Any]]) -> list[str]:
    """Method, environment where they differ, and as much of the folder as it takes to tell runs apart."""
    several = len({config["env"] for config in configs}) > 1
    labels = [config["method"] + (f" {config['env']}" if several else "") for config in configs]
    for name in (lambda folder: folder.resolve().name, str):
        labelled = [
            f"{label} ({name(folder)})" if labels.count(label) > 1 else label
            for label, folder in zip(labels, folders, strict=True)
        ]
        if len({*labelled}) == len(labelled):
            return labelled
    return labelled


def parse_seeds(text: str) -> tuple[int, ...]:
    """`5` is seeds 0 to 4, `100:105` a range, `3,7,9` a list."""
    try:
        if ":" in text:
            low, high = (int(part) for part in text.split(":"))
            seeds = tuple(range(low, high))
        elif "," in text:
            seeds = tuple(int(part) for part in text.split(",") if part.strip())
        else:
            seeds = tuple(range(int(text)))
    except ValueError:
        raise UserError(f"--seeds {text!r}: expected a count (5), a range (100:105) or a list (3,7,9)") from None
    if not seeds or min(seeds) < 0:
        raise UserError(f"--seeds {text!r}: at least one seed is needed, and none below 0")
    return seeds


@dataclass(frozen=True)
class EnvsCommand:
    """Show the environments."""

    out: Path | None = None
    """Also draw all mazes into this file, as PNG and SVG."""


def envs_command(command: EnvsCommand) -> int:
    if command.out is not None:
        _check_writable(command.out.parent)
    from becl.envs import DOMAINS, maze
    from becl.maze_report import console, plan_text, table

    rows = [
        (f"{name}_{task}", purpose, domain.obs_dim, domain.action_dim, domain.episode_length)
        for name, domain in DOMAINS.items()
        for task, purpose in domain.tasks.items()
    ]
    columns = ("task", "asks to", "observation", "action", "steps an episode")
    console().print(table("robots in MuJoCo (URLB): becl.envs.make, gymnasium.make('becl/TASK-v0')", columns, rows))
    primal = ", ".join(f"{name} ({name}_{domain.primal})" for name, domain in DOMAINS.items())
    print(f"A domain alone, for pretraining, carries the reward of one task: {primal}.\n")
    rows = []
    for name in maze.names():
        plan = maze.geometry(name)
        rows.append((name, len(plan.cells), int(plan.distance.max()), plan_text(plan)))
    console().print(table("2-D mazes: observation (x, y), action in [-1, 1]², 50 steps",
                          ("maze", "cells", "farthest cell", "plan (S: start)"), rows, lines=True))  # fmt: skip
    if command.out is not None:
        from becl import figures

        for path in figures.save(figures.maze_gallery(), command.out.with_suffix("")):
            print(path)
    return 0


@dataclass(frozen=True)
class MethodsCommand:
    """Show the methods and their options."""

    name: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Methods whose options are shown; all are listed when none is named."""


def methods_command(command: MethodsCommand) -> int:
    import json

    from becl.errors import unknown
    from becl.maze_report import console, table
    from becl.objectives import METHODS
    from becl.pretrain import make_pretraining
    from becl.specs import to_dict
    from becl.study import make_run

    for name in command.name:
        if name not in METHODS:
            raise unknown("method", name, METHODS)
    if not command.name:
        rows = [
            (name, method.kind, skill_text(method), method.summary, "yes" if method.maze else "")
            for name, method in METHODS.items()
        ]
        console().print(table("methods", ("name", "kind", "skills", "rewards", "becl maze"), rows))
    for name in command.name:
        print(f"{name} ({METHODS[name].kind}): {METHODS[name].summary}")
        print("pretraining (becl pretrain; change with --set OPTION=VALUE):")
        print(json.dumps(to_dict(make_pretraining("walker", name).run), indent=1))
        if METHODS[name].maze:
            print(f"in the maze study (becl maze; change with --set {name}:OPTION=VALUE):")
            print(json.dumps(to_dict(make_run(name, "square_a", 10)), indent=1))
    return 0


def skill_text(method: Any) -> str:
    """A method's skill space and when a skill is drawn, in a few words."""
    space = method.objective.skills
    if not space.dim:
        return "none"
    when = "episode" if method.skill_interval is None else f"{method.skill_interval} steps"
    return f"{type(space).__name__}({space.dim}), each {when}"


@dataclass(frozen=True)
class TheoryCommand:
    """Check the paper's two theorems and its decomposition numerically; draws the figures of docs/theory.md."""

    out: Path = Path("runs/theory")
    """Folder for the figures."""


def theory_command(command: TheoryCommand) -> int:
    from becl.theory import main

    _check_writable(command.out)
    main(command.out)
    return 0


def _check_writable(folder: Path) -> None:
    """Makes a folder, or says why it cannot be written to."""
    import tempfile

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(f"cannot write in {folder}: {error.strerror}") from None


COMMANDS: dict[str, tuple[type, Any]] = {
    "maze": (MazeCommand, maze_command),
    "pretrain": (PretrainCommand, pretrain_command),
    "plot": (PlotCommand, plot_command),
    "envs": (EnvsCommand, envs_command),
    "methods": (MethodsCommand, methods_command),
    "theory": (TheoryCommand, theory_command),
}


def run(name: str, args: Sequence[str]) -> int:
    """Parses a command's options and does it."""
    from becl.cli import parse_options

    options, function = COMMANDS[name]
    return function(parse_options(options, name, args))
