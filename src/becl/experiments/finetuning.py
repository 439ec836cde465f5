"""Finetuning: pretrained seeds learn tasks from the tasks' own rewards, and are scored along the way.

The loop is that of pretraining with the task's reward as the objective. A lane is one task and seed (and one skill, if
all skills are tried side by side); lanes are trained together. A run lives in a folder of plain files:

    config.json      what was asked for, with the configuration of the pretraining
    scores.csv       one row per evaluation and lane: the curve
    final.csv        one row per lane: its score, the mean over many episodes after the last step
    metrics.csv      one row per log interval and lane
    tensorboard/     the same for TensorBoard
    TASK-seed-N/policy.safetensors     the final networks
    result.json      written last: how long it took, on what
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp

from becl import envs
from becl.envs import maze
from becl.envs.external import is_external
from becl.errors import UserError, unknown
from becl.experiments.encoder_weights import recall_weights
from becl.experiments.environments import changed_length, check_here, check_recorded, spec_of
from becl.experiments.lanes import Lane
from becl.experiments.pretraining import (
    EPISODE_LENGTH,
    EXAMPLE,
    Pretraining,
    apply_setting,
    check_run,
    load_pretraining,
    resized,
    spec_classes,
    unit_of,
    with_features,
    with_length,
    with_vision,
    with_width,
)
from becl.experiments.settings import Given, check_least, check_seeds, reading, settings_of
from becl.learning.choice import BestFirst, Held, Prior, Regress, SkillChoice
from becl.learning.controller import Controller, over_stretches
from becl.learning.offpolicy import OffPolicy
from becl.learning.replay import Replay
from becl.learning.selector import Selector
from becl.measure.skills import skills_of
from becl.objectives import METHODS, find_method
from becl.objectives.extrinsic import Extrinsic
from becl.objectives.registry import FINETUNE_SKILLS
from becl.options import FinetuneOptions
from becl.plugins import without_plugins
from becl.runs.folder import choose_snapshot, read_config
from becl.skills import Cube, Modes, NoSkill, OneHot
from becl.specs import added, from_dict, override, to_dict

Transfer = Literal["trunk", "critic", "critic-released", "none"]
TRANSFERS: dict[Transfer, str] = {
    "trunk": "actor and the critic's trunk; fresh heads, and a fresh target (released code)",
    "critic": "actor and the whole critic, the target in step with it (paper)",
    "critic-released": "actor and the whole critic, a fresh target (released code of ProtoRL)",
    "none": "nothing: from scratch",
}
FINAL_EPISODES = 50
FIXED = ("vision.size", "vision.stack", "vision.repeat", "vision.encoder")
"""Options of what is seen that a pretrained encoder goes with, and groups of them."""


Resolve = Callable[[Sequence[str], Pretraining | None], tuple[str, ...]]
"""Finds the tasks that words mean, for a pretrained run."""


@dataclass(frozen=True)
class Finetuning:
    """A resolved finetuning run."""

    env: str
    """The domain."""
    method: str
    tasks: tuple[str, ...]
    seeds: tuple[int, ...]
    steps: int
    """Steps per lane."""
    skill: str
    transfer: Transfer
    run: OffPolicy
    snapshot: int | None = None
    """Steps of pretraining; None from scratch."""
    pretraining: Pretraining | None = None
    source: str | None = None
    """Folder of the pretraining run."""
    eval_every: int = 10_000
    eval_episodes: int = 10
    final_episodes: int = added(FINAL_EPISODES)
    """Episodes of each lane's final score."""

    def config(self) -> dict[str, Any]:
        """What must agree for two commands to share a folder."""
        return {"command": "finetune", **{name: value for name, value in to_dict(self).items() if name != "spec"}}

    @property
    def lanes(self) -> list[Lane]:
        """All lanes, task by task."""
        skills = range(self.run.objective.skills.dim) if self.skill == "each" else [None]
        return [Lane(task, seed, skill) for task in self.tasks for seed in self.seeds for skill in skills]

    @property
    def unit(self) -> int:
        """Environment steps per step of the loop."""
        return interval_of(self.run)

    @property
    def episode_length(self) -> int | None:
        """Steps of an episode where they are not the task's own."""
        if self.pretraining is not None:
            return self.pretraining.episode_length
        return changed_length(self.env, self.run.env, self.run.vision)


