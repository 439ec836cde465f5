"""What each command of the `becl` program does, with its options as a dataclass."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from becl.commands.doctor import DoctorCommand, doctor_command
from becl.commands.plugins import missing_plugin, without_plugins
from becl.errors import UserError
from becl.experiments.evaluation import EvaluateCommand, evaluate_command
from becl.experiments.options import FinetuneOptions as FinetuneCommand
from becl.experiments.options import MazeOptions as MazeCommand
from becl.experiments.options import PretrainOptions as PretrainCommand
from becl.export.files import ExportCommand, export_command
from becl.reports.page import ReportCommand, report_command
from becl.runs.provenance import COMMAND
from becl.sweeps.run import SweepCommand, sweep_command
from becl.views.filmstrip import FilmstripCommand, filmstrip_command
from becl.views.gallery import GalleryCommand, gallery_command
from becl.views.trajectories import TrajectoriesCommand, trajectories_command
from becl.views.video import VideoCommand, video_command


def maze_command(command: MazeCommand) -> int:
    from becl.runs.folder import open_folder

    out = command.out or (Path("demo") if command.demo else Path("runs") / f"maze-{command.study}")
    study = study_of(command)
    open_folder(study.config(), out)
    if command.train_only:
        return train_study(study, out, command.workers)
    return run_study(study, out, command.workers, demo=command.demo)


def study_of(command: MazeCommand) -> Any:
    """The study that a command asks for, checked."""
    from becl.experiments.maze_study import make_study

    return make_study(command)


def run_study(study: Any, out: Path, workers: int | None, demo: bool) -> int:
    """Trains, then draws and tabulates whatever is finished, also after Ctrl-C."""
    from becl.runs.lock import locked

    with locked(out):
        try:
            return _run_study(study, out, workers, demo)
        except OSError as error:
            print(f"becl: failed: cannot write in {out}: {error.strerror}", file=sys.stderr)
            return 1


def seeds_lock(seeds: Sequence[int]) -> str:
    """The lock of some seeds of a study."""
    return f"lock-seeds-{'-'.join(map(str, seeds))}"


def train_study(study: Any, out: Path, workers: int | None) -> int:
    """Trains some seeds of a study whose others may be trained elsewhere at the same time."""
    from becl.experiments.maze_study import unfinished
    from becl.experiments.workers import execute
    from becl.runs.lock import locked

    todo = unfinished(study, out)
    if not todo:
        print(f"finished before: {out}/")
        return 0
    try:
        with locked(out, seeds_lock(study.seeds)):
            failures = execute(study, out, workers)
    except OSError as error:
        failures = [f"cannot write in {out}: {error.strerror}"]
    for failure in failures:
        print(f"becl: failed: {failure}", file=sys.stderr)
    print(f"{len(todo) - len(unfinished(study, out))} of {len(todo)} runs trained · {out}/")
    return 1 if failures else 0


def check_workers(count: int | None) -> None:
    if count is not None and count < 1:
        raise UserError(f"--workers {count}: at least 1 is needed")


def _run_study(study: Any, out: Path, workers: int | None, demo: bool) -> int:
    from becl.experiments.maze_results import write_summary
    from becl.experiments.maze_study import note_seeds, unfinished
    from becl.experiments.workers import execute
    from becl.views.maze_report import draw, print_table

    note_seeds(study, out)
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
        kept = f"{total - left} of {total} runs are finished in {out}/"
        print(f"becl: stopped; {kept}; the same command, or becl resume {out}, goes on", flush=True)
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


def pretrain_command(command: PretrainCommand) -> int:
    from becl.experiments.pretrainer import check_memory, describe, run_pretraining
    from becl.runs.folder import folder_name, open_folder

    made = pretraining_of(command)
    if command.dry_run:
        for line in describe(made):
            print(line, flush=True)
        return 0
    needs = check_memory(made)
    out = command.out or Path("runs") / folder_name("pretrain", command.env, command.method)
    callbacks = loggers(command.wandb)
    open_folder(made.config(), out)
    return run_pretraining(made, out, needs, command.checkpoint_every, callbacks)


def pretraining_of(command: PretrainCommand) -> Any:
    """The run that a command asks for, checked."""
    from becl.experiments.pretraining import make_pretraining

    return make_pretraining(command)


def loggers(wandb: str | None) -> list[Any]:
    """What is told of a run beside its own files."""
    from becl.runs.callbacks import Wandb

    return [] if wandb is None else [Wandb(wandb)]


def check_interval(steps: int) -> None:
    if steps < 1:
        raise UserError(f"--checkpoint-every {steps}: at least 1 is needed")


def finetune_command(command: FinetuneCommand) -> int:
    from becl.experiments.finetuner import check_memory, describe, run_finetuning
    from becl.runs.folder import folder_name, open_folder

    made = finetuning_of(command)
    if command.dry_run:
        for line in describe(made):
            print(line)
        return 0
    needs = check_memory(made)
    out = command.out or Path("runs") / folder_name("finetune", made.env, made.method)
    callbacks = loggers(command.wandb)
    open_folder(made.config(), out)
    return run_finetuning(made, out, needs, command.checkpoint_every, callbacks)


def finetuning_of(command: FinetuneCommand, planned: Any = None) -> Any:
    """The run that a command asks for, checked; of a pretraining that is only planned where one is given."""
    from becl.experiments.finetuning import make_finetuning

    return make_finetuning(command, planned)


@dataclass(frozen=True)
class ResumeCommand:
    """Go on with a run that was stopped, killed or cut off, from its last checkpoint, bit for bit."""

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of `becl pretrain`, `becl finetune` or `becl maze`."""
    checkpoint_every: int | None = None
    """Steps between two checkpoints; as by default."""
    wandb: str | None = None
    """Project of Weights & Biases to log to as well."""
    workers: int | None = None
    """Processes on a CPU, for a maze study."""


