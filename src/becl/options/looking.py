"""The options of the commands that look at runs, at methods and environments, and at the machine."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from becl.options.fields import (
    File,
    Folder,
    Group,
    Method,
    Parts,
    Pixels,
    Positional,
    Run,
    Seed,
    SomeSeeds,
    Steps,
    Trust,
    Value,
)

Renderer = Literal["auto", "egl", "osmesa", "rays"]


@dataclass(frozen=True)
class EvaluateOptions:
    """Measure the skills of a pretrained run without training: return on every task, states covered, distance.

    Examples:
        becl evaluate runs/pretrain-walker-becl
        # some skills only, and nothing but the walking task
        becl evaluate runs/pretrain-walker-becl --skills 0 3 --task walker_walk
        # where the hand of an arm goes, in squares of 10 cm
        becl evaluate runs/arm --position hand --square 0.1
    """

    run: Annotated[Run, Positional]
    """Folder of `becl pretrain`, finished or not."""
    snapshot: Annotated[Steps | None, Group("What to measure")] = None
    """Which saved networks to use, by steps of pretraining (default: the last snapshot that all seeds have)."""
    task: tuple[str, ...] = ("all",)
    """Tasks to measure returns on, of the run's own robot (walker_run), or all. Mazes have none."""
    episodes: int = 10
    """Episodes per skill. All skills start from the same states."""
    skills: tuple[int, ...] = ()
    """Which skills to measure, by number (default: all; for continuous skills, 16 fixed draws)."""
    seeds: SomeSeeds = None
    """Which seeds of the run: how many (5: seeds 0 to 4), a range (100:105), or a list (3,7,9) (default: all)."""
    position: Annotated[Parts, Group("Environments from outside becl")] = None
    """Which numbers of an observation say where it is, by place (0:2) or name (hand) (default: a part named position,
    xy or achieved_goal; else x and y of a MuJoCo model)."""
    square: float = 1.0
    """Side of the squares in which places are counted, in the position's own unit."""
    out: Annotated[Folder | None, Group("Output")] = None
    """Folder for the results (default: RUN/evaluation)."""
    trust: Trust = False
    """Run the code of the environment that the folder names, where that is from outside becl (py:, gym:MODULE/ID)."""


@dataclass(frozen=True)
class ReachOptions:
    """Lead to goals without training: METRA and its family turn their skill towards a goal at every step.

    Examples:
        # a place in a maze
        becl reach runs/pretrain-square_a-metra --goal 3.5,2
        # x and y of an ant, which are the first numbers of its observation; two goals
        becl reach runs/pretrain-ant --goal 0:2=5,5 0:2=-5,0 --within 1
    """

    run: Annotated[Run, Positional]
    """Folder of `becl pretrain`, finished or not, of a method in whose features distances count steps."""
    goal: Annotated[tuple[str, ...], Group("What to reach"), Value("GOAL", tuple, several=True)]
    """Goals: all numbers of an observation (3.5,2), or some of them by place or by name (0:2=3.5,2), while the others
    stay as they are."""
    within: float | None = None
    """Distance at which a goal counts as reached (default: none does; distances only)."""
    episodes: Annotated[int, Group("How much")] = 10
    """Episodes per goal and skill, all from the same starting states."""
    steps: Steps | None = None
    """Steps per episode (default: the environment's)."""
    seeds: SomeSeeds = None
    """Which seeds of the run: how many (5: seeds 0 to 4), a range (100:105), or a list (3,7,9) (default: all)."""
    snapshot: Steps | None = None
    """Which saved networks to use, by steps of pretraining (default: the last snapshot that all seeds have)."""
    out: Annotated[Folder | None, Group("Output")] = None
    """Folder for the results (default: RUN/reach)."""
    trust: Trust = False
    """Run the code of the environment that the folder names, where that is from outside becl (py:, gym:MODULE/ID)."""


@dataclass(frozen=True)
class GalleryOptions:
    """Look at the skills of a pretrained run in 3D: on a page served from this machine, or as one file to share.

    Examples:
        # a page in the browser
        becl gallery runs/pretrain-walker-becl
        # one file to send to somebody
        becl gallery runs/pretrain-walker-becl --export skills.html
    """

    run: Annotated[Run, Positional]
    """Folder of `becl pretrain`, finished or not."""
    export: Annotated[File | None, Group("Output")] = None
    """Write one HTML file that opens from disk, instead of serving a page."""
    skills: Annotated[tuple[int, ...], Group("What to show")] = ()
    """Which skills to show, by number (default: all; for continuous skills, 16 fixed draws)."""
    seed: Seed | None = None
    """Seed of the run (default: its first). You can change it on the page."""
    snapshot: Steps | None = None
    """Which saved networks to use, by steps of pretraining (default: the last snapshot). You can change it on the
    page."""
    steps: Steps | None = None
    """How many steps of the episode to show (default: all)."""
    frames: int = 250
    """Maximum number of frames to show. Playback speed does not depend on it."""
    port: Annotated[int | None, Value("PORT"), Group("The page")] = None
    """Port of the page (default: any free one)."""
    host: str = "127.0.0.1"
    """Address to serve the page at. Beyond this machine (0.0.0.0: all its networks), whoever has the printed address
    with its token can see and steer it."""
    open: bool = True
    """Open the page in a browser."""
    trust: Trust = False
    """Run the code of the environment that the folder names, where that is from outside becl (py:, gym:MODULE/ID)."""


