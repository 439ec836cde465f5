"""The commands as functions."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from becl.api.checks import checked, to_path
from becl.api.quiet import check_code, printing
from becl.api.runs import Environment, Finetuned, Place, Run, Seeds
from becl.commands import control as control_command
from becl.commands import finetune as finetune_command
from becl.commands import maze as maze_command
from becl.commands import pretrain as pretrain_command
from becl.commands import report as report_command
from becl.commands import resume as resume_command
from becl.commands import sweep as sweep_command
from becl.envs.external import hand_over
from becl.errors import Failed, UserError
from becl.experiments.control import as_finetuning, make_control
from becl.experiments.evaluation import Evaluation, measure
from becl.experiments.finetuner import CHECKPOINT_EVERY as FINETUNING_CHECKPOINTS
from becl.experiments.finetuning import Transfer, load_finetuning, make_finetuning
from becl.experiments.pretrainer import CHECKPOINT_EVERY as PRETRAINING_CHECKPOINTS
from becl.experiments.pretraining import load_pretraining, make_pretraining
from becl.objectives import Objective, name_of
from becl.options import (
    ControlOptions,
    Encoder,
    EvaluateOptions,
    FinetuneOptions,
    MazeOptions,
    Precision,
    PretrainOptions,
    ReportOptions,
    ResumeOptions,
    SweepOptions,
    fill,
)
from becl.options.fields import parse_time
from becl.runs.callbacks import Callback, Row
from becl.runs.folder import read_config, trust_folder
from becl.runs.tables import read_rows
from becl.seeds import to_seeds
from becl.sweeps.file import read_sweep
from becl.sweeps.limit import AGAIN
from becl.trust import trust as trust_names


@checked
def pretrain(
    env: Environment,
    method: str | Objective = "becl",
    *,
    seeds: Seeds = 1,
    steps: int = 2_000_000,
    skills: int | None = None,
    envs: int | None = None,
    hidden: int | None = None,
    precision: Precision | None = None,
    pixels: bool = False,
    encoder: Encoder | None = None,
    encoder_weights: Place | None = None,
    objective_obs: str | Sequence[int] | None = None,
    normalize_obs: bool = False,
    set: Sequence[str] | Mapping[str, Any] = (),
    log_every: int | None = None,
    checkpoint_every: int = PRETRAINING_CHECKPOINTS,
    out: Place | None = None,
    callbacks: Sequence[Callback] = (),
    quiet: bool = False,
) -> Run:
    """Learns skills, or explores, without a reward: `becl pretrain`, whose options these are.

    The method is a name, a sum of names (`becl+rnd`), or an objective: `becl.Sum(BeCL(), RND(), weights=(1, 10))`.
    """
    options = fill(
        PretrainOptions,
        {
            "env": env if isinstance(env, str) else hand_over(env),
            "method": method if isinstance(method, str) else name_of(method),
            "seeds": to_seeds(seeds),
            "steps": steps,
            "skills": skills,
            "envs": envs,
            "hidden": hidden,
            "precision": precision,
            "pixels": pixels,
            "encoder": encoder,
            "encoder_weights": encoder_weights,
            "objective_obs": objective_obs,
            "normalize_obs": normalize_obs,
            "set": set,
            "log_every": log_every,
            "checkpoint_every": checkpoint_every,
            "out": out,
        },
    )
    trust_names(options.env)
    spec = make_pretraining(options, None if isinstance(method, str) else method)
    with printing(not quiet):
        check_code(pretrain_command.train(spec, options, callbacks, raises=True))
    return Run(pretrain_command.folder_of(options), spec)


@checked
def finetune(
    run: Run | Place | None = None,
    task: str | Sequence[str] = "all",
    *,
    scratch: Environment | bool | None = None,
    seeds: Seeds | None = None,
    snapshot: int | None = None,
    skill: str | None = None,
    transfer: Transfer | Literal["paper"] | None = None,
    steps: int = 100_000,
    eval_every: int = 10_000,
    eval_episodes: int = 10,
    final_episodes: int | None = None,
    envs: int | None = None,
    hidden: int | None = None,
    precision: Precision | None = None,
    pixels: bool = False,
    encoder: Encoder | None = None,
    encoder_weights: Place | None = None,
    set: Sequence[str] | Mapping[str, Any] = (),
    checkpoint_every: int = FINETUNING_CHECKPOINTS,
    out: Place | None = None,
    callbacks: Sequence[Callback] = (),
    trust: bool = False,
    tasks: str | Sequence[str] | None = None,
    quiet: bool = False,
) -> Finetuned:
    """Lets pretrained skills learn tasks: `becl finetune`, whose options these are.

    Without a run, `scratch` names what is learned from nothing: a task, or an environment as in `pretrain`; with
    `scratch=True`, `task` does. `tasks` is another name of `task`.
    """
    options = fill(
        FinetuneOptions,
        to_learn(run, task if tasks is None else tasks, scratch)
        | {
            "seeds": None if seeds is None else to_seeds(seeds),
            "snapshot": snapshot,
            "skill": skill,
            "transfer": transfer,
            "steps": steps,
            "eval_every": eval_every,
            "eval_episodes": eval_episodes,
            "final_episodes": final_episodes,
            "envs": envs,
            "hidden": hidden,
            "precision": precision,
            "pixels": pixels,
            "encoder": encoder,
            "encoder_weights": encoder_weights,
            "set": set,
            "checkpoint_every": checkpoint_every,
            "out": out,
            "trust": trust,
        },
    )
    return finetuned(options, callbacks, quiet)


@checked
def control(
    run: Run | Place,
    task: str | Sequence[str] = "all",
    *,
    stop: Literal["decision", "learned"] = "decision",
    interval: int | None = None,
    switch_cost: float | None = None,
    seeds: Seeds | None = None,
    snapshot: int | None = None,
    steps: int = 100_000,
    eval_every: int = 10_000,
    eval_episodes: int = 10,
    final_episodes: int | None = None,
    envs: int | None = None,
    precision: Precision | None = None,
    set: Sequence[str] | Mapping[str, Any] = (),
    checkpoint_every: int = FINETUNING_CHECKPOINTS,
    out: Place | None = None,
    callbacks: Sequence[Callback] = (),
    trust: bool = False,
    quiet: bool = False,
) -> Finetuned:
    """Learns which of a run's frozen skills acts when: `becl control`, whose options these are."""
    options = fill(
        ControlOptions,
        {
            "run": run.folder if isinstance(run, Run) else run,
            "task": [task] if isinstance(task, str) else task,
            "stop": stop,
            "interval": interval,
            "switch_cost": switch_cost,
            "seeds": None if seeds is None else to_seeds(seeds),
            "snapshot": snapshot,
            "steps": steps,
            "eval_every": eval_every,
            "eval_episodes": eval_episodes,
            "final_episodes": final_episodes,
            "envs": envs,
            "precision": precision,
            "set": set,
            "checkpoint_every": checkpoint_every,
            "out": out,
            "trust": trust,
        },
    )
    control_command.agree(options)
    spec, same = make_control(options), as_finetuning(options)
    with printing(not quiet):
        check_code(finetune_command.train(spec, same, callbacks, raises=True))
    return Finetuned(finetune_command.folder_of(spec, same), spec)