def make_finetuning(
    options: FinetuneOptions, planned: Pretraining | None = None, resolve: Resolve | None = None
) -> Finetuning:
    """Makes a run from the folder of a pretraining run, or from scratch; validated, nothing allocated yet.

    If `planned` says what the folder will hold, the folder is not read. `resolve` finds the tasks, `resolve_tasks` by
    default.
    """
    if (options.run is None) != options.scratch:
        both = "; not both" if options.run else ""
        raise UserError("name the folder of a pretrained run, or --scratch" + both)
    check_least("--checkpoint-every", options.checkpoint_every)
    pretraining = None
    if options.run is not None:
        pretraining = load_pretraining(options.run) if planned is None else planned
    tasks = (resolve or resolve_tasks)(options.task, pretraining)
    domain = tasks[0] if is_external(tasks[0]) else tasks[0].partition("_")[0]
    method = "ddpg" if pretraining is None else pretraining.method
    seeds, snapshot, transfer = resolve_source(options, pretraining, planned is not None)
    skill = find_method(method).finetune_skill if options.skill is None else options.skill
    run = changed(tuned_run(domain, pretraining, options), options, method, skill, pretraining)
    check_run(run)
    check_schedule(options, run)
    return Finetuning(
        domain,
        method,
        tasks,
        seeds,
        options.steps,
        skill,
        transfer,
        run,
        snapshot,
        pretraining,
        None if options.run is None else str(options.run),
        options.eval_every,
        options.eval_episodes,
        final_episodes(options),
    )


def resolve_source(
    options: FinetuneOptions, pretraining: Pretraining | None, planned: bool
) -> tuple[tuple[int, ...], int | None, Transfer]:
    """Which seeds are finetuned, after how many steps of pretraining, and which of their networks carry over."""
    if pretraining is None:
        if options.transfer not in (None, "none") or options.snapshot is not None:
            raise UserError("--scratch: nothing is taken over; leave out --transfer and --snapshot")
        seeds = (0,) if options.seeds is None else tuple(options.seeds)
        check_seeds(seeds)
        return seeds, None, "none"
    assert options.run is not None
    seeds = pretraining.seeds if options.seeds is None else tuple(options.seeds)
    if other := [seed for seed in seeds if seed not in pretraining.seeds]:
        has = ", ".join(map(str, pretraining.seeds))
        raise UserError(f"seed {other[0]} is not in {options.run}, which has {has}")
    check_seeds(seeds)
    snapshot = choose_snapshot(options.run, seeds, options.snapshot, pretraining.snapshots if planned else None)
    transfer = find_method(pretraining.method).transfer if options.transfer is None else options.transfer
    transfer = "critic" if transfer == "paper" else transfer
    if transfer not in TRANSFERS:
        raise unknown("transfer", transfer, [*TRANSFERS, "paper"])
    return seeds, snapshot, transfer


def tuned_run(domain: str, pretraining: Pretraining | None, options: FinetuneOptions) -> OffPolicy:
    """The loop of pretraining with the task's reward as its objective; without pretraining, URLB's DDPG."""
    if pretraining is None:
        return from_scratch(domain, options)
    if options.pixels or options.encoder is not None or options.encoder_weights is not None:
        word = f"--encoder {options.encoder}" if options.encoder else f"--encoder-weights {options.encoder_weights}"
        word = "--pixels" if options.pixels else word
        raise UserError(f"{word}: what is seen stays as it was pretrained; it is for --scratch")
    before = pretraining.run
    check_here(pretraining.env, before)
    replay = dataclasses.replace(before.replay, capacity=Replay().capacity, released_skill=False, balanced=False)
    if before.vision is not None:
        replay = dataclasses.replace(replay, nstep=Replay().nstep)
    spec = spec_of(domain, before.vision)
    if pretraining.episode_length is not None:
        spec = spec._replace(episode_length=pretraining.episode_length)
    return dataclasses.replace(
        before,
        env=spec,
        objective=Extrinsic(before.objective.skills),
        fits_per_update=1,
        objective_obs=(),
        reward_scale=1.0,
        reward_normalise="none",
        replay=replay,
    )


def from_scratch(domain: str, options: FinetuneOptions) -> OffPolicy:
    """URLB's DDPG on a task, from its numbers or from images."""
    method = find_method("ddpg")
    run = with_vision(OffPolicy(spec_of(domain), Extrinsic()), domain, method, options)
    return dataclasses.replace(run, replay=Replay())


