"""Finetuning: pretrained seeds learn tasks from their own rewards, and are scored on the way.

The loop is that of pretraining with the task's reward as objective. A lane is one task, seed and, where all skills are
tried side by side, skill; lanes are trained together. A run lives in a folder of plain files:

    config.json      what was asked for, with the configuration of the pretraining
    scores.csv       one row an evaluation and lane: the curve
    final.csv        one row a lane: its score, the mean over many episodes after the last step
    metrics.csv      one row a log interval and lane
    tensorboard/     the same for TensorBoard
    TASK-seed-N/policy.safetensors     the networks in the end
    result.json      written last: how long it took, on what
"""

import contextlib
import dataclasses
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from becl import envs
from becl.envs import maze
from becl.envs.external import is_foreign
from becl.envs.simulations import Step
from becl.envs.spec import EnvSpec
from becl.errors import Failed, UserError, unknown
from becl.experiments.pretraining import (
    EXAMPLE,
    Pretraining,
    apply_setting,
    check_run,
    fits,
    learner_shapes,
    load_pretraining,
    load_snapshot,
    make_envs,
    resized,
    snapshot_path,
    spec_classes,
    spec_of,
    with_width,
)
from becl.experiments.settings import check_least, check_seeds, settings_of
from becl.learning.choice import BestFirst, Held, Prior, Regress, SkillChoice
from becl.learning.controller import Controller, Stretches
from becl.learning.ddpg import Actor, DDPGState
from becl.learning.offpolicy import OffPolicy, RunState
from becl.learning.protocols import Restorable
from becl.learning.replay import Replay
from becl.learning.training import Diverged, environment_errors, train
from becl.nn.adam import without_optimizers
from becl.objectives import METHODS
from becl.objectives.aps import APSState
from becl.objectives.extrinsic import Extrinsic
from becl.objectives.registry import FINETUNE_SKILLS
from becl.options import FinetuneOptions
from becl.plugins import without_plugins
from becl.runs.arrays import load_arrays, named_arrays, place_arrays, save_arrays
from becl.runs.callbacks import Callback, listeners
from becl.runs.checkpoint import Checkpoints
from becl.runs.failures import explained
from becl.runs.folder import kept_snapshots, read_config, to_csv, write_text
from becl.runs.lock import locked
from becl.runs.log import Log, lane_name, readable, short
from becl.runs.progress import Progress, clock, counted, interrupts, progress, say
from becl.runs.provenance import provenance
from becl.runs.recording import NotFinite, Recorder, fitting
from becl.skills import Cube, NoSkill, OneHot
from becl.specs import added, from_dict, to_dict

Transfer = Literal["trunk", "critic", "critic-released", "none"]
TRANSFERS: dict[Transfer, str] = {
    "trunk": "actor and the critic's trunk; fresh heads, and a fresh target (released code)",
    "critic": "actor and the whole critic, the target in step with it (paper)",
    "critic-released": "actor and the whole critic, a fresh target (released code of ProtoRL)",
    "none": "nothing: from scratch",
}
CHECKPOINT_EVERY = FinetuneOptions.checkpoint_every
# Simulations for evaluation begin elsewhere than those for training, and those for the final score elsewhere again: at
# the same starts for every method.
EVALUATION_SEED = 2**32
FINAL_SEED = 2**33
FINAL_EPISODES = 50
FOREIGN_AT_ONCE = 10  # Copies of an environment, a lane, that the final episodes are played in.


class Lane(NamedTuple):
    task: str
    seed: int
    skill: int | None = None
    """Where skills are tried side by side."""

    @property
    def label(self) -> dict[str, Any]:
        return {"task": self.task, "seed": self.seed} | ({} if self.skill is None else {"skill": self.skill})


@dataclass(frozen=True)
class Finetuning:
    """A resolved run."""

    env: str
    """The domain."""
    method: str
    tasks: tuple[str, ...]
    seeds: tuple[int, ...]
    steps: int
    """Of each lane."""
    skill: str
    transfer: Transfer
    run: OffPolicy
    snapshot: int | None = None
    """Steps of pretraining; None from scratch."""
    pretraining: Pretraining | None = None
    source: str | None = None
    """Folder of the pretraining."""
    eval_every: int = 10_000
    eval_episodes: int = 10
    final_episodes: int = added(FINAL_EPISODES)
    """Episodes of each lane's final score."""

    def config(self) -> dict[str, Any]:
        """What must agree for two commands to share a folder."""
        return {"command": "finetune", **{name: value for name, value in to_dict(self).items() if name != "spec"}}

    @property
    def lanes(self) -> list[Lane]:
        """Task by task."""
        skills = range(self.run.objective.skills.dim) if self.skill == "each" else [None]
        return [Lane(task, seed, skill) for task in self.tasks for seed in self.seeds for skill in skills]

    @property
    def unit(self) -> int:
        """Environment steps in a step of the loop."""
        return interval_of(self.run)


