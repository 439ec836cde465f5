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
    """Learn skills, or explore, without a task's reward. All seeds are trained together."""

    env: Annotated[str, Positional]
    """A robot (walker, quadruped, jaco), one of its tasks (walker_run), or a maze (square_a); `becl envs` lists them.
    Also any Gymnasium environment (gym:HalfCheetah-v5) or dm_control task (dmc:cheetah_run)."""
    method: str = "becl"
    """Method to train; `becl methods` lists them."""
    seeds: Seeds = (0,)
    """Number of seeds (5 means seeds 0 to 4), a range (100:105 means 100 to 104), or a list (3,7,9)."""
    steps: int = 2_000_000
    """Environment steps per seed."""
    skills: int | None = None
    """Number of skills; for continuous skills, number of dimensions (default: depends on the method)."""
    envs: int | None = None
    """Environments per seed, stepped together (default: 32). 1 reproduces the published schedule exactly."""
    hidden: int | None = None
    """Width of all networks (default: 1024). 256 suits a laptop."""
    precision: Precision | None = None
    """Precision of matrix products (default: bf16 where supported). Weights and optimisers stay float32."""
    objective_obs: Parts = None
    """What the objective sees of an observation: indices (0:2, or 0,3,7) or named parts (height) (default: all)."""
    normalize_obs: bool = False
    """Normalise observations by their running mean and deviation, which are stored with the policy."""
    set: Settings = ()
    """Any other option as OPTION=VALUE, for example temperature=0.2 replay.capacity=200000."""
    log_every: int | None = None
    """Steps per seed between rows of metrics (default: 10,000, or a twentieth of a shorter run)."""
    checkpoint_every: int = 100_000
    """Steps per seed between checkpoints."""
    wandb: str | None = None
    """Also log to this Weights & Biases project."""
    out: Path | None = None
    """Folder for results (default: runs/pretrain-ENV-METHOD). The same command continues a stopped run."""
    dry_run: bool = False
    """Only show the resolved configuration, the memory it needs and the estimated time."""


@dataclass(frozen=True)
class FinetuneOptions:
    """Train pretrained skills on tasks, with the tasks' own rewards, and score them. Seeds and tasks run together."""

    run: Annotated[Path | None, Positional] = None
    """Folder of `becl pretrain`; leave it out with --scratch."""
    task: tuple[str, ...] = ("all",)
    """Tasks of the run's robot or environment (walker_run), or all."""
    scratch: bool = False
    """Learn the tasks without any pretraining: the DDPG baseline."""
    seeds: SomeSeeds = None
    """Which pretrained seeds to use, written as in `becl pretrain` (default: all; with --scratch, one)."""
    snapshot: int | None = None
    """Which saved networks to start from, by steps of pretraining (default: the last snapshot)."""
    skill: str | None = None
    """Which skill learns the task: random, resampled, fixed:K, each, best-first, constant, regress, meta or none
    (default: the choice that the method was published with)."""
    transfer: Literal["trunk", "critic", "critic-released"] | None = None
    """What to keep besides the actor: the critic's trunk (trunk), or the whole critic with its target network equal to
    it (critic) or freshly initialised (critic-released) (default: depends on the method)."""
    steps: int = 100_000
    """Environment steps per run; 0 only evaluates."""
    eval_every: int = 10_000
    """Steps between evaluations."""
    eval_episodes: int = 10
    """Episodes per evaluation."""
    final_episodes: int | None = None
    """Episodes for the final score, from the same starting states for every method (default: 50)."""
    envs: int | None = None
    """Environments per run, stepped together (default: as in pretraining)."""
    hidden: int | None = None
    """Width of the networks with --scratch (default: 1024)."""
    precision: Precision | None = None
    """Precision of matrix products (default: as in pretraining). Weights and optimisers stay float32."""
    set: Settings = ()
    """Any other option as OPTION=VALUE, for example warmup=policy random_steps=0."""
    checkpoint_every: int = 25_000
    """Steps per run between checkpoints."""
    wandb: str | None = None
    """Also log to this Weights & Biases project."""
    out: Path | None = None
    """Folder for results (default: runs/finetune-DOMAIN-METHOD). The same command continues a stopped run."""
    dry_run: bool = False
    """Only show the resolved configuration and the memory it needs."""
    trust: bool = False
    """Run the code of the environment that the folder names, where that is from outside becl (py:, gym:MODULE/ID)."""