def resume_command(command: ResumeCommand) -> int:
    from becl.runs.folder import read_config, same_settings

    check_workers(command.workers)
    if command.checkpoint_every is not None:
        check_interval(command.checkpoint_every)
    kind = without_plugins(read_config(command.run)).get("command")
    every: dict[str, Any] = {} if command.checkpoint_every is None else {"checkpoint_every": command.checkpoint_every}
    if kind in ("pretrain", "finetune"):
        every["callbacks"] = loggers(command.wandb)
        return resume_run(command.run, every)
    from becl.experiments.maze_study import load_study

    study = load_study(command.run)
    same_settings(study.config(), command.run)
    return run_study(study, command.run, command.workers, demo=False)


def resume_run(folder: Path, options: dict[str, Any]) -> int:
    """Goes on with a pretraining or finetuning run."""
    from becl.runs.folder import read_config, same_settings

    if read_config(folder).get("command") == "pretrain":
        from becl.experiments import pretrainer
        from becl.experiments.pretraining import load_pretraining

        pretraining = load_pretraining(folder)
        same_settings(pretraining.config(), folder)
        return pretrainer.run_pretraining(pretraining, folder, pretrainer.check_memory(pretraining), **options)
    from becl.experiments import finetuner
    from becl.experiments.finetuning import load_finetuning

    finetuning = load_finetuning(folder)
    same_settings(finetuning.config(), folder)
    return finetuner.run_finetuning(finetuning, folder, finetuner.check_memory(finetuning), **options)


@dataclass(frozen=True)
class PlotCommand:
    """Draw learning curves of pretraining runs: intrinsic reward, states visited and the task's reward."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Folders of `becl pretrain`, finished or not."""
    out: Path | None = None
    """Figure, as PNG and SVG; curves.png in the first folder by default."""


def plot_command(command: PlotCommand) -> int:
    from becl.views import figures

    if not command.runs:
        raise UserError("no runs to plot: name folders of becl pretrain")
    folders = [folder.resolve() for folder in command.runs]
    if repeated := [str(one) for one, path in zip(command.runs, folders, strict=True) if folders.count(path) > 1]:
        raise UserError(f"{repeated[0]} given more than once")
    labels = run_labels(command.runs, [read_run(folder) for folder in command.runs])
    columns = [read_metrics(folder) for folder in command.runs]
    out = command.out or command.runs[0] / "curves.png"
    check_writable(out.parent)
    stem = out.with_suffix("") if out.suffix in (".png", ".svg") else out
    for path in figures.save(figures.pretraining_curves(dict(zip(labels, columns, strict=True))), stem):
        print(path)
    return 0


def read_run(folder: Path) -> dict[str, Any]:
    """The configuration of a pretraining run."""
    from becl.runs.folder import read_pretraining

    config = read_pretraining(folder)
    if not {"method", "env"} <= config.keys():
        raise UserError(f"{folder} holds no pretraining run")
    if line := missing_plugin(config):  # Its numbers can be drawn all the same.
        print(f"becl: {folder}: {line}", file=sys.stderr)
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


@dataclass(frozen=True)
class EnvsCommand:
    """Show the environments."""

    out: Path | None = None
    """Also draw all mazes into this file, as PNG and SVG."""


def envs_command(command: EnvsCommand) -> int:
    if command.out is not None:
        check_writable(command.out.parent)
    from becl.envs import DOMAINS, maze
    from becl.views.maze_report import console, plan_text, table

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
        from becl.views import figures

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
    from becl.experiments.maze_study import make_run
    from becl.experiments.pretraining import make_pretraining
    from becl.objectives import METHODS
    from becl.specs import to_dict
    from becl.views.maze_report import console, table

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
        print(json.dumps(to_dict(make_pretraining(PretrainCommand("walker", name)).run), indent=1))
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
    from becl.measure.theory import main

    check_writable(command.out)
    main(command.out)
    return 0


def check_writable(folder: Path) -> None:
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
    "finetune": (FinetuneCommand, finetune_command),
    "evaluate": (EvaluateCommand, evaluate_command),
    "gallery": (GalleryCommand, gallery_command),
    "video": (VideoCommand, video_command),
    "filmstrip": (FilmstripCommand, filmstrip_command),
    "trajectories": (TrajectoriesCommand, trajectories_command),
    "sweep": (SweepCommand, sweep_command),
    "report": (ReportCommand, report_command),
    "resume": (ResumeCommand, resume_command),
    "export": (ExportCommand, export_command),
    "plot": (PlotCommand, plot_command),
    "envs": (EnvsCommand, envs_command),
    "methods": (MethodsCommand, methods_command),
    "theory": (TheoryCommand, theory_command),
    "doctor": (DoctorCommand, doctor_command),
}


def run(name: str, args: Sequence[str], plugins: Sequence[str] = ()) -> int:
    """Parses a command's options and does it; plug-ins, which are loaded already, belong to the command line."""
    from becl.commands.cli import parse_options

    options, function = COMMANDS[name]
    COMMAND.set(shlex.join(["becl", name, *args, *(f"--plugin={word}" for word in plugins)]))
    return function(parse_options(options, name, args))