@checked
def evaluate(
    run: Run | Place,
    *,
    snapshot: int | None = None,
    task: str | Sequence[str] = "all",
    episodes: int = 10,
    skills: Sequence[int] = (),
    seeds: Seeds | None = None,
    position: str | Sequence[int] | None = None,
    square: float = 1.0,
    out: Place | None = None,
    trust: bool = False,
    tasks: str | Sequence[str] | None = None,
    quiet: bool = False,
) -> Evaluation:
    """Measures what skills do without training: `becl evaluate`. The rows of its three tables, which it also writes.

    `tasks` is another name of `task`.
    """
    task = task if tasks is None else tasks
    options = fill(
        EvaluateOptions,
        {
            "run": run.folder if isinstance(run, Run) else run,
            "snapshot": snapshot,
            "task": [task] if isinstance(task, str) else task,
            "episodes": episodes,
            "skills": skills,
            "seeds": None if seeds is None else to_seeds(seeds),
            "position": position,
            "square": square,
            "out": out,
            "trust": trust,
        },
    )
    with printing(not quiet):
        return measure(options)


@checked
def report(runs: Place | Sequence[Place], out: Place = "report", *, quiet: bool = False) -> Path:
    """Tables, intervals and figures of finetuned runs: `becl report`. The page that it wrote."""
    options = fill(ReportOptions, {"runs": [runs] if isinstance(runs, str | Path) else runs, "out": out})
    with printing(not quiet):
        report_command.run(options)
    return options.out / "index.html"


@checked
def load(folder: Place, *, env: Environment | None = None, trust: bool = False) -> Run | Finetuned:
    """A run from its folder. One whose environment was handed over in another process needs it again; with `trust`, the
    code of an environment that the folder names from outside becl is run."""
    folder = to_path("folder", folder)
    config = read_config(folder)
    if trust:
        trust_folder(folder)
    if env is not None:
        name = str(config.get("env", ""))
        if not name.startswith("py:"):
            raise UserError(f"{folder}: its environment is {name}, which needs no env=...")
        hand_over(env, name)
    if config.get("command") == "finetune":
        return Finetuned(folder, load_finetuning(folder))
    return Run(folder, load_pretraining(folder))