@dataclass(frozen=True)
class MazeOptions:
    """Learn skills in a 2-D maze without a reward, and draw them: the paper's maze study."""

    methods: tuple[str, ...] = ()
    """Methods to compare; `becl methods` lists them (default: depends on the study)."""
    study: Literal["comparison", "estimates", "temperature", "skills"] = "comparison"
    """comparison: methods side by side. estimates: the same, with MINE and particle entropy. temperature: κ = 1, 0.5,
    0.1, 0.01. skills: 10, 15, 20, 30 skills in the tree maze."""
    maze: str | None = None
    """Which maze; `becl envs` lists them (default: square_a; square_tree in the skills study)."""
    skills: int | None = None
    """Number of skills (default: 10)."""
    temperature: float | None = None
    """Temperature κ of BeCL's contrast (default: depends on the preset)."""
    seeds: Seeds = (0,)
    """Number of seeds (5 means seeds 0 to 4), a range (100:105 means 100 to 104), or a list (3,7,9)."""
    cycles: int | None = None
    """Training cycles, each of 2 × 50 episodes of 50 steps (default: the paper's 2500)."""
    set: Settings = ()
    """Any other option as [METHOD:]OPTION=VALUE, for example becl:positive=mean learner.entropy_weight=0.1."""
    mine_iterations: int = 10_000
    """Iterations of MINE in the estimates study."""
    workers: int | None = None
    """Number of processes on a CPU (default: one per core)."""
    out: Path | None = None
    """Folder for results (default: runs/maze-STUDY). The same command continues a stopped run."""
    demo: bool = False
    """A first look in about a minute: BeCL and DIAYN, one seed, a few hundred cycles."""
    train_only: bool = False
    """Only train, and leave the table and figures to a later command. Other commands may train other seeds in the same
    folder at the same time."""


@dataclass(frozen=True)
class EvaluateOptions:
    """Measure the skills of a pretrained run without training: return on every task, states covered, distance."""

    run: Annotated[Path, Positional]
    """Folder of `becl pretrain`, finished or not."""
    snapshot: int | None = None
    """Which saved networks to use, by steps of pretraining (default: the last snapshot that all seeds have)."""
    task: tuple[str, ...] = ("all",)
    """Tasks to measure returns on, of the run's own robot (walker_run), or all. Mazes have none."""
    episodes: int = 10
    """Episodes per skill. All skills start from the same states."""
    skills: tuple[int, ...] = ()
    """Which skills to measure, by number (default: all; for continuous skills, 16 fixed draws)."""
    seeds: SomeSeeds = None
    """Number of seeds (5 means seeds 0 to 4), a range (100:105), or a list (3,7,9) (default: all seeds of the run)."""
    out: Path | None = None
    """Folder for the results (default: RUN/evaluation)."""
    trust: bool = False
    """Run the code of the environment that the folder names, where that is from outside becl (py:, gym:MODULE/ID)."""


@dataclass(frozen=True)
class GalleryOptions:
    """Look at the skills of a pretrained run in 3D: on a page served from this machine, or as one file to share."""

    run: Annotated[Path, Positional]
    """Folder of `becl pretrain`, finished or not."""
    export: Path | None = None
    """Write one HTML file that opens from disk, instead of serving a page."""
    skills: tuple[int, ...] = ()
    """Which skills to show, by number (default: all; for continuous skills, 16 fixed draws)."""
    seed: int | None = None
    """Seed of the run (default: its first). You can change it on the page."""
    snapshot: int | None = None
    """Which saved networks to use, by steps of pretraining (default: the last snapshot). You can change it on the
    page."""
    steps: int | None = None
    """How many steps of the episode to show (default: all)."""
    frames: int = 250
    """Maximum number of frames to show. Playback speed does not depend on it."""
    port: int | None = None
    """Port of the page (default: any free one)."""
    host: str = "127.0.0.1"
    """Address to serve the page at. Beyond this machine (0.0.0.0: all its networks), whoever has the printed address
    with its token can see and steer it."""
    open: bool = True
    """Open the page in a browser."""
    trust: bool = False
    """Run the code of the environment that the folder names, where that is from outside becl (py:, gym:MODULE/ID)."""


