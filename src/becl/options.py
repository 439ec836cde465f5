"""The options of every command, once: filled in by the command line (tyro), by Python and by sweeps alike.

A docstring is a command's help, the text below a field is its option's help. Imports nothing heavy, so that help and
mistakes are shown at once.
"""

import dataclasses
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from tyro.conf import Positional
from tyro.constructors import PrimitiveConstructorSpec

from becl.errors import unknown
from becl.seeds import parse_seeds, seeds_text
from becl.specs import parse

Options = TypeVar("Options")

Precision = Literal["auto", "float32", "tf32", "bf16"]
Renderer = Literal["auto", "egl", "osmesa", "rays"]


def typed(parse: Callable[[str], Any], to_text: Callable[[Any], str], metavar: str) -> PrimitiveConstructorSpec[Any]:
    """How one word of the command line becomes a value, and is shown again in the help."""

    return PrimitiveConstructorSpec(
        1, metavar, lambda words: parse(words[0]), lambda value: True, lambda value: [to_text(value)]
    )


def optional(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda text: None if text == "None" else parse(text)


def default_seeds(seeds: Sequence[int] | None) -> str:
    """Seeds as the help shows them: a count where they begin at 0."""
    if seeds is None:
        return "None"
    return str(len(seeds)) if list(seeds) == list(range(len(seeds))) else seeds_text(seeds)


Seeds = Annotated[tuple[int, ...], typed(parse_seeds, default_seeds, "SEEDS")]
SomeSeeds = Annotated[tuple[int, ...] | None, typed(optional(parse_seeds), default_seeds, "SEEDS")]
Parts = Annotated[str | tuple[int, ...] | None, typed(optional(str), str, "PARTS")]
Settings = Annotated[
    Sequence[str] | Mapping[str, Any],
    PrimitiveConstructorSpec("*", "[OPTION=VALUE ...]", tuple, lambda value: True, list),
]
"""`PATH=VALUE` each, or a mapping from paths to values that have their types already."""


@dataclass(frozen=True)
class PretrainOptions:
    """Learn skills, or explore, without a reward: seeds of one method trained together."""

    env: Annotated[str, Positional]
    """walker, quadruped, jaco, one of their tasks (walker_run), or a maze; `becl envs` shows them. Any Gymnasium
    environment as gym:HalfCheetah-v5, any of dm_control as dmc:cheetah_run."""
    method: str = "becl"
    """Method to train; `becl methods` lists them."""
    seeds: Seeds = (0,)
    """How many (5: seeds 0 to 4), a range (100:105), or a list (3,7,9); trained together."""
    steps: int = 2_000_000
    """Environment steps of each seed."""
    skills: int | None = None
    """Number of skills, or of dimensions of continuous ones; each method has its own default."""
    envs: int | None = None
    """Environments per seed, stepped together; 1 is exactly the published schedule."""
    hidden: int | None = None
    """Width of all networks (default: 1024); 256 suits a laptop."""
    precision: Precision | None = None
    """Precision of matrix products (default: bf16 where supported); weights and optimisers stay float32."""
    objective_obs: Parts = None
    """The part of an observation that the objective sees: numbers (0:2, or 0,3,7) or named parts (height); by default
    all of it."""
    normalize_obs: bool = False
    """Whiten observations with running statistics, which are kept with the policy."""
    set: Settings = ()
    """Any other option as OPTION=VALUE, for example temperature=0.2 replay.capacity=200000."""
    log_every: int | None = None
    """Steps of each seed between two rows of metrics (default: 10,000, or a twentieth of a shorter run)."""
    checkpoint_every: int = 100_000
    """Steps of each seed between two checkpoints."""
    wandb: str | None = None
    """Weights & Biases project to log to as well."""
    out: Path | None = None
    """Folder for results (default: runs/pretrain-ENV-METHOD). The same command again goes on where it stopped."""
    dry_run: bool = False
    """Only show the resolved configuration, the memory it needs and the time it would take."""


@dataclass(frozen=True)
class FinetuneOptions:
    """Let pretrained skills learn tasks from their own rewards; scores on the way. Seeds and tasks together."""

    run: Annotated[Path | None, Positional] = None
    """Folder of `becl pretrain`; none with --scratch."""
    task: tuple[str, ...] = ("all",)
    """Tasks of the run's domain (walker_run), or all."""
    scratch: bool = False
    """Learn the tasks without any pretraining: the DDPG baseline."""
    seeds: SomeSeeds = None
    """Seeds of the pretraining to take, written as in `becl pretrain` (default: all of them, and one from scratch)."""
    snapshot: int | None = None
    """Steps of pretraining after which the networks are taken (default: the last snapshot)."""
    skill: str | None = None
    """Which skill learns: random, resampled, fixed:K, each, best-first, constant, regress, meta, none; the default is
    the choice that the method was published with."""
    transfer: Literal["trunk", "critic", "critic-released"] | None = None
    """What is taken over besides the actor: the critic's trunk, or the whole critic with its target in step (critic)
    or fresh (critic-released); each method has its own default."""
    steps: int = 100_000
    """Environment steps of each run; 0 only evaluates."""
    eval_every: int = 10_000
    """Steps between evaluations."""
    eval_episodes: int = 10
    """Episodes per evaluation."""
    final_episodes: int | None = None
    """Episodes of the final score, from the same starts for every method (default: 50)."""
    envs: int | None = None
    """Environments per run, stepped together (default: as in the pretraining)."""
    hidden: int | None = None
    """Width of the networks with --scratch (default: 1024)."""
    precision: Precision | None = None
    """Precision of matrix products (default: as in the pretraining); weights and optimisers stay float32."""
    set: Settings = ()
    """Any other option as OPTION=VALUE, for example warmup=policy random_steps=0."""
    checkpoint_every: int = 25_000
    """Steps of each run between two checkpoints."""
    wandb: str | None = None
    """Weights & Biases project to log to as well."""
    out: Path | None = None
    """Folder for results (default: runs/finetune-DOMAIN-METHOD). The same command again goes on where it stopped."""
    dry_run: bool = False
    """Only show the resolved configuration and the memory it needs."""


@dataclass(frozen=True)
class MazeOptions:
    """Learn skills in a 2-D maze without a reward, and draw them: the paper's maze study."""

    methods: tuple[str, ...] = ()
    """Methods to compare (`becl methods` lists them); the default depends on the study."""
    study: Literal["comparison", "estimates", "temperature", "skills"] = "comparison"
    """comparison: methods side by side. estimates: the same with MINE and particle entropy. temperature: κ of 1, .5,
    .1, .01. skills: 10, 15, 20, 30 of them in the tree maze."""
    maze: str | None = None
    """Maze, one of `becl envs` (default: square_a; square_tree in the skills study)."""
    skills: int | None = None
    """Number of skills (default: 10)."""
    temperature: float | None = None
    """κ of BeCL's contrast; each preset has its own default."""
    seeds: Seeds = (0,)
    """How many (5: seeds 0 to 4), a range (100:105), or a list (3,7,9)."""
    cycles: int | None = None
    """Training cycles (default: the paper's 2500), each of 2 × 50 episodes of 50 steps."""
    set: Settings = ()
    """Any other option as [METHOD:]OPTION=VALUE, for example becl:positive=mean learner.entropy_weight=0.1."""
    mine_iterations: int = 10_000
    """Iterations of MINE in the estimates study."""
    workers: int | None = None
    """Processes on a CPU (default: one per core)."""
    out: Path | None = None
    """Folder for results (default: runs/maze-STUDY). The same command again goes on where it stopped."""
    demo: bool = False
    """BeCL beside DIAYN with one seed and a few hundred cycles: a first look in about a minute."""
    train_only: bool = False
    """Leave table and figures to a later command; other seeds of the folder may be trained at the same time."""


@dataclass(frozen=True)
class EvaluateOptions:
    """Measure the skills of a pretrained run: return on every task without training, states covered, distance."""

    run: Annotated[Path, Positional]
    """Folder of `becl pretrain`, finished or not."""
    snapshot: int | None = None
    """Steps of pretraining after which the networks are looked at (default: the last snapshot that all seeds have)."""
    task: tuple[str, ...] = ("all",)
    """Tasks whose return is measured, from the run's own domain (walker_run). Mazes have none."""
    episodes: int = 10
    """Episodes per skill. All skills have the same starts."""
    skills: tuple[int, ...] = ()
    """Numbers of the skills to look at (default: all; for continuous skills, 16 fixed draws)."""
    seeds: SomeSeeds = None
    """How many seeds (5: seeds 0 to 4), a range (100:105), or a list (3,7,9). Default: all seeds of the run."""
    out: Path | None = None
    """Folder for the results (default: RUN/evaluation)."""


@dataclass(frozen=True)
class GalleryOptions:
    """Look at the skills of a pretrained run in 3D: on a page of this machine, or as one file to send on."""

    run: Annotated[Path, Positional]
    """Folder of `becl pretrain`, finished or not."""
    export: Path | None = None
    """Write one HTML file that opens from disk, and serve nothing."""
    skills: tuple[int, ...] = ()
    """Numbers of the skills to show (default: all; for continuous skills, 16 fixed draws)."""
    seed: int | None = None
    """Seed of the run (default: its first). The page can change it."""
    snapshot: int | None = None
    """Steps of pretraining after which the networks are looked at (default: the last). The page can change it."""
    steps: int | None = None
    """How many steps of the episode to show (default: all)."""
    frames: int = 250
    """Most frames to show. Motion keeps the robot's own speed, however many there are."""
    port: int | None = None
    """Port of the page (default: any free one)."""
    host: str = "127.0.0.1"
    """Address to serve the page at. Beyond this machine (0.0.0.0: all its networks), whoever has the printed address
    with its token can see and steer it."""
    open: bool = True
    """Open the page in a browser."""


@dataclass(frozen=True)
class VideoOptions:
    """Film the skills of a pretrained run, or the tasks of a finetuned one: an mp4 and a GIF of each, and of all."""

    run: Annotated[Path, Positional]
    """Folder of `becl pretrain`, finished or not, or of `becl finetune`."""
    out: Path | None = None
    """Folder for the films (default: RUN/gallery)."""
    skills: tuple[int, ...] = ()
    """Numbers of the skills to film (default: all; for continuous skills, 16 fixed draws). A finetuned policy has its
    own skill."""
    seed: int | None = None
    """Seed of the run (default: its first)."""
    snapshot: int | None = None
    """Steps of pretraining after which the networks are looked at (default: the last)."""
    steps: int | None = None
    """How many steps of the episode to film (default: all)."""
    frames: int = 250
    """Most frames per film. Motion keeps the robot's own speed, however many there are."""
    size: int = 256
    """Width and height of a skill's picture, in pixels."""
    gif: bool = True
    """Also write GIFs."""
    renderer: Renderer = "auto"
    """What draws: OpenGL through EGL or OSMesa, or rays, which need neither (default: the first that works)."""


@dataclass(frozen=True)
class FilmstripOptions:
    """Draw snapshots along an episode side by side: one row per skill, finetuned task or method."""

    runs: Annotated[tuple[Path, ...], Positional]
    """Folders of `becl pretrain`, finished or not. One folder gives a row per skill, several give a row each. Folders
    of `becl finetune` give a row per task."""
    out: Path | None = None
    """Picture to write, as PNG (default: gallery/filmstrip.png in the first folder)."""
    skills: tuple[int, ...] = ()
    """Numbers of the skills (default: all skills of one run). For several runs one each, or one for all (default: the
    skill that moves most)."""
    seed: int | None = None
    """Seed of the runs (default: the first of each)."""
    snapshot: int | None = None
    """Steps of pretraining after which the networks are looked at (default: the last)."""
    steps: int | None = None
    """How many steps of the episode to show (default: all)."""
    frames: int = 8
    """Snapshots along the episode."""
    size: int = 128
    """Width and height of a snapshot, in pixels."""
    renderer: Renderer = "auto"
    """What draws: OpenGL through EGL or OSMesa, or rays, which need neither (default: the first that works)."""


@dataclass(frozen=True)
class TrajectoriesOptions:
    """Draw where the skills of a pretrained run go, which states they cover and, for BeCL, their features."""

    run: Annotated[Path, Positional]
    """Folder of `becl pretrain`, finished or not."""
    out: Path | None = None
    """Folder for the figures (default: RUN/gallery)."""
    skills: tuple[int, ...] = ()
    """Numbers of the skills (default: all; for continuous skills, 16 fixed draws)."""
    seed: int | None = None
    """Seed of the run (default: its first)."""
    snapshot: int | None = None
    """Steps of pretraining after which the networks are looked at (default: the last)."""
    episodes: int = 10
    """Episodes per skill. All skills have the same starts."""


@dataclass(frozen=True)
class SweepOptions:
    """Run a grid of methods, domains, tasks, seeds and options in stages: pretrain, finetune, report.

    The same command again goes on with what is not finished. `becl sweep status FILE` shows how far it is.
    """

    file: Annotated[tuple[str, ...], Positional]
    """A TOML file (docs/sweeps.md), or a preset: smoke, paper-maze, paper-urlb, paper-ablations."""
    out: Path | None = None
    """Folder for everything (default: what the file says, else runs/sweep-NAME)."""
    group: int | None = None
    """Most runs to train together (default: as many as are fast and fit into memory)."""
    cpus: int | None = None
    """Cores per job, with Ray (default: 1)."""
    gpus: float | None = None
    """GPUs per job, with Ray (default: 1 where there are any)."""
    retries: int | None = None
    """How often a job that fails is tried again, from its last checkpoint (default: 2)."""
    ray: bool = True
    """Run jobs side by side on Ray where it is installed; otherwise one after another in this process."""
    ray_address: str | None = None
    """Cluster to run on, HOST:PORT or auto (default: one of its own on this machine)."""
    dry_run: bool = False
    """Only show the plan: jobs, groups, estimated time and disk space."""


@dataclass(frozen=True)
class ReportOptions:
    """Compare finished runs: tables, figures and a page that opens anywhere, from folders alone."""

    runs: Annotated[tuple[Path, ...], Positional]
    """Folders of `becl finetune`, or folders that contain some. Those of `becl pretrain` add their skills."""
    out: Path = Path("report")
    """Folder for the page, figures and tables."""
    resamples: int = 50_000
    """Bootstrap resamples behind every 95 % interval."""
    markdown: Path | None = None
    """Also write text and tables to this Markdown file, with links to the figures in --out."""


@dataclass(frozen=True)
class ResumeOptions:
    """Go on with a run that was stopped, killed or cut off, from its last checkpoint, bit for bit."""

    run: Annotated[Path, Positional]
    """Folder of `becl pretrain`, `becl finetune` or `becl maze`."""
    checkpoint_every: int | None = None
    """Steps between two checkpoints (default: that of the command which began the run)."""
    wandb: str | None = None
    """Project of Weights & Biases to log to as well."""
    workers: int | None = None
    """Processes on a CPU, for a maze study."""


@dataclass(frozen=True)
class ExportOptions:
    """Write the policy of one skill as a file that others can load without this package."""

    run: Annotated[Path, Positional]
    """Folder of `becl pretrain` or `becl finetune`."""
    out: Path
    """File to write: .npz, .safetensors or .onnx."""
    skill: str | None = None
    """Number of the skill. For continuous skills: numbers separated by commas, or which of the draws of `becl
    evaluate`. A finetuned policy has its own skill."""
    seed: int | None = None
    """Seed of the run (default: its first)."""
    snapshot: int | None = None
    """Steps of pretraining (default: the last snapshot)."""
    task: str | None = None
    """Task, for a finetuned run with several."""
    format: Literal["npz", "safetensors", "onnx"] | None = None
    """File format (default: that of the file's name)."""
    force: bool = False
    """Replace the file where there is one."""


@dataclass(frozen=True)
class PlotOptions:
    """Draw learning curves of pretraining runs: intrinsic reward, states visited and the task's reward."""

    runs: Annotated[tuple[Path, ...], Positional]
    """Folders of `becl pretrain`, finished or not."""
    out: Path | None = None
    """Figure to write, as PNG and SVG (default: curves.png in the first folder)."""


@dataclass(frozen=True)
class EnvsOptions:
    """Show the environments."""

    out: Path | None = None
    """Also draw all mazes into this file, as PNG and SVG."""


@dataclass(frozen=True)
class MethodsOptions:
    """Show the methods and their options."""

    name: Annotated[tuple[str, ...], Positional] = ()
    """Methods whose options are shown (default: a list of all methods)."""


@dataclass(frozen=True)
class TheoryOptions:
    """Check the paper's two theorems and its decomposition numerically; draws the figures of docs/theory.md."""

    out: Path = Path("runs/theory")
    """Folder for the figures."""


@dataclass(frozen=True)
class DoctorOptions:
    """Check this machine: versions, devices, precisions, memory, rendering, disk, and what to do where one fails."""

    out: Path | None = None
    """Folder of results whose disk is timed (default: runs, or this folder)."""
    json: Path | None = None
    """Also write the findings to this file."""


OPTIONS: dict[str, type] = {
    "maze": MazeOptions,
    "pretrain": PretrainOptions,
    "finetune": FinetuneOptions,
    "evaluate": EvaluateOptions,
    "gallery": GalleryOptions,
    "video": VideoOptions,
    "filmstrip": FilmstripOptions,
    "trajectories": TrajectoriesOptions,
    "sweep": SweepOptions,
    "report": ReportOptions,
    "resume": ResumeOptions,
    "export": ExportOptions,
    "plot": PlotOptions,
    "envs": EnvsOptions,
    "methods": MethodsOptions,
    "theory": TheoryOptions,
    "doctor": DoctorOptions,
}
"""By the name of the command."""


def fill(kind: type[Options], values: Mapping[str, Any]) -> Options:
    """Options with these values, each checked against the type of its field."""
    hints = typing.get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for name in values:
        if name not in names:
            raise unknown("option", name, names)
    return kind(**{name: parse(name, value, hints[name]) for name, value in values.items()})