def make_finetuning(options: FinetuneOptions, planned: Pretraining | None = None) -> Finetuning:
    """A run from a folder of pretraining, or from scratch; validated, nothing allocated yet.

    The folder is not read where what it will hold is `planned`.
    """
    if (options.run is None) != options.scratch:
        both = "; not both" if options.run else ""
        raise UserError("name the folder of a pretrained run, or --scratch" + both)
    check_least("--checkpoint-every", options.checkpoint_every)
    pretraining = None
    if options.run is not None:
        pretraining = load_pretraining(options.run) if planned is None else planned
    tasks = resolve_tasks(options.task, pretraining)
    domain = tasks[0] if is_foreign(tasks[0]) else tasks[0].partition("_")[0]
    method = "ddpg" if pretraining is None else pretraining.method
    seeds, snapshot, transfer = resolve_source(options, pretraining, planned is not None)
    skill = METHODS[method].finetune_skill if options.skill is None else options.skill
    run = changed(tuned_run(domain, pretraining), options, method, skill, pretraining)
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
    """Which seeds are taken, after how many steps of pretraining, and what of their networks."""
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
    snapshot = find_snapshot(options.run, seeds, options.snapshot, pretraining if planned else None)
    check_seeds(seeds)
    transfer = METHODS[pretraining.method].transfer if options.transfer is None else options.transfer
    if transfer not in TRANSFERS:
        raise unknown("transfer", transfer, TRANSFERS)
    return seeds, snapshot, transfer


def tuned_run(domain: str, pretraining: Pretraining | None) -> OffPolicy:
    """The loop of a pretraining with the task's reward as its objective, or URLB's DDPG."""
    if pretraining is None:
        return OffPolicy(spec_of(domain), Extrinsic())
    before = pretraining.run
    replay = dataclasses.replace(before.replay, capacity=Replay().capacity, released_skill=False, balanced=False)
    return dataclasses.replace(
        before,
        env=spec_of(domain),
        objective=Extrinsic(before.objective.skills),
        fits_per_update=1,
        objective_obs=(),
        reward_scale=1.0,
        reward_normalise="none",
        replay=replay,
    )


