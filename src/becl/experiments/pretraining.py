"""Pretraining: seeds of one method trained together without a reward, and what is kept of them.

A run lives in a folder of plain files:

    config.json                          what was asked for; the folder takes no other configuration
    metrics.csv                          one row a log interval and seed
    tensorboard/seed-<n>/                the same for TensorBoard
    seed-<n>/snapshot-<steps>.safetensors   networks at 100k, 500k, 1M and 2M steps, and at the end
    result.json                          written last: how long it took, on what
"""

import contextlib
import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from becl import envs
from becl.envs import maze
from becl.envs.external import foreign_parts, foreign_spec, is_foreign, make_foreign
from becl.envs.maze_batch import MazeBatch
from becl.envs.spec import EnvSpec
from becl.errors import Failed, UserError, unknown
from becl.experiments.settings import Setting, change, check_least, check_positive, check_seeds, settings_of
from becl.learning.choice import Prior
from becl.learning.ddpg import DDPG
from becl.learning.offpolicy import OffPolicy, RunState
from becl.learning.programs import usable_devices
from becl.learning.protocols import Restorable
from becl.learning.replay import Replay
from becl.learning.training import Diverged, train
from becl.measure.coverage import Coverage, grid_of
from becl.nn.adam import Adam, with_optimizers, without_optimizers
from becl.nn.networks import Network, hidden_widths, with_hidden
from becl.nn.precision import Precision
from becl.objectives import METHODS, kinds_of
from becl.objectives.extrinsic import Extrinsic
from becl.options import PretrainOptions
from becl.plugins import without_plugins
from becl.runs.arrays import load_arrays, save_arrays
from becl.runs.callbacks import Callback, listeners
from becl.runs.checkpoint import Checkpoints
from becl.runs.failures import explained
from becl.runs.folder import read_pretraining, write_text
from becl.runs.lock import locked
from becl.runs.log import Log
from becl.runs.progress import Progress, clock, counted, interrupts, progress, say
from becl.runs.provenance import device_name, provenance
from becl.runs.recording import NotFinite, Recorder, fitting
from becl.runs.troubles import Watch
from becl.skills import Cube, NoSkill, OneHot, Sphere
from becl.specs import check_numbers, from_dict, override, to_dict

SNAPSHOTS = (100_000, 500_000, 1_000_000, 2_000_000)
CHECKPOINT_EVERY = PretrainOptions.checkpoint_every
EXAMPLE = "OPTION=VALUE, for example temperature=0.2"
FLAGS = {
    "env": "the environment",
    "objective_obs": "--objective-obs",
    "skills": "--skills",
    "envs": "--envs",
    "precision": "--precision",
}
"""What has a flag of its own, and is no setting."""


@dataclass(frozen=True)
class Pretraining:
    """A resolved run."""

    env: str
    method: str
    seeds: tuple[int, ...]
    steps: int
    """Of each seed."""
    run: OffPolicy
    log_every: int = 10_000
    """Steps of each seed between two rows of metrics."""

    @property
    def snapshots(self) -> list[int]:
        """Steps after which the networks are kept, the last ones too."""
        return [*(step for step in SNAPSHOTS if step < self.steps), self.steps]

    def config(self) -> dict[str, Any]:
        """What must agree for two commands to share a folder."""
        return {"command": "pretrain", **{name: value for name, value in to_dict(self).items() if name != "spec"}}


