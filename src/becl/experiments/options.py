"""Options of `becl pretrain`, `becl finetune` and `becl maze`: the command line, Python and sweeps fill in the same.

Their docstrings are the help text. Seeds and settings have a text form on the command line alone; from Python and in a
sweep they are numbers and typed values.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tyro.constructors import PrimitiveConstructorSpec

from becl.errors import UserError
from becl.seeds import parse_seeds, seeds_text


class Refused(Exception):
    """A `UserError` raised while the command line is parsed; tyro would put a ValueError into words of its own."""


def typed(parse: Callable[[str], Any], to_text: Callable[[Any], str], metavar: str) -> PrimitiveConstructorSpec[Any]:
    """How one word of the command line becomes a value, and is shown again in the help."""

    def read(words: list[str]) -> Any:
        try:
            return parse(words[0])
        except UserError as error:
            raise Refused(str(error)) from None

    return PrimitiveConstructorSpec(1, metavar, read, lambda value: True, lambda value: [to_text(value)])


def optional(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda text: None if text == "None" else parse(text)


def default_seeds(seeds: Sequence[int] | None) -> str:
    """Seeds as the help shows them: a count where they begin at 0."""
    if seeds is None:
        return "None"
    return str(len(seeds)) if list(seeds) == list(range(len(seeds))) else seeds_text(seeds)


Seeds = Annotated[tuple[int, ...], typed(parse_seeds, default_seeds, "STR")]
SomeSeeds = Annotated[tuple[int, ...] | None, typed(optional(parse_seeds), default_seeds, "{None}|STR")]
Parts = Annotated[str | tuple[int, ...] | None, typed(optional(str), str, "{None}|STR")]
Settings = Annotated[
    Sequence[str] | Mapping[str, Any],
    PrimitiveConstructorSpec("*", "[STR [STR ...]]", tuple, lambda value: True, list),
]
"""`PATH=VALUE` each, or a mapping from paths to values that have their types already."""


@dataclass(frozen=True)
class PretrainOptions:
    """Learn skills, or explore, without a reward: seeds of one method trained together."""

    env: Annotated[str, tyro.conf.Positional]
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
    precision: Literal["auto", "float32", "tf32", "bf16"] | None = None
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

    run: Annotated[Path | None, tyro.conf.Positional] = None
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
    precision: Literal["auto", "float32", "tf32", "bf16"] | None = None
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