def changed(
    run: OffPolicy, options: FinetuneOptions, method: str, skill: str, pretraining: Pretraining | None
) -> OffPolicy:
    """A run with the changes that options ask for; settings come last."""
    choice, interval = resolve_choice(skill, method, pretraining)
    # A sweep is one of the policy's own actions.
    warmup = "policy" if isinstance(choice, BestFirst) else "random"
    run = dataclasses.replace(run, choice=choice, skill_interval=interval, warmup=warmup)
    run = resized(run, options.envs, options.precision)
    if options.hidden is not None:
        if pretraining is not None:
            raise UserError("--hidden: the networks are as wide as they were pretrained; it is for --scratch")
        run = with_width(run, options.hidden)
    if skill == "meta":
        run = over_skills(run, run.objective.skills.dim)
    # As large as the run can fill it.
    rows = max(-(-options.steps // interval_of(run) // run.envs), run.replay.nstep + 1)
    capacity = min(run.replay.capacity, rows * run.envs)
    run = dataclasses.replace(run, replay=dataclasses.replace(run.replay, capacity=capacity))
    for setting in settings_of(options.set, EXAMPLE):
        run = apply_setting(run, method, setting)
    return run


def check_schedule(options: FinetuneOptions, run: OffPolicy) -> None:
    """Refuses lengths of the run and of its evaluations that do not go together."""
    steps, interval = options.steps, interval_of(run)
    if steps < 0 or 0 < steps <= run.random_steps * interval:
        raise UserError(
            f"--steps {steps:,}: none, or more than the {run.random_steps * interval:,} in the beginning that "
            "nothing is learned in (random_steps)"
        )
    if steps % interval:
        raise UserError(f"--steps {steps}: with --skill meta a multiple of {interval}, the steps of a stretch")
    check_least("--eval-every", options.eval_every)
    check_least("--eval-episodes", options.eval_episodes)
    if final_episodes(options) < options.eval_episodes:
        raise UserError(
            f"--final-episodes {options.final_episodes}: at least the {options.eval_episodes} of each point of the "
            "curve (--eval-episodes)"
        )


def final_episodes(options: FinetuneOptions) -> int:
    """Episodes of the final score: at least as many as of a point of the curve, unless said."""
    if options.final_episodes is not None:
        return options.final_episodes
    return max(FINAL_EPISODES, options.eval_episodes)


def load_finetuning(out: Path) -> Finetuning:
    """The run that a folder holds."""
    config = without_plugins(read_config(out), METHODS)
    if config.pop("command", None) != "finetune":
        raise UserError(f"{out} holds no finetuning run")
    rules = (Finetuning, Held, BestFirst, Regress, Controller, Extrinsic)
    classes = spec_classes() | {kind.__name__: kind for kind in rules}
    made = None
    with contextlib.suppress(TypeError):  # Something that has no default is missing.
        made = from_dict({"spec": "Finetuning", **config}, classes)
    if made is None or not isinstance(made.run, OffPolicy):
        raise UserError(f"{out / 'config.json'} is damaged")
    return made


def resolve_tasks(tasks: Sequence[str], made: Pretraining | None) -> tuple[str, ...]:
    """Names of tasks, all of the same domain; `all` is every task of the pretraining's."""
    if made is not None and made.env in maze.names():
        raise UserError(f"{made.env} is a maze: it has no tasks to finetune on")
    if not tasks:
        raise UserError("--task: name at least one task, or all")
    if made is not None and is_foreign(made.env):
        if tuple(tasks) not in ((made.env,), ("all",)):
            raise UserError(f"--task {' '.join(tasks)}: {made.env} has one task, its own reward; leave it out")
        return (made.env,)
    if made is None and len(tasks) == 1 and is_foreign(tasks[0]):
        spec_of(tasks[0])
        return tuple(tasks)
    if made is not None:
        domain = made.env.partition("_")[0]
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


def find_snapshot(source: Path, seeds: Sequence[int], step: int | None, planned: Pretraining | None = None) -> int:
    """The snapshot asked for, or the last that all seeds have, or will have."""
    kept = [kept_snapshots(source, seed) if planned is None else planned.snapshots for seed in seeds]
    common = sorted(set.intersection(*map(set, kept))) if kept else []
    if not common:
        raise UserError(f"{source} has no snapshot that all of its seeds {', '.join(map(str, seeds))} have")
    if step is None:
        return common[-1]
    if step not in common:
        raise UserError(f"--snapshot {step}: {source} has {', '.join(map(str, common))}")
    return step


def resolve_choice(text: str, method: str, made: Pretraining | None) -> tuple[SkillChoice, int | None]:
    """The rule a word stands for, and how often it is asked."""
    name, _, number = text.partition(":")
    if name not in {word.partition(":")[0] for word in FINETUNE_SKILLS} or (name == "fixed") != bool(number):
        raise unknown("skill choice", text, FINETUNE_SKILLS)
    space = NoSkill() if made is None else made.run.objective.skills
    if isinstance(space, NoSkill) != (name == "none"):
        has = "no skills" if name != "none" else "skills"
        raise UserError(f"--skill {text}: {method} has {has}")
    if name in ("fixed", "each", "meta") and not isinstance(space, OneHot):
        raise UserError(f"--skill {text}: {method} has continuous skills, without numbers; random and best-first go")
    if name == "constant" and not isinstance(space, Cube):
        raise UserError(f"--skill {text}: for skills in a cube (cic); {method} has {type(space).__name__}({space.dim})")
    if name == "fixed" and not (number.isdecimal() and int(number) < space.dim):
        raise UserError(f"--skill {text}: {method} has skills 0 to {space.dim - 1}")
    if name == "regress" and (made is None or METHODS[method].finetune_skill != "regress"):
        raise UserError(f"--skill {text}: {method} has no features to regress on; aps has")
    if name == "best-first":
        return BestFirst(), 1
    if name == "regress":
        assert made is not None
        return Regress(network=made.run.objective.network), made.run.skill_interval  # type: ignore[attr-defined]
    if name in ("none", "resampled", "meta"):
        return Prior(), None if made is None else made.run.skill_interval
    return Held(), None


def over_skills(run: OffPolicy, count: int) -> OffPolicy:
    """The loop of a controller, whose steps are stretches of a skill, with as many updates an environment step."""
    controller = Controller()
    return OffPolicy(
        EnvSpec(run.env.obs_dim, count, run.env.episode_length // controller.interval),
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
    """Environment steps in a step of the loop."""
    return run.learner.interval if isinstance(run.learner, Controller) else 1


# --- What is taken over -----------------------------------------------------------------------------------------------


def take_over(transfer: Transfer, fresh: DDPGState, pretrained: DDPGState) -> DDPGState:
    """A fresh learner with what it inherits; optimisers always begin anew."""
    if transfer == "none":
        return fresh
    if transfer == "trunk":
        critic = eqx.tree_at(lambda critic: critic.trunk, fresh.critic, pretrained.critic.trunk)
        return fresh._replace(actor=pretrained.actor, critic=critic)
    # A copy: the loop gives the memory of both away.
    target = jax.tree.map(jnp.copy, pretrained.critic) if transfer == "critic" else fresh.target
    return fresh._replace(actor=pretrained.actor, critic=pretrained.critic, target=target)


def load_learners(made: Finetuning) -> tuple[DDPGState, Any]:
    """States of learner and objective at the snapshot, one a lane."""
    assert made.pretraining is not None
    assert made.snapshot is not None
    assert made.source is not None
    loaded = {
        seed: load_snapshot(made.pretraining, snapshot_path(Path(made.source), seed, made.snapshot))
        for seed in made.seeds
    }
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *(loaded[lane.seed] for lane in made.lanes))


def held_skills(made: Finetuning) -> Float[np.ndarray, "lanes skill"]:
    """The skill of each lane where one is held."""
    space = made.run.objective.skills

    def of(lane: Lane) -> jax.Array:
        if lane.skill is not None:
            return jax.nn.one_hot(lane.skill, space.dim)
        if made.skill.startswith("fixed:"):
            return jax.nn.one_hot(int(made.skill.partition(":")[2]), space.dim)
        if made.skill == "constant":
            return jnp.full(space.dim, 0.5)
        return space.sample(jax.random.key(lane.seed), 1)[0]

    return np.stack([np.asarray(of(lane)) for lane in made.lanes])


def prepared(made: Finetuning, state: RunState, pretrained: tuple[DDPGState, Any] | None) -> RunState:
    """The state of all lanes before the first step."""
    if pretrained is not None and not isinstance(made.run.learner, Controller):
        state = state._replace(learner=take_over(made.transfer, state.learner, pretrained[0]))
    if isinstance(made.run.choice, Held):
        state = state._replace(skill=jnp.asarray(held_skills(made)))
    if isinstance(made.run.choice, Regress) and made.run.choice.features == "pretrained":
        assert pretrained is not None
        assert isinstance(pretrained[1], APSState)
        state = state._replace(skill=state.skill._replace(features=pretrained[1].features))
    return state


# --- Environments and evaluation --------------------------------------------------------------------------------------


class Together:
    """Environments of several kinds, one after another."""

    def __init__(self, parts: Sequence[Restorable]):
        self.parts, self.spec = parts, parts[0].spec
        self.num_envs = sum(part.num_envs for part in parts)
        self._ends = np.cumsum([part.num_envs for part in parts])[:-1]

    def reset(self) -> np.ndarray:
        return np.concatenate([part.reset() for part in self.parts])

    def step(self, action: np.ndarray) -> Step:
        steps = [part.step(own) for part, own in zip(self.parts, np.split(action, self._ends), strict=True)]
        ended = [step.truncated & (step.terminated if step.terminated.size else False) for step in steps]
        obs, reward, truncated, next_obs, _ = zip(*steps, strict=True)
        return Step(*map(np.concatenate, (obs, reward, truncated, next_obs, ended)))

    def restart(self) -> np.ndarray:
        return np.concatenate([begin_again(part) for part in self.parts])

    @property
    def resumable(self) -> bool:
        return all(getattr(part, "resumable", True) for part in self.parts)

    def get_state(self) -> list[Any]:
        return [part.get_state() for part in self.parts]

    def set_state(self, state: list[Any]) -> None:
        for part, own in zip(self.parts, state, strict=True):
            part.set_state(own)

    def close(self) -> None:
        for part in self.parts:
            part.close()


def begin_again(environments: Restorable) -> np.ndarray:
    """New episodes; the first ones again where environments have no others."""
    return getattr(environments, "restart", environments.reset)()


MakeEnvironments = Callable[[str, int, Sequence[int]], Restorable]


def environments_of(lanes: Sequence[Lane], each: int, make: MakeEnvironments, offset: int = 0) -> Restorable:
    """`each` environments a lane, in the order of lanes."""
    tasks = list(dict.fromkeys(lane.task for lane in lanes))
    parts = []
    for task in tasks:
        seeds = [lane.seed + offset for lane in lanes if lane.task == task]
        parts.append(make(task, each * len(seeds), seeds))
    return Together(parts)


class Judge:
    """Evaluates policies in simulations of their own, in a thread beside the training.

    The score of a policy is its mean return over whole episodes, without noise: one of each of its simulations.
    Policies run on the CPU, so that the device is left to the training; or on the device, once that is over.
    """

    def __init__(self, made: Finetuning, environments: Restorable, keys: jax.Array, device: Any = None):
        self._made, self._environments, self._keys = made, environments, keys
        self._device = device or jax.devices("cpu")[0]
        self._obs: np.ndarray | None = None
        self._thread = ThreadPoolExecutor(1)
        self._stopping = threading.Event()
        self._waiting: list[tuple[int, Any, Future]] = []
        skills, choice = made.run.objective.skills, made.run.choice
        self._act = jax.jit(jax.vmap(made.run.learner.best))
        self._choose = jax.jit(
            jax.vmap(lambda rule, key, step: choice.best(rule, jax.random.fold_in(key, step), skills), (0, 0, None))
        )

    def submit(self, step: int, state: RunState) -> None:
        """Has the policies of all lanes evaluated as they are now."""
        skills = np.asarray(self._choose(state.skill, self._keys, np.int32(step)))
        # A copy: the loop reuses the memory.
        actors = jax.tree.map(lambda leaf: np.array(leaf), state.learner.actor)
        self._waiting.append((step, skills, self._thread.submit(self._evaluate, step, actors, skills)))

    @property
    def idle(self) -> bool:
        """Whether all that was submitted is done."""
        return all(future.done() for _, _, future in self._waiting)

    def finished(self, wait: bool = False) -> Iterator[tuple[int, Any, Float[np.ndarray, "lanes episodes"]]]:
        """Steps, skills and returns of evaluations that are done, in their order."""
        while self._waiting and (wait or self._waiting[0][2].done()):
            step, skills, returns = self._waiting.pop(0)
            yield step, skills, returns.result()

    def get_state(self) -> dict[str, np.ndarray]:
        """Where the simulations are, once nothing is being evaluated any more."""
        assert not self._waiting
        return named_arrays({"obs": self._obs, "envs": self._environments.get_state()})

    def set_state(self, arrays: dict[str, np.ndarray], source: Path) -> None:
        like = {"obs": self._environments.reset(), "envs": self._environments.get_state()}
        state = place_arrays(arrays, like, source)
        self._obs = state["obs"]
        self._environments.set_state(state["envs"])

    def _evaluate(
        self, step: int, actors: Any, skills: Float[np.ndarray, "lanes skill"]
    ) -> Float[np.ndarray, "lanes episodes"]:
        lanes, episodes = len(skills), self._environments.num_envs // len(skills)
        given = np.broadcast_to(skills[:, None], (lanes, episodes, skills.shape[-1]))
        if self._obs is None:
            self._obs = self._environments.reset()
        total = np.zeros(lanes * episodes)
        over, together = np.zeros(lanes * episodes, bool), True
        actors, given = jax.device_put((actors, given), self._device)
        for _ in range(self._environments.spec.episode_length):
            if self._stopping.is_set():
                break
            action = np.asarray(self._act(actors, self._obs.reshape(lanes, episodes, -1), given))
            if not np.isfinite(action).all():
                raise Diverged(step // self._made.unit, np.flatnonzero(~np.isfinite(action).all((1, 2))))
            with environment_errors(step):
                outcome = self._environments.step(action.reshape(lanes * episodes, -1))
            total += np.where(over, 0.0, outcome.reward)
            over |= outcome.truncated
            self._obs = outcome.obs
            together = bool(outcome.truncated.all())
            if over.all():
                break
        if not together:  # Some are in the middle of another episode.
            self._obs = begin_again(self._environments)
        return total.reshape(lanes, episodes)

    def close(self) -> None:
        self._stopping.set()
        self._thread.shutdown(cancel_futures=True)
        self._environments.close()


def score_rows(
    made: Finetuning, step: int, skills: np.ndarray, returns: Float[np.ndarray, "lanes episodes"]
) -> list[dict[str, Any]]:
    """What an evaluation found, a row a lane; `stderr` is the error of the evaluation itself."""
    named = isinstance(made.run.objective.skills, OneHot) and made.skill != "resampled"
    return [
        {
            "task": lane.task,
            "seed": lane.seed,
            "skill": int(np.argmax(skill)) if named else "",
            "step": step,
            "return": float(row.mean()),
            "stderr": float(row.std(ddof=1) / len(row) ** 0.5) if len(row) > 1 else float("nan"),
        }
        for lane, skill, row in zip(made.lanes, skills, returns, strict=True)
    ]


class Scores:
    """scores.csv, a row an evaluation and lane."""

    def __init__(self, made: Finetuning, out: Path):
        self._made, self._path = made, out / "scores.csv"
        self.rows: list[dict[str, Any]] = []

    def add(self, step: int, skills: np.ndarray, returns: Float[np.ndarray, "lanes episodes"]) -> list[dict[str, Any]]:
        """Rows of an evaluation, written."""
        newest = score_rows(self._made, step, skills, returns)
        self.rows += [{name: short(value) for name, value in row.items()} for row in newest]
        write_text(self._path, to_csv(self.rows))
        return newest

    def resume(self, rows: list[dict[str, Any]]) -> None:
        """Goes on after these rows; later ones are forgotten."""
        self.rows = list(rows)
        if rows:
            write_text(self._path, to_csv(rows))

    @property
    def complete(self) -> bool:
        """Whether the last step was evaluated."""
        return bool(self.rows) and int(self.rows[-1]["step"]) == self._made.steps

    @property
    def last(self) -> dict[str, list[float]]:
        """Returns of the last evaluation by task."""
        newest = self.rows[-len(self._made.lanes) :]
        return {task: [float(r["return"]) for r in newest if r["task"] == task] for task in self._made.tasks}


# --- The run ----------------------------------------------------------------------------------------------------------


def lane_keys(made: Finetuning) -> jax.Array:
    """A lane's key depends on the lane alone, not on those beside it."""
    known = envs.names()

    def of(lane: Lane) -> jax.Array:
        number = known.index(lane.task) if lane.task in known else made.tasks.index(lane.task)
        key = jax.random.fold_in(jax.random.key(lane.seed), 1 + number)
        return key if lane.skill is None else jax.random.fold_in(key, lane.skill)

    return jnp.stack([of(lane) for lane in made.lanes])


def finetune(
    made: Finetuning,
    out: Path,
    shown: Progress | None = None,
    make: MakeEnvironments = make_envs,
    checkpoint_every: int = CHECKPOINT_EVERY,
    say: Callable[[str], None] = lambda line: None,
    callbacks: Sequence[Callback] = (),
) -> bool:
    """Trains into an opened folder, from its last checkpoint on; True when finished, False when interrupted."""
    run, lanes, keys = made.run, made.lanes, lane_keys(made)
    pretrained = load_learners(made) if made.snapshot is not None else None
    scores = Scores(made, out)

    def surroundings(each: int, offset: int = 0) -> Restorable:
        found = environments_of(lanes, each, make, offset)
        if not isinstance(run.learner, Controller):
            return found
        assert pretrained is not None
        assert made.pretraining is not None
        learner: Any = made.pretraining.run.learner
        return Stretches(found, learner, pretrained[0].actor, run.env.action_dim, run.learner.interval)

    with contextlib.ExitStack() as stack:
        stack.enter_context(locked(out))
        environments = stack.enter_context(contextlib.closing(surroundings(run.envs)))
        testing = surroundings(made.eval_episodes, EVALUATION_SEED)
        judge = stack.enter_context(contextlib.closing(Judge(made, testing, keys)))
        recorder = Recorder(run, keys, environments, out / "checkpoint", made.config(), say)
        stack.callback(recorder.close)
        found = recorder.find()
        with fitting(out / "checkpoint"):
            log = Log(out, [one.label for one in lanes], run.envs, made.eval_every, None, found.log if found else None)
        stack.callback(log.close)
        step, due, spent = 0, made.eval_every, 0.0
        state: RunState | None = None
        if found is not None:
            with fitting(out / "checkpoint"):
                state, step = found.loop.state, found.loop.number * run.envs * made.unit
                due, spent = int(found.about["due"]), float(found.about["seconds"])
                scores.resume(found.about["scores"])
                judge.set_state(found.extra, out / "checkpoint")
            say(f"goes on after {step:,} steps")
            if shown is not None:
                shown.resume(step * len(lanes))
        told = stack.enter_context(listeners(callbacks, out, made.config()))
        interrupted = stack.enter_context(interrupts())
        began = time.perf_counter() - spent
        saved = step
        loop = None if found is None else found.loop

        def begin(fresh: RunState) -> RunState:
            nonlocal state
            state = prepared(made, fresh, pretrained)
            judge.submit(0, state)
            return state

        try:
            for now in train(run, environments, keys, made.steps // made.unit, begin, loop):
                state, step, loop = now.state, min(now.step * made.unit, made.steps), now.loop
                log.add(now.metrics, now.outcome)
                if shown is not None:
                    shown.note = score_note(scores) or log.note
                    shown.advance(run.envs * made.unit * len(lanes))
                if (log.due(step) or step >= made.steps) and (bad := log.write(step, now.diagnose)):
                    raise Failed(failure(made, step, "a loss", bad))
                while due <= step and due < made.steps:
                    judge.submit(due, state)
                    due += made.eval_every
                stopping = told.log(step, log) or interrupted()
                saving = stopping or (step >= saved + checkpoint_every and step < made.steps)
                for evaluation in judge.finished(wait=saving):
                    told.score(evaluation[0], scores.add(*evaluation))
                if saving:
                    about = {"due": due, "scores": scores.rows, "seconds": time.perf_counter() - began}
                    recorder.save(step, now.loop, log, judge.get_state(), about)
                    saved = step
                if stopping:
                    return False
            assert state is not None
            if made.steps > 0 and not scores.complete:
                judge.submit(made.steps, state)
            for evaluation in judge.finished(wait=True):
                told.score(evaluation[0], scores.add(*evaluation))
            if shown is not None:
                shown.note = f"{made.final_episodes} final episodes"
                shown.tick()
            at_once = min(made.final_episodes, FOREIGN_AT_ONCE) if is_foreign(made.env) else made.final_episodes
            finals = final_scores(made, state, surroundings(at_once, FINAL_SEED), keys, interrupted)
            if finals is None:
                if loop is not None:
                    about = {"due": due, "scores": scores.rows, "seconds": time.perf_counter() - began}
                    recorder.save(step, loop, log, judge.get_state(), about)
                return False
            told.final(made.steps, finals)
            write_text(out / "final.csv", to_csv([{k: short(v) for k, v in row.items()} for row in finals]))
        except Diverged as error:
            raise Failed(failure(made, error.step * made.unit, "an action", error.seeds.tolist())) from None
        except NotFinite as error:
            raise Failed(failure(made, step, error.name, error.seeds)) from None
        save_policies(made, out, state)
        seconds = time.perf_counter() - began
        result = {
            "steps": made.steps,
            "lanes": len(lanes),
            "seconds": round(seconds, 1),
            "steps_per_second": round(made.steps * len(lanes) / seconds, 1),
            **provenance(),
        }
        write_text(out / "result.json", json.dumps(result, indent=1) + "\n")
        recorder.finish()
        told.finished = True
    return True


def final_scores(
    made: Finetuning, state: RunState, environments: Restorable, keys: jax.Array, interrupted: Callable[[], bool]
) -> list[dict[str, Any]] | None:
    """Rows of final.csv: each lane's mean return over many episodes, of the same starts whatever the method. None where
    it was interrupted."""
    with contextlib.closing(Judge(made, environments, keys, jax.devices()[0])) as judge:
        at_once = environments.num_envs // len(made.lanes)
        for _ in range(-(-made.final_episodes // at_once)):
            judge.submit(made.steps, state)
        while not judge.idle:
            if interrupted():
                return None
            time.sleep(0.02)
        rounds = list(judge.finished())
    returns = np.concatenate([returns for _, _, returns in rounds], 1)[:, : made.final_episodes]
    rows = score_rows(made, made.steps, rounds[0][1], returns)
    return [row | {"episodes": made.final_episodes} for row in rows]


def save_policies(made: Finetuning, out: Path, state: RunState) -> None:
    """Networks of every lane in the end, with the skill they go with."""
    keys = lane_keys(made)
    skills, choice = made.run.objective.skills, made.run.choice
    chosen = jax.vmap(lambda rule, key: choice.best(rule, key, skills))(state.skill, keys)
    together = jax.device_get({"learner": without_optimizers(state.learner), "skill": chosen})
    for index, lane in enumerate(made.lanes):
        path = policy_path(out, lane)
        path.parent.mkdir(parents=True, exist_ok=True)
        about = {"method": made.method, "step": str(made.steps)} | {k: str(v) for k, v in lane.label.items()}
        save_arrays(path, jax.tree.map(lambda leaf, index=index: leaf[index], together), about)


def policy_path(out: Path, lane: Lane) -> Path:
    return out / lane_name(lane.label) / "policy.safetensors"


def load_policies(out: Path, snapshot: int | None = None) -> Finetuning:
    """A run that has policies of its own; those of an earlier `snapshot` are refused, as it keeps none."""
    made = load_finetuning(out)
    if made.skill == "meta":
        raise UserError(f"{out} holds controllers that pick skills; take the skills of {made.source}")
    if snapshot is not None:
        raise UserError(f"--snapshot {snapshot}: a finetuned run keeps its last policy only; leave it out")
    return made


def load_policy(made: Finetuning, out: Path, lane: Lane) -> tuple[Actor, Float[np.ndarray, " skill"]]:
    """The policy of a lane, and the skill that goes with it."""
    source = policy_path(out, lane)
    if not source.exists():
        raise UserError(f"{out} has no policy of {lane.task}, seed {lane.seed} yet: it is not finished")
    dim = made.run.objective.skills.dim
    like = {"learner": learner_shapes(made.run), "skill": jax.ShapeDtypeStruct((dim,), np.dtype(np.float32))}
    loaded = load_arrays(source, like)
    return loaded["learner"].actor, np.asarray(loaded["skill"])


def failure(made: Finetuning, step: int, what: str, lanes: Sequence[int]) -> str:
    names = ", ".join(lane_name(made.lanes[i].label) for i in lanes)
    learner: Any = made.run.learner
    rate = learner.optimizer.learning_rate
    advice = f"try --precision float32 or --set learner.optimizer.learning_rate={rate / 3:.1g}"
    return f"{names}: {what} is not a number after {step:,} steps; {advice}"


def score_note(scores: Scores) -> str:
    return ", ".join(f"{task} {readable(float(np.mean(returns)))}" for task, returns in scores.last.items() if returns)


def check_memory(made: Finetuning) -> str:
    return fits(made.run, len(made.lanes), "lanes")


def describe(made: Finetuning) -> Iterator[str]:
    """Lines of a dry run."""
    yield json.dumps(made.config(), indent=1)
    parts = [counted(len(made.tasks), "task"), counted(len(made.seeds), "seed")]
    parts += [counted(made.run.objective.skills.dim, "skill")] if made.skill == "each" else []
    yield f"{counted(len(made.lanes), 'lane')}: {' × '.join(parts)}"
    yield "memory: " + check_memory(made)


def run_finetuning(
    made: Finetuning,
    out: Path,
    needs: str,
    checkpoint_every: int = CHECKPOINT_EVERY,
    callbacks: Sequence[Callback] = (),
    raises: bool = False,
) -> int:
    """The command: says what it does, trains, and returns an exit code; `raises` as in pretraining."""
    if (out / "result.json").exists():
        Checkpoints(out / "checkpoint", {}).clear()  # Of a run that was killed as it ended.
        print(f"finished before: {out}/")
        return 0
    lanes = len(made.lanes)
    print(f"{made.method} on {', '.join(made.tasks)} · {counted(lanes, 'lane')} × {made.steps:,} steps · {out}/")
    print(f"memory: {needs}", flush=True)
    with progress(max(made.steps * lanes, 1), "steps") as shown:
        try:
            with explained(out):
                finished = finetune(made, out, shown, checkpoint_every=checkpoint_every, say=say, callbacks=callbacks)
        except Failed as error:
            if raises:
                raise
            print(f"becl: failed: {error}", file=sys.stderr)
            return 1
    if not finished:
        print(f"becl: stopped; the same command, or becl resume {out}, goes on", flush=True)
        return 130
    result = json.loads((out / "result.json").read_text())
    print_scores(made, out)
    print(f"{result['steps_per_second']:,.0f} steps/s, {clock(result['seconds'])} · scores.csv and policies in {out}/")
    return 0


def print_scores(made: Finetuning, out: Path) -> None:
    """The final scores: mean and standard error over seeds and skills."""
    import csv

    from becl.terminal import console, table

    with (out / "final.csv").open() as file:
        rows = list(csv.DictReader(file))
    lines = []
    for task in made.tasks:
        found = np.array([float(row["return"]) for row in rows if row["task"] == task])
        error = readable(float(found.std(ddof=1)) / len(found) ** 0.5) if len(found) > 1 else ""
        mean, least, most = (readable(float(value)) for value in (found.mean(), found.min(), found.max()))
        lines.append((task, mean, error, least, most, len(found)))
    columns = ("task", "return", "standard error", "least", "most", "runs")
    title = f"{made.method} after {made.steps:,} steps, {counted(made.final_episodes, 'episode')} each"
    console().print(table(title, columns, lines))