@dataclass(frozen=True)
class VideoOptions:
    """Film the skills of a pretrained run, or the tasks of a finetuned one: an mp4 and a GIF of each, and of all
    side by side."""

    run: Annotated[Path, Positional]
    """Folder of `becl pretrain`, finished or not, or of `becl finetune`."""
    out: Path | None = None
    """Folder for the films (default: RUN/gallery)."""
    skills: tuple[int, ...] = ()
    """Which skills to film, by number (default: all; for continuous skills, 16 fixed draws). Not for a finetuned
    policy, which has its own skill."""
    seed: int | None = None
    """Seed of the run (default: its first)."""
    snapshot: int | None = None
    """Which saved networks to use, by steps of pretraining (default: the last snapshot)."""
    steps: int | None = None
    """How many steps of the episode to film (default: all)."""
    frames: int = 250
    """Maximum number of frames per film. Playback speed does not depend on it."""
    size: int = 256
    """Width and height of a skill's picture, in pixels."""
    gif: bool = True
    """Also write GIFs."""
    renderer: Renderer = "auto"
    """Renderer: OpenGL through EGL or OSMesa, or ray casting, which needs neither; auto takes the first that works."""
    trust: bool = False
    """Run the code of the environment that the folder names, where that is from outside becl (py:, gym:MODULE/ID)."""


@dataclass(frozen=True)
class FilmstripOptions:
    """Draw snapshots along an episode side by side: one row per skill, finetuned task or method."""

    runs: Annotated[tuple[Path, ...], Positional]
    """Folders of `becl pretrain`, finished or not, or of `becl finetune`. One pretrained run gives a row per skill,
    several give one row each; finetuned runs give a row per task."""
    out: Path | None = None
    """Picture to write, as PNG (default: gallery/filmstrip.png in the first folder)."""
    skills: tuple[int, ...] = ()
    """Which skills to draw, by number. For several runs, give one for each or one for all (default: all skills of a
    single run; for several runs, the skill of each that moves most)."""
    seed: int | None = None
    """Seed of the runs (default: the first of each)."""
    snapshot: int | None = None
    """Which saved networks to use, by steps of pretraining (default: the last snapshot)."""
    steps: int | None = None
    """How many steps of the episode to show (default: all)."""
    frames: int = 8
    """Snapshots along the episode."""
    size: int = 128
    """Width and height of a snapshot, in pixels."""
    renderer: Renderer = "auto"
    """Renderer: OpenGL through EGL or OSMesa, or ray casting, which needs neither; auto takes the first that works."""
    trust: bool = False
    """Run the code of the environments that the folders name, where they are from outside becl (py:, gym:MODULE/ID)."""


@dataclass(frozen=True)
class TrajectoriesOptions:
    """Draw where the skills of a pretrained run go, which states they cover and, for BeCL, their features."""

    run: Annotated[Path, Positional]
    """Folder of `becl pretrain`, finished or not."""
    out: Path | None = None
    """Folder for the figures (default: RUN/gallery)."""
    skills: tuple[int, ...] = ()
    """Which skills to draw, by number (default: all; for continuous skills, 16 fixed draws)."""
    seed: int | None = None
    """Seed of the run (default: its first)."""
    snapshot: int | None = None
    """Which saved networks to use, by steps of pretraining (default: the last snapshot)."""
    episodes: int = 10
    """Episodes per skill. All skills start from the same states."""
    trust: bool = False
    """Run the code of the environment that the folder names, where that is from outside becl (py:, gym:MODULE/ID)."""


@dataclass(frozen=True)
class SweepOptions:
    """Run a grid of methods, domains, tasks, seeds and options in stages: pretrain, finetune, report.

    The same command continues with what is not finished. `becl sweep status FILE` shows the progress.
    """

    file: Annotated[tuple[str, ...], Positional]
    """A TOML file (docs/sweeps.md), or a preset: smoke, paper-maze, paper-urlb, paper-ablations."""
    out: Path | None = None
    """Folder for all results (default: what the file says, otherwise runs/sweep-NAME)."""
    group: int | None = None
    """Maximum number of runs to train together (default: as many as run fast and fit into memory)."""
    cpus: int | None = None
    """Cores per job, with Ray (default: 1)."""
    gpus: float | None = None
    """GPUs per job, with Ray (default: 1 where there are any)."""
    retries: int | None = None
    """How often a job that fails is tried again, from its last checkpoint (default: 2)."""
    ray: bool = True
    """Use Ray, if it is installed, to run jobs in parallel; otherwise they run one after another in this process."""
    ray_address: str | None = None
    """Ray cluster to run on, HOST:PORT or auto (default: start Ray on this machine)."""
    dry_run: bool = False
    """Only show the plan: jobs, groups, estimated time and disk space."""
    trust: bool = False
    """Run the code of the environments that the file names, where they are from outside becl (py:, gym:MODULE/ID)."""