@dataclass(frozen=True)
class VideoOptions:
    """Film the skills of a pretrained run, or the tasks of a finetuned one: an mp4 and a GIF of each, and of all
    side by side.

    Examples:
        becl video runs/pretrain-walker-becl --out films
        # two skills, large, as mp4 only
        becl video runs/pretrain-walker-becl --skills 2 6 --size 512 --no-gif
    """

    run: Annotated[Run, Positional]
    """Folder of `becl pretrain`, finished or not, or of `becl finetune`."""
    out: Annotated[Folder | None, Group("Output")] = None
    """Folder for the films (default: RUN/gallery)."""
    skills: Annotated[tuple[int, ...], Group("What to film")] = ()
    """Which skills to film, by number (default: all; for continuous skills, 16 fixed draws). Not for a finetuned
    policy, which has its own skill."""
    seed: Seed | None = None
    """Seed of the run (default: its first)."""
    snapshot: Steps | None = None
    """Which saved networks to use, by steps of pretraining (default: the last snapshot)."""
    steps: Steps | None = None
    """How many steps of the episode to film (default: all)."""
    frames: Annotated[int, Group("Pictures")] = 250
    """Maximum number of frames per film. Playback speed does not depend on it."""
    size: Pixels = 256
    """Width and height of a skill's picture, in pixels."""
    gif: bool = True
    """Also write GIFs."""
    renderer: Renderer = "auto"
    """Renderer: OpenGL through EGL or OSMesa, or ray casting, which needs neither; auto takes the first that works."""
    trust: Trust = False
    """Run the code of the environment that the folder names, where that is from outside becl (py:, gym:MODULE/ID)."""


@dataclass(frozen=True)
class FilmstripOptions:
    """Draw snapshots along an episode side by side: one row per skill, finetuned task or method.

    Examples:
        # a row for each of three skills
        becl filmstrip runs/pretrain-walker-becl --skills 0 2 6
        # a row for each method
        becl filmstrip runs/pretrain-walker-becl runs/pretrain-walker-diayn
    """

    runs: Annotated[tuple[Run, ...], Positional]
    """Folders of `becl pretrain`, finished or not, or of `becl finetune`. One pretrained run gives a row per skill,
    several give one row each; finetuned runs give a row per task."""
    out: Annotated[File | None, Group("Output")] = None
    """Picture to write, as PNG (default: gallery/filmstrip.png in the first folder)."""
    skills: Annotated[tuple[int, ...], Group("What to draw")] = ()
    """Which skills to draw, by number. For several runs, give one for each or one for all (default: all skills of a
    single run; for several runs, the skill of each that moves most)."""
    seed: Seed | None = None
    """Seed of the runs (default: the first of each)."""
    snapshot: Steps | None = None
    """Which saved networks to use, by steps of pretraining (default: the last snapshot)."""
    steps: Steps | None = None
    """How many steps of the episode to show (default: all)."""
    frames: Annotated[int, Group("Pictures")] = 8
    """Snapshots along the episode."""
    size: Pixels = 128
    """Width and height of a snapshot, in pixels."""
    renderer: Renderer = "auto"
    """Renderer: OpenGL through EGL or OSMesa, or ray casting, which needs neither; auto takes the first that works."""
    trust: Trust = False
    """Run the code of the environments that the folders name, where they are from outside becl (py:, gym:MODULE/ID)."""


@dataclass(frozen=True)
class TrajectoriesOptions:
    """Draw where the skills of a pretrained run go, which states they cover and, for BeCL, their features.

    Examples:
        becl trajectories runs/pretrain-square_a-becl
        # as the skills were early in training
        becl trajectories runs/pretrain-walker-becl --snapshot 100000
    """

    run: Annotated[Run, Positional]
    """Folder of `becl pretrain`, finished or not."""
    out: Folder | None = None
    """Folder for the figures (default: RUN/gallery)."""
    skills: tuple[int, ...] = ()
    """Which skills to draw, by number (default: all; for continuous skills, 16 fixed draws)."""
    seed: Seed | None = None
    """Seed of the run (default: its first)."""
    snapshot: Steps | None = None
    """Which saved networks to use, by steps of pretraining (default: the last snapshot)."""
    episodes: int = 10
    """Episodes per skill. All skills start from the same states."""
    position: Parts = None
    """In environments from outside becl: which numbers of an observation say where it is, by place (0:2) or name (hand)
    (default: a part named position, xy or achieved_goal; else x and y of a MuJoCo model)."""
    trust: Trust = False
    """Run the code of the environment that the folder names, where that is from outside becl (py:, gym:MODULE/ID)."""