def make_pretraining(options: PretrainOptions) -> Pretraining:
    """A run with URLB's sizes, changed by options; validated, nothing allocated yet."""
    check_least("--checkpoint-every", options.checkpoint_every)
    if options.method not in METHODS:
        raise unknown("method", options.method, METHODS)
    run = changed(published_run(options), options)
    log_every = options.log_every
    if log_every is None:  # Often enough for a curve.
        log_every = max(1, min(10_000, options.steps // 20))
    pretraining = Pretraining(options.env, options.method, tuple(options.seeds), options.steps, run, log_every)
    check(pretraining)
    return pretraining


def published_run(options: PretrainOptions) -> OffPolicy:
    """A method as it was published, in an environment."""
    spec, method = spec_of(options.env), METHODS[options.method]
    objective: Any = method.objective
    if options.skills is not None:
        space = with_dim(options.method, objective.skills, options.skills)
        objective = dataclasses.replace(objective, skills=space)
    return OffPolicy(
        spec,
        objective,
        replay=Replay(released_skill=method.released_skill, balanced=method.balanced_batches),
        fits_per_update=method.fits_per_update,
        skill_interval=method.skill_interval,
    )


def changed(run: OffPolicy, options: PretrainOptions) -> OffPolicy:
    """A run with the changes that options ask for; settings come last."""
    run = resized(run, options.envs, options.precision)
    if options.hidden is not None:
        run = with_width(run, options.hidden)
    if options.objective_obs is not None:
        numbers = choose_numbers(options.objective_obs, parts_of(options.env), run.env.obs_dim)
        run = dataclasses.replace(run, objective_obs=numbers)
    if options.normalize_obs:
        run = override(run, "learner.normalize", True)
    for setting in settings_of(options.set, EXAMPLE):
        run = apply_setting(run, options.method, setting)
    if METHODS[options.method].successor_features:
        run = override(run, "learner.critic_dim", run.objective.skills.dim)
    return run


def resized(run: OffPolicy, envs: int | None, precision: Precision | None) -> OffPolicy:
    """A run with other numbers of environments or another precision, where they are given."""
    check_least("--envs", envs)
    given = {"envs": envs, "precision": precision}
    return dataclasses.replace(run, **{name: value for name, value in given.items() if value is not None})


def spec_of(env: str) -> EnvSpec:
    if is_foreign(env):
        return foreign_spec(env)
    if env in maze.names():
        return maze.Maze(env).spec
    if env not in envs.DOMAINS and env not in envs.names():
        if "/" in env or env in gymnasium.registry:
            raise UserError(f"unknown environment {env!r}: Gymnasium's are named gym:ID; did you mean 'gym:{env}'?")
        raise unknown("environment", env, [*envs.DOMAINS, *envs.names(), *maze.names()])
    return envs.spec_of(env)


def parts_of(env: str) -> Mapping[str, slice]:
    """Named parts of an observation."""
    if is_foreign(env):
        return foreign_parts(env)
    return {"x": slice(0, 1), "y": slice(1, 2)} if env in maze.names() else envs.DOMAINS[env.partition("_")[0]].parts


def choose_numbers(given: str | Sequence[int], parts: Mapping[str, slice], count: int) -> tuple[int, ...]:
    """Numbers of an observation: given as they are, or as `0:2`, `0,3,7` or names of parts, several with commas."""
    chosen: list[int] = []
    for word in given.split(",") if isinstance(given, str) else []:
        word = word.strip()
        low, colon, high = word.partition(":")
        if word in parts:
            chosen += range(parts[word].start, parts[word].stop)
        elif word.isdecimal():
            chosen.append(int(word))
        elif colon and all(not end or end.isdecimal() for end in (low, high)):
            chosen += range(int(low or 0), int(high or count))
        else:
            raise unknown("part of the observation", word, [*parts, f"numbers 0 to {count - 1}", "ranges such as 0:2"])
    if not isinstance(given, str):
        chosen = list(given)
    if not chosen or min(chosen) < 0 or max(chosen) >= count:
        text = given if isinstance(given, str) else ",".join(map(str, given))
        raise UserError(f"--objective-obs {text}: an observation has numbers 0 to {count - 1}")
    return tuple(dict.fromkeys(chosen))


def make_envs(env: str, count: int, seeds: Sequence[int]) -> Restorable:
    """Environments shared equally by seeds."""
    if is_foreign(env):
        return make_foreign(env, count, list(seeds))
    if env in maze.names():
        return MazeBatch(maze.Maze(env), count, list(seeds))
    return envs.make(env, count, list(seeds))


def with_dim(method: str, space: Any, dim: int) -> Any:
    if isinstance(space, NoSkill):
        raise UserError(f"--skills {dim}: {method} has no skills")
    if dim < 2:
        raise UserError(f"--skills {dim}: at least 2 are needed to tell them apart")
    return dataclasses.replace(space, dim=dim)


def with_width(run: OffPolicy, hidden: int) -> OffPolicy:
    """All networks of a run with hidden layers of one width, for machines without a GPU."""
    check_least("--hidden", hidden)
    objective = with_hidden(run.objective, hidden)
    return override(dataclasses.replace(run, objective=objective), "learner.hidden", hidden)


def apply_setting(run: OffPolicy, method: str, setting: Setting) -> OffPolicy:
    """A run with one option changed that has no flag of its own."""
    if setting.first in FLAGS or setting.path.startswith("objective.skills"):
        raise UserError(f"--set {setting}: use {FLAGS.get(setting.first, '--skills')}")
    own = [field.name for field in dataclasses.fields(run) if field.name not in FLAGS]
    options = [field.name for field in dataclasses.fields(run.objective)]  # type: ignore[arg-type]
    if setting.first not in (*own, *options):
        raise unknown(f"option of {method}", setting.first, [name for name in options if name != "skills"] + own)
    return change(run, setting)


def check(pretraining: Pretraining) -> None:
    """Refuses values that no run can use."""
    run = pretraining.run
    check_seeds(pretraining.seeds)
    if pretraining.steps <= run.random_steps:
        raise UserError(
            f"--steps {pretraining.steps:,}: must be more than the {run.random_steps:,} random steps in the beginning "
            "(random_steps)"
        )
    if pretraining.log_every < 1:
        raise UserError(f"--log-every {pretraining.log_every}: must be greater than 0 and finite")
    check_run(run)


def check_run(run: OffPolicy) -> None:
    """Refuses options that no run can use."""
    learner: Any = run.learner
    positive = {
        "batch": run.batch,
        "fits_per_update": run.fits_per_update,
        "skill_interval": 1 if run.skill_interval is None else run.skill_interval,
        "replay.nstep": run.replay.nstep,
        "learner.hidden": getattr(learner, "hidden", 1),
        "learner.action_gain": getattr(learner, "action_gain", 1),
        "learner.optimizer.learning_rate": learner.optimizer.learning_rate,
        "temperature": getattr(run.objective, "temperature", 1.0),
        "feature_dim": getattr(run.objective, "feature_dim", 1),
        "neighbours": getattr(run.objective, "neighbours", 1),
        "reward_scale": run.reward_scale,
    }
    for field in dataclasses.fields(run.objective):  # type: ignore[arg-type]
        value = getattr(run.objective, field.name)
        if isinstance(value, Adam):
            positive[f"{field.name}.learning_rate"] = value.learning_rate
    positive |= {name: min(widths, default=1) for name, widths in hidden_widths(run.objective)}
    check_positive(positive)
    if not 0 <= run.random_steps < float("inf"):
        raise UserError(f"random_steps {run.random_steps}: must not be negative")
    if isinstance(learner, DDPG) and not 0 <= learner.stddev < float("inf"):
        raise UserError(f"learner.stddev {learner.stddev:g}: must not be negative, and finite")
    if isinstance(learner, DDPG) and learner.critic_dim not in (1, run.objective.skills.dim):
        raise UserError(f"learner.critic_dim {learner.critic_dim}: 1, or as many as the skill has numbers")
    if not 0 <= run.replay.gamma <= 1:
        raise UserError(f"replay.gamma {run.replay.gamma:g}: must lie in [0, 1]")
    if run.reward_normalise != "none" and isinstance(run.objective, Extrinsic):
        raise UserError(
            f"reward_normalise {run.reward_normalise}: the task's own reward is learned from as it is; none"
        )
    if run.reward_normalise != "none" and run.batch < 2:
        raise UserError(f"reward_normalise {run.reward_normalise}: a batch of {run.batch} has no deviation; at least 2")
    if run.replay.balanced and not isinstance(run.objective.skills, OneHot):
        raise UserError("replay.balanced: for discrete skills, which can be counted")
    if getattr(run.objective, "neighbours", 0) > run.batch:
        raise UserError(f"batch {run.batch}: fewer than the {run.objective.neighbours} neighbours")  # type: ignore
    check_numbers(run)


def load_pretraining(out: Path) -> Pretraining:
    """The run that a folder holds."""
    config = without_plugins(read_pretraining(out), METHODS)
    del config["command"]
    try:
        return from_dict({"spec": "Pretraining", **config}, spec_classes())
    except TypeError:  # Something that has no default is missing.
        raise UserError(f"{out / 'config.json'} is damaged") from None


def spec_classes() -> dict[str, type]:
    """Every kind of spec that a run may hold, by name."""
    parts = (Pretraining, OffPolicy, Prior, DDPG, Replay, Network, Adam, NoSkill, OneHot, Cube, Sphere)
    others = (kind for method in METHODS.values() for kind in kinds_of(method.objective))
    return {kind.__name__: kind for kind in (*parts, *others)}


# --- Memory -----------------------------------------------------------------------------------------------------------


class Memory(NamedTuple):
    """Bytes that a run needs on its devices together."""

    replay: int
    networks: int
    """With their optimisers' states."""
    batches: int
    """All batches of a step's updates, drawn at once."""

    @property
    def total(self) -> int:
        return sum(self)


def memory(run: OffPolicy, seeds: int) -> Memory:
    state, _ = jax.eval_shape(run.init, jax.random.key(0))
    learning = jax.tree.leaves((state.learner, state.objective))
    replay = run.replay.bytes(run.env, run.objective.skills, run.envs)
    transition = replay / (run.replay.capacity // run.envs * run.envs)
    return Memory(
        seeds * replay,
        seeds * sum(leaf.size * leaf.dtype.itemsize for leaf in learning),
        int(seeds * run.updates * run.fits_per_update * run.batch * transition),
    )


def available_memory() -> int:
    """Bytes of one device."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"]
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_memory(made: Pretraining) -> str:
    """How much a run needs, in a line; refuses one that cannot fit."""
    return fits(made.run, len(made.seeds), "seeds")


def fits(run: OffPolicy, seeds: int, name: str) -> str:
    need, devices = memory(run, seeds), usable_devices(seeds)
    have = available_memory() * devices
    line = f"replay {size(need.replay)} ({seeds} × {run.replay.capacity:,} transitions), networks "
    line += f"{size(need.networks)}, batches {size(need.batches)}; {size(have)} on {device_name()}"
    if need.total > have:
        fit = int(run.replay.capacity * (have - need.total + need.replay) / need.replay * 0.9)
        advice = f"--set replay.capacity={fit // 1000 * 1000} fits" if fit >= 10_000 else f"train fewer {name} together"
        raise UserError(f"not enough memory: {line}; {advice}")
    return line


def size(number: int | float) -> str:
    return f"{number / 1e9:.1f} GB" if number >= 1e8 else f"{number / 1e6:.1f} MB"


# --- The run ----------------------------------------------------------------------------------------------------------


def seed_keys(seeds: Sequence[int]) -> jax.Array:
    return jnp.stack([jax.random.key(seed) for seed in seeds])


def snapshot_path(out: Path, seed: int, step: int) -> Path:
    return out / f"seed-{seed}" / f"snapshot-{step}.safetensors"


def save_snapshots(made: Pretraining, out: Path, state: RunState, step: int) -> None:
    """Networks of every seed: what policies, and what rewards are made of. Optimisers and replay are not kept."""
    bad: list[int] = []
    together = jax.device_get(without_optimizers({"learner": state.learner, "objective": state.objective}))
    for index, seed in enumerate(made.seeds):
        networks = jax.tree.map(lambda leaf, index=index: leaf[index], together)
        if any(np.isnan(leaf).any() for leaf in jax.tree.leaves(networks)):
            bad.append(index)
            continue
        path = snapshot_path(out, seed, step)
        path.parent.mkdir(exist_ok=True)
        about = {"env": made.env, "method": made.method, "seed": str(seed), "step": str(step)}
        save_arrays(path, networks, about)
    if bad:
        raise Failed(failure(made, out, step, "a weight", bad))


def load_snapshot(made: Pretraining, path: Path) -> tuple[Any, Any]:
    """States of learner and objective from a snapshot; optimisers begin anew."""
    run, key = made.run, jax.random.key(0)
    shapes = {
        "learner": jax.eval_shape(lambda: run.learner.init(key, run.env, run.objective.skills)),
        "objective": jax.eval_shape(lambda: run.objective.init(key, run.seen)),
    }
    loaded = load_arrays(path, without_optimizers(shapes))
    learner, objective = (with_optimizers(loaded[name], shapes[name]) for name in shapes)
    return learner, objective


def learner_shapes(run: OffPolicy) -> Any:
    """Shapes of a learner's networks: drawing them to be replaced at once would take many seconds."""
    return without_optimizers(
        jax.eval_shape(lambda: run.learner.init(jax.random.key(0), run.env, run.objective.skills))
    )


def pretrain(
    made: Pretraining,
    out: Path,
    shown: Progress | None = None,
    checkpoint_every: int = CHECKPOINT_EVERY,
    say: Callable[[str], None] = lambda line: None,
    callbacks: Sequence[Callback] = (),
) -> bool:
    """Trains into an opened folder, from its last checkpoint on; True when finished, False when interrupted."""
    keys, count = seed_keys(made.seeds), made.run.envs * len(made.seeds)
    coverage = None if is_foreign(made.env) else Coverage(grid_of(made.env), len(made.seeds))
    with contextlib.ExitStack() as stack:
        stack.enter_context(locked(out))
        environments = stack.enter_context(contextlib.closing(make_envs(made.env, count, made.seeds)))
        recorder = Recorder(made.run, keys, environments, out / "checkpoint", made.config(), say)
        stack.callback(recorder.close)
        found = recorder.find()
        lanes = [{"seed": seed} for seed in made.seeds]
        with fitting(out / "checkpoint"):
            log = Log(out, lanes, made.run.envs, made.log_every, coverage, None if found is None else found.log)
            stack.callback(log.close)
            step = 0 if found is None else found.loop.number * made.run.envs
            spent = 0.0 if found is None else float(found.about["seconds"])
        keep = [snapshot for snapshot in made.snapshots if step < snapshot < made.steps]
        if found is not None:
            say(f"goes on after {step:,} steps")
            if shown is not None:
                shown.resume(step * len(made.seeds))
        told = stack.enter_context(listeners([Watch(say), *callbacks], out, made.config()))
        interrupted = stack.enter_context(interrupts())
        began = time.perf_counter() - spent
        state, resume = None, None if found is None else found.loop
        try:
            for now in train(made.run, environments, keys, made.steps, resume=resume):
                state, step = now.state, now.step
                log.add(now.metrics, now.outcome)
                if shown is not None:
                    shown.note = log.note
                    shown.advance(count)
                if keep and step >= keep[0]:
                    save_snapshots(made, out, state, keep.pop(0))
                if (log.due(step) or step >= made.steps) and (bad := log.write(step, now.diagnose)):
                    raise Failed(failure(made, out, step, "a loss", bad))
                stopping = told.log(step, log) or interrupted()
                if stopping or (step % checkpoint_every < made.run.envs and step < made.steps):
                    recorder.save(step, now.loop, log, {}, {"seconds": time.perf_counter() - began})
                if stopping:
                    save_snapshots(made, out, state, step)
                    return False
        except Diverged as error:
            raise Failed(failure(made, out, error.step, "an action", error.seeds.tolist())) from None
        except NotFinite as error:
            raise Failed(failure(made, out, step, error.name, error.seeds)) from None
        state = state if state is not None or found is None else found.loop.state
        assert state is not None
        save_snapshots(made, out, state, made.steps)
        seconds = time.perf_counter() - began
        result = {
            "steps": made.steps,
            "seconds": round(seconds, 1),
            "steps_per_second": round(made.steps * len(made.seeds) / seconds, 1),
            **provenance(),
        }
        write_text(out / "result.json", json.dumps(result, indent=1) + "\n")
        recorder.finish()
        told.finished = True
    return True


def failure(made: Pretraining, out: Path, step: int, what: str, seeds: Sequence[int]) -> str:
    """Seeds are counted from 0 here."""
    names = [made.seeds[i] for i in seeds]
    kept = Checkpoints(out / "checkpoint", {}).steps()
    found = (path for seed in names for path in (out / f"seed-{seed}").glob("snapshot-*.safetensors"))
    snapshots = sorted(found, key=lambda path: int(path.stem.partition("-")[2]))
    last = f"the last good snapshot is {snapshots[-1]}" if snapshots else "there is no snapshot yet"
    last += f", the last good checkpoint of step {kept[-1]:,}" if kept else ""
    learner: Any = made.run.learner
    rate = learner.optimizer.learning_rate
    advice = f"try --precision float32 or --set learner.optimizer.learning_rate={rate / 3:.1g}"
    return f"seed {', '.join(map(str, names))}: {what} is not a number after {step:,} steps; {last}; {advice}"


# --- Before the run ---------------------------------------------------------------------------------------------------


def trial_of(run: OffPolicy) -> OffPolicy:
    """The same with a small replay and an early start, to be timed."""
    few = (run.replay.nstep + 2) * max(run.envs, run.steps_per_update)
    replay = dataclasses.replace(run.replay, capacity=max(8 * few, 1000))
    return dataclasses.replace(run, random_steps=few, replay=replay)


def time_loop(made: Pretraining, patience: float = 20.0) -> float:
    """Environment steps a second of all seeds together, measured on this machine with a small replay."""
    run, trial = made.run, trial_of(made.run)
    updates, began = 0, time.perf_counter()
    since, step = began, 0
    with contextlib.closing(make_envs(made.env, run.envs * len(made.seeds), made.seeds)) as environments:
        for now in train(trial, environments, seed_keys(made.seeds), 10**9):
            if now.metrics is None:
                continue
            updates += 1
            late = time.perf_counter() - began > patience
            if step and (late or time.perf_counter() - since > 2.0):
                jax.block_until_ready(now.metrics)
                return (now.step - step) * len(made.seeds) / (time.perf_counter() - since)
            if updates == 3 or (updates == 1 and late):
                # The first ones compile.
                jax.block_until_ready(now.metrics)
                since, step = time.perf_counter(), now.step
    raise AssertionError("the loop has no end")


def describe(made: Pretraining) -> Iterator[str]:
    """Lines of a dry run."""
    yield json.dumps(made.config(), indent=1)
    yield "memory: " + check_memory(made)
    rate = time_loop(made)
    total = made.steps * len(made.seeds) / rate
    yield f"time: about {clock(total)} at {rate:,.0f} environment steps/s (timed here, compiling not counted)"


def run_pretraining(
    made: Pretraining,
    out: Path,
    needs: str,
    checkpoint_every: int = CHECKPOINT_EVERY,
    callbacks: Sequence[Callback] = (),
    raises: bool = False,
) -> int:
    """The command: says what it does and what memory it `needs`, trains, and returns an exit code.

    A run that cannot go on is an exit code too; or, where it is to be one, the error.
    """
    if (out / "result.json").exists():
        Checkpoints(out / "checkpoint", {}).clear()  # Of a run that was killed as it ended.
        print(f"finished before: {out}/")
        return 0
    print(f"{made.method} on {made.env} · {counted(len(made.seeds), 'seed')} × {made.steps:,} steps · {out}/")
    print(f"memory: {needs}", flush=True)
    with progress(made.steps * len(made.seeds), "steps") as shown:
        try:
            with explained(out):
                finished = pretrain(made, out, shown, checkpoint_every, say, callbacks)
        except Failed as error:
            if raises:
                raise
            print(f"becl: failed: {error}", file=sys.stderr)
            return 1
    if not finished:
        print(f"becl: stopped; the same command, or becl resume {out}, goes on", flush=True)
        return 130
    result = json.loads((out / "result.json").read_text())
    print(
        f"{result['steps_per_second']:,.0f} steps/s, {clock(result['seconds'])} · metrics.csv and snapshots in {out}/"
    )
    return 0