def changed(
    run: OffPolicy, options: FinetuneOptions, method: str, skill: str, pretraining: Pretraining | None
) -> OffPolicy:
    """A run changed by options; `--set` comes last."""
    choice, interval = resolve_choice(skill, method, pretraining)
    # The sweep over skills needs the policy's own actions, and Algorithm 2 has no random ones.
    warmup = "policy" if isinstance(choice, BestFirst) or options.transfer == "paper" else "random"
    run = dataclasses.replace(run, choice=choice, skill_interval=interval, warmup=warmup)
    run = resized(run, options.envs, options.precision)
    if options.hidden is not None:
        if pretraining is not None:
            raise UserError("--hidden: the networks are as wide as they were pretrained; it is for --scratch")
        run = with_width(run, options.hidden)
    if skill == "meta":
        run = over_skills(run, controller_of(options.set))
    # No larger than the run can fill.
    rows = max(-(-options.steps // interval_of(run) // run.envs), run.needed + 1)
    capacity = min(run.replay.capacity, rows * run.envs)
    run = dataclasses.replace(run, replay=dataclasses.replace(run.replay, capacity=capacity))
    for setting in settings_of(options.set, EXAMPLE):
        if pretraining is not None and setting.path.startswith(FIXED):
            raise UserError(f"--set {setting}: what is seen stays as it was pretrained")
        if setting.path == EPISODE_LENGTH:
            if pretraining is not None:
                raise UserError(f"--set {setting}: episodes are as long as in pretraining; it is for --scratch")
            run = with_length(run, options.task[0], setting)
        else:
            run = apply_setting(run, method, setting)
    return with_features(run, run_env(options, pretraining), find_method(method))


def run_env(options: FinetuneOptions, pretraining: Pretraining | None) -> str:
    return options.task[0] if pretraining is None else pretraining.env


def check_schedule(options: FinetuneOptions, run: OffPolicy) -> None:
    """Raises if the lengths of the run and of its evaluations do not fit together."""
    steps, interval = options.steps, interval_of(run)
    if steps < 0 or 0 < steps <= run.random_steps * interval:
        raise UserError(
            f"--steps {steps:,}: must be 0, or more than the {run.random_steps * interval:,} steps at the beginning "
            "in which nothing is learned (random_steps)"
        )
    if steps % interval:
        why = "with a controller, must be a multiple of {}, the steps between its decisions"
        why = why if isinstance(run.learner, Controller) else "must be a multiple of {}, the action repeat"
        raise UserError(f"--steps {steps}: {why.format(interval)}")
    check_least("--eval-every", options.eval_every)
    check_least("--eval-episodes", options.eval_episodes)
    if final_episodes(options) < options.eval_episodes:
        raise UserError(
            f"--final-episodes {options.final_episodes}: at least the {options.eval_episodes} of each point of the "
            "curve (--eval-episodes)"
        )


def final_episodes(options: FinetuneOptions) -> int:
    """Episodes of the final score; by default no fewer than each point of the curve has."""
    if options.final_episodes is not None:
        return options.final_episodes
    return max(FINAL_EPISODES, options.eval_episodes)


def load_finetuning(out: Path) -> Finetuning:
    """The finetuning run that a folder holds."""
    config = without_plugins(read_config(out), METHODS)
    if config.pop("command", None) != "finetune":
        raise UserError(f"{out} holds no finetuning run")
    rules = (Finetuning, Held, BestFirst, Regress, Selector, Controller, Extrinsic)
    classes = spec_classes() | {kind.__name__: kind for kind in rules}
    with reading(out / "config.json"):
        finetuning = from_dict({**config, "spec": "Finetuning"}, classes, Finetuning)
    recall_weights(finetuning.run, out)
    with reading(out / "config.json"):
        check_loaded(finetuning)
    return finetuning


def check_loaded(finetuning: Finetuning) -> None:
    """Refuses values that no command makes, in what was read."""
    before = finetuning.pretraining
    if before is not None:
        check_recorded(before.env, before.run)
    if (before is None) != (finetuning.snapshot is None) or (before is None) != (finetuning.source is None):
        raise UserError("pretraining, snapshot and source: all of them or none")
    if before is None or finetuning.skill != "meta" or finetuning.tasks != (finetuning.env,):
        resolve_tasks(finetuning.tasks, before)  # A controller may learn in another environment, which is its task.
    resolve_choice(finetuning.skill, finetuning.method, before)
    check_seeds(finetuning.seeds)
    check_run(finetuning.run)
    if finetuning.skill != "meta":
        check_recorded(finetuning.env, finetuning.run)
    for name in ("eval_every", "eval_episodes", "final_episodes"):
        check_least(name, getattr(finetuning, name))
    check_least("steps", finetuning.steps, least=0)


def resolve_tasks(tasks: Sequence[str], pretraining: Pretraining | None) -> tuple[str, ...]:
    """Names of tasks, all of one domain; `all` means every task of the pretrained domain."""
    if pretraining is not None and pretraining.env in maze.names():
        raise UserError(f"{pretraining.env} is a maze: it has no tasks to finetune on")
    if not tasks:
        raise UserError("--task: name at least one task, or all")
    if pretraining is not None and is_external(pretraining.env):
        if tuple(tasks) not in ((pretraining.env,), ("all",)):
            raise UserError(f"--task {' '.join(tasks)}: {pretraining.env} has one task, its own reward; leave it out")
        return (pretraining.env,)
    if pretraining is None and len(tasks) == 1 and is_external(tasks[0]):
        spec_of(tasks[0])
        return tuple(tasks)
    if pretraining is not None:
        domain = pretraining.env.partition("_")[0]
        own = [name for name in envs.names() if name.startswith(domain + "_")]
        if tuple(tasks) == ("all",):
            return tuple(own)
        for task in tasks:
            if task not in own:
                raise unknown(f"task of {domain}", task, own)
    for task in tasks:
        if task == "all":
            raise UserError("--task all: without a pretrained run, name the tasks")
        if task not in envs.names():
            raise unknown("task", task, envs.names())
    if len({task.partition("_")[0] for task in tasks}) > 1:
        raise UserError(f"--task {' '.join(tasks)}: tasks of one domain at a time")
    if len({*tasks}) < len(tasks):
        raise UserError(f"--task {' '.join(tasks)}: a task is given more than once")
    return tuple(tasks)


def resolve_choice(text: str, method: str, pretraining: Pretraining | None) -> tuple[SkillChoice, int | None]:
    """The rule that a word stands for, and the interval between its draws."""
    name, _, number = text.partition(":")
    if name not in {word.partition(":")[0] for word in FINETUNE_SKILLS} or (name == "fixed") != bool(number):
        numbered = [word for word in FINETUNE_SKILLS if ":" in word]
        offered = [word for word in FINETUNE_SKILLS if word not in numbered]
        offered += [word.replace("K", number) for word in numbered if number.isdecimal()]
        raise unknown("skill choice", text, offered, numbered)
    space = NoSkill() if pretraining is None else pretraining.run.objective.skills
    if isinstance(space, NoSkill) != (name == "none"):
        has = "no skills" if name != "none" else "skills"
        raise UserError(f"--skill {text}: {method} has {has}")
    if name in ("meta", "selector") and pretraining is not None and pretraining.run.vision is not None:
        raise UserError(
            f"--skill {name}: it needs observations of numbers, not images; use fixed:K, each or best-first"
        )
    if name in ("fixed", "each", "selector") and not isinstance(space, OneHot):
        raise UserError(f"--skill {text}: {method} has continuous skills, without numbers; use random or best-first")
    if name == "constant" and not isinstance(space, Cube | Modes):
        raise UserError(
            f"--skill {text}: for skills in a cube (cic, moss); {method} has {type(space).__name__}({space.dim})"
        )
    if name == "fixed" and not (number.isdecimal() and int(number) < space.dim):
        raise UserError(f"--skill {text}: {method} has skills 0 to {space.dim - 1}")
    if name == "regress" and (pretraining is None or find_method(method).finetune_skill != "regress"):
        raise UserError(f"--skill {text}: {method} has no features to regress on; aps has")
    if name in ("best-first", "selector"):
        return (BestFirst() if name == "best-first" else Selector()), 1
    if name == "regress":
        assert pretraining is not None
        return Regress(network=pretraining.run.objective.network), pretraining.run.skill_interval  # type: ignore[attr-defined]
    if name in ("none", "resampled", "meta"):
        return Prior(), None if pretraining is None else pretraining.run.skill_interval
    return Held(), None


def controller_of(given: Given) -> Controller:
    """The controller, with those settings that its loop depends on."""
    controller = Controller()
    for setting in settings_of(given, EXAMPLE):
        if setting.path in ("learner.interval", "learner.switch_cost"):
            controller = override(controller, setting.path.removeprefix("learner."), setting.value, "learner.")
    if not 0 <= controller.switch_cost < float("inf"):
        raise UserError(f"learner.switch_cost {controller.switch_cost:g}: must be finite and not negative")
    return controller


def over_skills(run: OffPolicy, controller: Controller) -> OffPolicy:
    """The loop of a controller, whose steps are stretches of a skill, with as many updates per environment step."""
    return OffPolicy(
        over_stretches(run.env, controller, len(skills_of(run.objective.skills))),
        Extrinsic(),
        controller,
        Replay(nstep=1, gamma=run.replay.gamma),
        envs=min(run.envs, 8),
        batch=min(run.batch, 256),
        random_steps=-(-run.random_steps // controller.interval),
        steps_per_update=1,
        update_repeats=max(1, controller.interval // run.steps_per_update),
        precision=run.precision,
    )


def interval_of(run: OffPolicy) -> int:
    """Environment steps per step of the loop."""
    return run.learner.interval if isinstance(run.learner, Controller) else unit_of(run)


def lane_keys(finetuning: Finetuning) -> jax.Array:
    """The random keys of all lanes. Each depends on its own lane alone, not on those beside it."""
    known = envs.names()

    def of(lane: Lane) -> jax.Array:
        number = known.index(lane.task) if lane.task in known else finetuning.tasks.index(lane.task)
        key = jax.random.fold_in(jax.random.key(lane.seed), 1 + number)
        return key if lane.skill is None else jax.random.fold_in(key, lane.skill)

    return jnp.stack([of(lane) for lane in finetuning.lanes])