@dataclass(frozen=True)
class ReportOptions:
    """Compare finished runs: tables and figures on one page that opens in any browser.

    Examples:
        # all runs below a folder
        becl report runs/
        becl report runs/finetune-walker-becl runs/finetune-walker-ddpg --out walker
    """

    runs: Annotated[tuple[Run, ...], Positional]
    """Folders of `becl finetune`, or folders that contain some. Folders of `becl pretrain` add measurements of
    their skills, those of `becl maze` their tables and figures."""
    out: Folder = Path("report")
    """Folder for the page, figures and tables."""
    resamples: int = 50_000
    """Bootstrap resamples for each 95 % interval."""
    markdown: File | None = None
    """Also write text and tables to this Markdown file, with links to the figures in --out."""


@dataclass(frozen=True)
class PlotOptions:
    """Draw learning curves and say what they show: rewards and states visited of pretraining, returns of finetuning,
    rewards and entropies of a maze study.

    Examples:
        becl plot runs/pretrain-walker-becl
        # two methods in one figure
        becl plot runs/pretrain-walker-becl runs/pretrain-walker-diayn
    """

    runs: Annotated[tuple[Run, ...], Positional]
    """Folders of `becl pretrain`, finished or not, or of `becl finetune`, or one of `becl maze`."""
    out: File | None = None
    """Figure to write, as PNG and SVG (default: curves.png in the first folder)."""


@dataclass(frozen=True)
class ExportOptions:
    """Write the policy of one skill as a file that others can load without this package.

    Examples:
        becl export runs/pretrain-walker-becl --skill 3 --out walk.npz
        # for programs that are not written in Python
        becl export runs/finetune-walker-becl --task walker_run --out run.onnx
    """

    run: Annotated[Run, Positional]
    """Folder of `becl pretrain` or `becl finetune`."""
    out: Annotated[File, Group("The file")]
    """File to write: .npz, .safetensors or .onnx."""
    skill: Annotated[str | None, Group("Which policy")] = None
    """Number of the skill. For continuous skills, its components separated by commas, or the number of one of the draws
    that `becl evaluate` measures. Not for a finetuned policy, which has its own skill."""
    seed: Seed | None = None
    """Seed of the run (default: its first)."""
    snapshot: Steps | None = None
    """Which saved networks to export, by steps of pretraining (default: the last snapshot)."""
    task: str | None = None
    """Which task's policy to export; needed if the run was finetuned on several."""
    format: Literal["npz", "safetensors", "onnx"] | None = None
    """File format (default: by the ending of the file's name)."""
    force: bool = False
    """Overwrite an existing file."""


@dataclass(frozen=True)
class EnvsOptions:
    """List the environments that come with the package.

    Examples:
        becl envs
        # a picture of all mazes
        becl envs --out mazes.png
    """

    out: File | None = None
    """Also draw all mazes into this file, as PNG and SVG."""


@dataclass(frozen=True)
class MethodsOptions:
    """List the methods, or show the options of some.

    Examples:
        becl methods
        becl methods becl diayn
    """

    name: Annotated[tuple[Method, ...], Positional] = ()
    """Methods to show the options of (default: list all methods)."""


@dataclass(frozen=True)
class TheoryOptions:
    """Check the paper's two theorems and its decomposition numerically, and draw the figures of docs/theory.md.

    Examples:
        becl theory --out theory
    """

    out: Folder = Path("runs/theory")
    """Folder for the figures."""


@dataclass(frozen=True)
class DoctorOptions:
    """Check this machine: versions, devices, precisions, memory, rendering and disk, and say how to fix what fails.

    Examples:
        becl doctor
        # the same as a file, for a bug report
        becl doctor --json doctor.json
    """

    out: Folder | None = None
    """Folder whose disk is timed (default: runs if it exists, otherwise this folder)."""
    json: File | None = None
    """Also write the findings to this file."""


@dataclass(frozen=True)
class CompletionOptions:
    """Print a script that makes a shell complete what you type for becl with the Tab key: commands, options, methods,
    environments, tasks, folders.

    Examples:
        # now and in every new bash
        becl completion bash > ~/.becl-completion
        echo '. ~/.becl-completion' >> ~/.bashrc
        # zsh: into a folder of your $fpath
        becl completion zsh > ~/.zsh/completions/_becl
        # fish
        becl completion fish > ~/.config/fish/completions/becl.fish
    """

    shell: Annotated[Literal["bash", "zsh", "fish"], Positional]
    """The shell to complete in."""