@checked
def resume(
    folder: Place,
    *,
    steps: int | None = None,
    seeds: Seeds | None = None,
    force: bool = False,
    env: Environment | None = None,
    trust: bool = False,
    quiet: bool = False,
) -> Run | Finetuned:
    """Goes on with a run that was stopped, or with more `steps` or `seeds` of a finished pretraining: `becl resume`."""
    found = load(folder, env=env, trust=trust)
    seeds = None if seeds is None else to_seeds(seeds)
    options = fill(ResumeOptions, {"run": found.folder, "steps": steps, "seeds": seeds, "force": force})
    with printing(not quiet):
        check_code(resume_command.go_on(options, {"raises": True}))
    return load(folder, env=env, trust=trust)


@checked
def maze(
    methods: Sequence[str] = (),
    study: str = "comparison",
    *,
    maze: str | None = None,
    skills: int | None = None,
    temperature: float | None = None,
    setting: Literal["tuned", "published"] | None = None,
    seeds: Seeds = 1,
    cycles: int | None = None,
    set: Sequence[str] | Mapping[str, Any] = (),
    workers: int | None = None,
    reuse: Sequence[Place] = (),
    out: Place | None = None,
    quiet: bool = False,
) -> list[Row]:
    """The paper's maze study: `becl maze`. One row per method and seed; figures are in the folder."""
    options = fill(
        MazeOptions,
        {
            "methods": methods,
            "study": study,
            "maze": maze,
            "skills": skills,
            "temperature": temperature,
            "setting": setting,
            "seeds": to_seeds(seeds),
            "cycles": cycles,
            "set": set,
            "workers": workers,
            "reuse": [reuse] if isinstance(reuse, str | Path) else reuse,
            "out": out,
        },
    )
    folder = maze_command.folder_of(options)
    with printing(not quiet):
        code = maze_command.run(options)
    check_code(code)
    if code:
        raise Failed(f"some runs of {folder} failed")
    return read_rows(folder / "summary.csv")


@checked
def sweep(
    file: Place,
    *,
    out: Place | None = None,
    group: int | None = None,
    cpus: int | None = None,
    gpus: float | None = None,
    retries: int | None = None,
    ray: bool = True,
    ray_address: str | None = None,
    time_limit: str | float | None = None,
    trust: bool = False,
    quiet: bool = False,
) -> Path:
    """A whole grid of runs from a file, or a preset: `becl sweep`. The sweep's folder, with the report in it where all
    is done; `time_limit` is a text such as 28m, or seconds."""
    folder = read_sweep(str(file)).out if out is None else to_path("out", out)
    options = fill(
        SweepOptions,
        {
            "file": [str(file)],
            "out": folder,
            "group": group,
            "cpus": cpus,
            "gpus": gpus,
            "retries": retries,
            "ray": ray,
            "ray_address": ray_address,
            "time_limit": parse_time(time_limit) if isinstance(time_limit, str) else time_limit,
            "trust": trust,
        },
    )
    with printing(not quiet):
        code = sweep_command.run(options)
    check_code(code)
    if code not in (0, AGAIN):
        raise Failed(f"some jobs of {folder} failed; becl sweep status {file} tells which")
    return folder


# --- Helpers ----------------------------------------------------------------------------------------------------------


def to_learn(run: Run | Place | None, task: str | Sequence[str], scratch: Environment | bool | None) -> dict[str, Any]:
    """The options of a finetuning that say what learns which tasks."""
    scratch = None if scratch is False else scratch
    if (run is None) == (scratch is None):
        raise UserError("finetune: a pretrained run, or scratch=...; one of them")
    if scratch is not None and scratch is not True:
        task = scratch if isinstance(scratch, str) else hand_over(scratch)
    tasks = [task] if isinstance(task, str) else task
    return {"run": run.folder if isinstance(run, Run) else run, "task": tasks, "scratch": scratch is not None}


def finetuned(options: FinetuneOptions, callbacks: Sequence[Callback], quiet: bool) -> Finetuned:
    """What a finetuning with these options leaves."""
    finetune_command.agree(options)
    spec = make_finetuning(options)
    with printing(not quiet):
        check_code(finetune_command.train(spec, options, callbacks, raises=True))
    return Finetuned(finetune_command.folder_of(spec, options), spec)