@dataclass(frozen=True)
class ReportOptions:
    """Compare finished runs: tables and figures on one page that opens in any browser."""

    runs: Annotated[tuple[Path, ...], Positional]
    """Folders of `becl finetune`, or folders that contain some. Folders of `becl pretrain` add measurements of
    their skills, those of `becl maze` their tables and figures."""
    out: Path = Path("report")
    """Folder for the page, figures and tables."""
    resamples: int = 50_000
    """Bootstrap resamples for each 95 % interval."""
    markdown: Path | None = None
    """Also write text and tables to this Markdown file, with links to the figures in --out."""


@dataclass(frozen=True)
class ResumeOptions:
    """Continue a run that was stopped or killed, from its last checkpoint, bit for bit."""

    run: Annotated[Path, Positional]
    """Folder of `becl pretrain`, `becl finetune` or `becl maze`."""
    checkpoint_every: int | None = None
    """Steps between checkpoints (default: 100,000 for pretraining, 25,000 for finetuning)."""
    wandb: str | None = None
    """Also log to this Weights & Biases project."""
    workers: int | None = None
    """Number of processes on a CPU, for a maze study (default: one per core)."""
    trust: bool = False
    """Run the code of the environment that the folder names, where that is from outside becl (py:, gym:MODULE/ID)."""


@dataclass(frozen=True)
class ExportOptions:
    """Write the policy of one skill as a file that others can load without this package."""

    run: Annotated[Path, Positional]
    """Folder of `becl pretrain` or `becl finetune`."""
    out: Path
    """File to write: .npz, .safetensors or .onnx."""
    skill: str | None = None
    """Number of the skill. For continuous skills, its components separated by commas, or the number of one of the draws
    that `becl evaluate` measures. Not for a finetuned policy, which has its own skill."""
    seed: int | None = None
    """Seed of the run (default: its first)."""
    snapshot: int | None = None
    """Which saved networks to export, by steps of pretraining (default: the last snapshot)."""
    task: str | None = None
    """Which task's policy to export, if the run was finetuned on several."""
    format: Literal["npz", "safetensors", "onnx"] | None = None
    """File format (default: by the ending of the file's name)."""
    force: bool = False
    """Overwrite an existing file."""


@dataclass(frozen=True)
class PlotOptions:
    """Draw learning curves and say what they show: rewards and states visited of pretraining, returns of finetuning,
    rewards and entropies of a maze study."""

    runs: Annotated[tuple[Path, ...], Positional]
    """Folders of `becl pretrain`, finished or not, or of `becl finetune`, or one of `becl maze`."""
    out: Path | None = None
    """Figure to write, as PNG and SVG (default: curves.png in the first folder)."""


@dataclass(frozen=True)
class EnvsOptions:
    """List the environments that come with the package."""

    out: Path | None = None
    """Also draw all mazes into this file, as PNG and SVG."""


@dataclass(frozen=True)
class MethodsOptions:
    """List the methods, or show the options of some."""

    name: Annotated[tuple[str, ...], Positional] = ()
    """Methods to show the options of (default: list all methods)."""


@dataclass(frozen=True)
class TheoryOptions:
    """Check the paper's two theorems and its decomposition numerically, and draw the figures of docs/theory.md."""

    out: Path = Path("runs/theory")
    """Folder for the figures."""


@dataclass(frozen=True)
class DoctorOptions:
    """Check this machine: versions, devices, precisions, memory, rendering and disk, and say how to fix what fails."""

    out: Path | None = None
    """Folder whose disk is timed (default: runs if it exists, otherwise this folder)."""
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
