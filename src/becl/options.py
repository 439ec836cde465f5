"""The options of every command, once: filled in by the command line (tyro), by Python and by sweeps alike.

A docstring is a command's help, the text below a field is its option's help. Imports nothing heavy, so that help and
mistakes are shown at once.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional

Precision = Literal["auto", "float32", "tf32", "bf16"]
Renderer = Literal["auto", "egl", "osmesa", "rays"]


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
    seeds: str | None = None
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
    """Seed of the run (default: its first). It can be changed on the page."""
    snapshot: int | None = None
    """Steps of pretraining after which the networks are looked at (default: the last). It can be changed on the page."""
    steps: int | None = None
    """How many steps of the episode to show (default: all)."""
    frames: int = 250
    """Most frames to show. Motion keeps the robot's own speed, however many there are."""
    port: int | None = None
    """Port of the page (default: any free one)."""
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
