"""Pretraining: seeds of one method trained together without a reward, and what is kept of them.

A run lives in a folder of plain files:

    config.json                          what was asked for; the folder takes no other configuration
    metrics.csv                          one row per log interval and seed
    tensorboard/seed-<n>/                the same for TensorBoard
    seed-<n>/snapshot-<steps>.safetensors   networks at 100k, 500k, 1M and 2M steps, and at the end
    result.json                          written last: how long it took, on what
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from becl.envs.external import is_external
from becl.errors import UserError, unknown
from becl.experiments.encoder_weights import encoder_of, recall_weights, with_weights
from becl.experiments.environments import (
    changed_length,
    check_drawn,
    check_recorded,
    check_seen,
    choose_numbers,
    parts_of,
    shows_images,
    spec_of,
)
from becl.experiments.outputs import check_outputs
from becl.experiments.settings import (
    Setting,
    change,
    check_least,
    check_positive,
    check_seeds,
    positive_options,
    reading,
    settings_of,
)
from becl.learning.choice import Halves, Prior
from becl.learning.ddpg import DDPG
from becl.learning.offpolicy import OffPolicy
from becl.learning.replay import Replay
from becl.learning.seeing import Vision
from becl.nn.adam import Adam
from becl.nn.networks import Network, with_hidden
from becl.nn.pieg import PIEG
from becl.nn.precision import Precision
from becl.nn.vision import CNN
from becl.objectives import METHODS, Method, Objective, Sum, find_method, kinds_of
from becl.objectives.extrinsic import Extrinsic
from becl.objectives.protocol import SeveralTargets, chance_reward
from becl.objectives.total import common_skills, named_parts, option_names
from becl.options import FinetuneOptions, PretrainOptions
from becl.options.training import ENCODER_WEIGHTS
from becl.plugins import ORIGINS, without_plugins
from becl.runs.folder import read_pretraining
from becl.skills import Cube, Modes, NoSkill, OneHot, Sphere
from becl.specs import added, check_numbers, from_dict, override, parse, to_dict

SNAPSHOTS = (100_000, 500_000, 1_000_000, 2_000_000)
EXAMPLE = "OPTION=VALUE, for example temperature=0.2"
FLAGS = {
    "env": "the environment",
    "objective_obs": "--objective-obs",
    "skills": "--skills",
    "envs": "--envs",
    "precision": "--precision",
}
"""Options with a flag of their own, which `--set` refuses."""
EPISODE_LENGTH = "env.episode_length"
"""The one part of the environment that `--set` changes: steps of an episode."""
CHOICES = ("batch", "steps_per_update", "decay", "clip", "width")
"""Options of skill choices that must be above 0."""


@dataclass(frozen=True)
class Pretraining:
    """A resolved pretraining run."""

    env: str
    method: str
    seeds: tuple[int, ...]
    steps: int
    """Steps per seed."""
    run: OffPolicy
    log_every: int = 10_000
    """Steps per seed between two rows of metrics."""
    went_on: tuple[int, ...] = added(())
    """Steps after which the run was finished and went on from its snapshots."""

    @property
    def begun(self) -> int:
        """Steps that were taken before the run went on from its last snapshots; 0 where it never did."""
        return self.went_on[-1] if self.went_on else 0

    @property
    def sized(self) -> OffPolicy:
        """The run as it is trained, with a replay no larger than it can fill."""
        rows = max(-(-(self.steps - self.begun) // self.unit // self.run.envs), self.run.needed)
        capacity = min(self.run.replay.capacity, rows * self.run.envs)
        return dataclasses.replace(self.run, replay=dataclasses.replace(self.run.replay, capacity=capacity))

    @property
    def snapshots(self) -> list[int]:
        """Steps after which the networks are saved, including the last step."""
        return [*(step for step in SNAPSHOTS if step < self.steps), self.steps]

    @property
    def unit(self) -> int:
        """Environment steps in a step of the loop."""
        return unit_of(self.run)

    @property
    def episode_length(self) -> int | None:
        """Steps of an episode where they are not the environment's own."""
        return changed_length(self.env, self.run.env, self.run.vision)

    @property
    def chance(self) -> float | None:
        """The chance level of the reward, when states say nothing about skills; None for methods without one."""
        return chance_reward(self.run.objective, self.run.batch)

    def config(self) -> dict[str, Any]:
        """What must agree for two commands to share a folder."""
        return {"command": "pretrain", **{name: value for name, value in to_dict(self).items() if name != "spec"}}


def make_pretraining(options: PretrainOptions, objective: Objective | None = None) -> Pretraining:
    """Makes a run with URLB's sizes, changed by options; validated, nothing allocated yet.

    An `objective` takes the place of the method's own.
    """
    check_least("--checkpoint-every", options.checkpoint_every)
    run = changed(published_run(options, objective), options)
    log_every = options.log_every
    if log_every is None:  # Often enough for a curve.
        log_every = max(1, min(10_000, options.steps // 20))
    pretraining = Pretraining(options.env, options.method, tuple(options.seeds), options.steps, run, log_every)
    check(pretraining)
    if ORIGINS.keys() & options.method.split("+"):
        check_outputs(options.method, pretraining.sized)
    return pretraining


def published_run(options: PretrainOptions, given: Objective | None = None) -> OffPolicy:
    """A run of a method as it was published, in an environment."""
    method = find_method(options.method)
    spec, objective = spec_of(options.env), of_method(options, method) if given is None else given
    if isinstance(given, Sum) and "+" in options.method:
        fits: Any = given.fits or (method.objective.fits if isinstance(method.objective, Sum) else None)
        objective = dataclasses.replace(given, names=options.method.split("+"), fits=fits)
    if options.skills is not None:
        space = with_dim(options.method, objective.skills, options.skills)
        objective = dataclasses.replace(objective, skills=space)  # type: ignore[type-var]
    choice, interval = Prior(), method.skill_interval
    if isinstance(objective.skills, Modes):  # They change in the middle of an episode.
        choice, interval = Halves(), min(interval or spec.episode_length, max(1, spec.episode_length // 2))
    run = OffPolicy(
        spec,
        objective,
        replay=Replay(released_skill=method.released_skill, balanced=method.balanced_batches),
        fits_per_update=method.fits_per_update,
        skill_interval=interval,
        choice=choice,
    )
    return with_vision(run, options.env, method, options)


def with_vision(run: OffPolicy, env: str, method: Method, options: PretrainOptions | FinetuneOptions) -> OffPolicy:
    """A run that learns from images where it is asked to, at URLB's sizes for these."""
    encoder, weights, others = options.encoder, options.encoder_weights, shows_images(env)
    if encoder is not None and not (options.pixels or others):
        raise UserError(f"--encoder {encoder}: for images; add --pixels")
    if weights is not None and encoder != "pieg":
        raise UserError(f"--encoder-weights {weights}: for frozen layers; add --encoder pieg")
    if not (options.pixels or others):
        return run
    check_seen(env)
    vision = Vision(through=method.images.through, repeat=1 if others else Vision.repeat)
    if encoder == "pieg":
        vision = dataclasses.replace(vision, encoder=with_weights(weights or ENCODER_WEIGHTS))
    return dataclasses.replace(
        run,
        vision=vision,
        learner=DDPG(feature_dim=method.images.feature_dim),
        replay=dataclasses.replace(run.replay, nstep=1),
        batch=256,
        random_steps=run.random_steps // vision.repeat,
    )


def with_features(run: OffPolicy, env: str, method: Method) -> OffPolicy:
    """A run from images once all options are known: with an encoder's trainer by name, and its number of features."""
    if run.vision is None:
        return run
    vision = run.vision
    if vision.trained_by == "released":
        vision = dataclasses.replace(vision, trained_by=method.images.released)
    check_vision(vision)
    check_drawn(env, vision)
    return dataclasses.replace(run, vision=vision, env=spec_of(env, vision))


def check_vision(vision: Vision) -> None:
    """Raises on images that cannot be learned from."""
    least = vision.encoder.smallest
    if vision.size < least:
        raise UserError(f"vision.size {vision.size}: the encoder needs images of {least} pixels at least")
    if isinstance(vision.encoder, PIEG) and vision.stack < 2:
        raise UserError(f"vision.stack {vision.stack}: pieg needs differences of frames, so at least 2 of them")
    check_positive({"vision.stack": vision.stack, "vision.repeat": vision.repeat,
                    "vision.optimizer.learning_rate": vision.optimizer.learning_rate})  # fmt: skip
    sizes = ("units",) if isinstance(vision.encoder, PIEG) else ("filters", "layers")
    check_positive({f"vision.encoder.{name}": getattr(vision.encoder, name) for name in sizes})


def unit_of(run: OffPolicy) -> int:
    """Environment steps in a step of the loop: images are seen after each action was taken several times."""
    return 1 if run.vision is None else run.vision.repeat


def of_method(options: PretrainOptions, method: Method) -> Objective:
    """The method's own objective; refuses a sum whose parts have different skills."""
    if "+" in options.method and options.skills is None:
        names = options.method.split("+")
        common_skills(names, [METHODS[name].objective for name in names])
    return method.objective


def changed(run: OffPolicy, options: PretrainOptions) -> OffPolicy:
    """A run changed by options; `--set` comes last."""
    run = resized(run, options.envs, options.precision)
    if options.hidden is not None:
        run = with_width(run, options.hidden)
    if options.objective_obs is not None:
        numbers = choose_numbers(options.objective_obs, parts_of(options.env), run.env.obs_dim)
        run = dataclasses.replace(run, objective_obs=numbers)
    if options.normalize_obs:
        run = override(run, "learner.normalize", True)
    for setting in settings_of(options.set, EXAMPLE):
        if setting.path == EPISODE_LENGTH:
            run = with_length(run, options.env, setting)
        else:
            run = apply_setting(run, options.method, setting)
    if find_method(options.method).successor_features:
        run = override(run, "learner.critic_dim", run.objective.skills.dim)
    return with_features(run, options.env, find_method(options.method))


def resized(run: OffPolicy, envs: int | None, precision: Precision | None) -> OffPolicy:
    """A run with another number of environments or another precision, if they are given."""
    check_least("--envs", envs)
    given = {"envs": envs, "precision": precision}
    return dataclasses.replace(run, **{name: value for name, value in given.items() if value is not None})


def with_dim(method: str, space: Any, dim: int) -> Any:
    if isinstance(space, NoSkill):
        raise UserError(f"--skills {dim}: {method} has no skills")
    if dim < 2:
        raise UserError(f"--skills {dim}: at least 2 are needed to tell them apart")
    return dataclasses.replace(space, dim=dim)


def with_width(run: OffPolicy, hidden: int) -> OffPolicy:
    """A run whose networks all have hidden layers of one width, for machines without a GPU."""
    check_least("--hidden", hidden)
    if encoder_of(run) is not None:
        run = override(run, "vision.encoder.units", hidden)
    objective = with_hidden(run.objective, hidden)
    return override(dataclasses.replace(run, objective=objective), "learner.hidden", hidden)


def with_length(run: OffPolicy, env: str, setting: Setting) -> OffPolicy:
    """A run with episodes of another length."""
    if run.vision is not None:
        raise UserError(f"--set {setting}: not with --pixels")
    if is_external(env):
        raise UserError(f"--set {setting}: for robots and mazes; {env} says itself how long its episodes are")
    length = parse(EPISODE_LENGTH, setting.value, int)
    check_least(EPISODE_LENGTH, length)
    return dataclasses.replace(run, env=run.env._replace(episode_length=length))


def apply_setting(run: OffPolicy, method: str, setting: Setting) -> OffPolicy:
    """A run with one option changed that has no flag of its own."""
    if setting.first in FLAGS or "skills" in setting.path.split(".")[:3]:
        raise UserError(f"--set {setting}: use {FLAGS.get(setting.first, '--skills')}")
    if setting.path in ("vision.encoder.network", "vision.encoder.weights") and encoder_of(run) is not None:
        raise UserError(f"--set {setting}: use --encoder-weights")
    if setting.first == "vision" and run.vision is None:
        raise UserError(f"--set {setting}: for images; add --pixels")
    own = [field.name for field in dataclasses.fields(run) if field.name not in FLAGS]
    options = option_names(run.objective)
    if setting.first not in {*own, *(name.partition(".")[0] for name in options)}:
        raise unknown(f"option of {method}", setting.first, options + own)
    return change(run, setting)


def check(pretraining: Pretraining) -> None:
    """Raises on values with which no run can work."""
    run = pretraining.run
    check_seeds(pretraining.seeds)
    random = run.random_steps * pretraining.unit
    if pretraining.steps <= random:
        raise UserError(
            f"--steps {pretraining.steps:,}: must be more than the {random:,} random steps at the beginning "
            "(random_steps)"
        )
    if pretraining.steps % pretraining.unit:
        raise UserError(
            f"--steps {pretraining.steps:,}: must be a multiple of {pretraining.unit}, the action repeat "
            "(vision.repeat)"
        )
    if pretraining.log_every < 1:
        raise UserError(f"--log-every {pretraining.log_every}: must be greater than 0 and finite")
    check_run(run)


def check_run(run: OffPolicy) -> None:
    """Raises on options with which no run can work."""
    learner: Any = run.learner
    check_positive(run_options(run) | positive_options(run.objective))
    if not isinstance(run.objective.skills, NoSkill):
        check_positive({"skills.dim": run.objective.skills.dim})
    if not 0 <= run.random_steps < float("inf"):
        raise UserError(f"random_steps {run.random_steps}: must not be negative")
    if isinstance(learner, DDPG) and not 0 <= learner.stddev < float("inf"):
        raise UserError(f"learner.stddev {learner.stddev:g}: must be finite and not negative")
    if isinstance(learner, DDPG) and learner.critic_dim not in (1, run.objective.skills.dim):
        raise UserError(f"learner.critic_dim {learner.critic_dim}: must be 1 or the dimension of the skill")
    if not 0 <= run.replay.gamma <= 1:
        raise UserError(f"replay.gamma {run.replay.gamma:g}: must lie in [0, 1]")
    if run.reward_normalise != "none" and isinstance(run.objective, Extrinsic):
        raise UserError(f"reward_normalise {run.reward_normalise}: the task's own reward is never normalised; use none")
    if run.reward_normalise != "none" and run.batch < 2:
        raise UserError(
            f"reward_normalise {run.reward_normalise}: a batch of {run.batch} has no deviation; use at least 2"
        )
    several = isinstance(run.objective, SeveralTargets) and run.objective.targets
    if several and getattr(learner, "critic_dim", 1) > 1:
        raise UserError(
            "targets: only for critics of values; this method's critic has successor features, with a target each"
        )
    if run.vision is not None and getattr(learner, "normalize", False):
        raise UserError("--normalize-obs: only for observations of numbers; images are all scaled the same way")
    if run.replay.balanced and not isinstance(run.objective.skills, OneHot):
        raise UserError("replay.balanced: works only for discrete skills, which can be counted")
    for prefix, part in named_parts(run.objective):
        if getattr(part, "neighbours", 0) > run.batch:
            raise UserError(f"batch {run.batch}: fewer than the {part.neighbours} neighbours{of_part(prefix)}")
    check_numbers(run)


def run_options(run: OffPolicy) -> dict[str, int | float]:
    """The options of a run, other than its objective's, that must be above 0."""
    learner: Any = run.learner
    choices = {f"choice.{name}": getattr(run.choice, name) for name in CHOICES if hasattr(run.choice, name)}
    return choices | {
        "batch": run.batch,
        "fits_per_update": run.fits_per_update,
        "skill_interval": 1 if run.skill_interval is None else run.skill_interval,
        "replay.nstep": run.replay.nstep,
        "learner.hidden": getattr(learner, "hidden", 1),
        "learner.action_gain": getattr(learner, "action_gain", 1),
        "learner.optimizer.learning_rate": learner.optimizer.learning_rate,
        "reward_scale": run.reward_scale,
    }


def of_part(prefix: str) -> str:
    """Names the part of a sum that an option belongs to, for the end of a sentence."""
    return f" of {prefix.rstrip('.')}" if prefix else ""


def load_pretraining(out: Path) -> Pretraining:
    """The pretraining run that a folder holds."""
    config = without_plugins(read_pretraining(out), METHODS)
    del config["command"]
    with reading(out / "config.json"):
        pretraining = from_dict({**config, "spec": "Pretraining"}, spec_classes(), Pretraining)
    recall_weights(pretraining.run, out)
    with reading(out / "config.json"):
        check(pretraining)
        check_recorded(pretraining.env, pretraining.run)
    return pretraining


def spec_classes() -> dict[str, type]:
    """Every kind of spec that a run may hold, by name."""
    spaces = (NoSkill, OneHot, Cube, Sphere, Modes)
    parts = (Pretraining, OffPolicy, Prior, Halves, DDPG, Replay, Network, Adam, Sum, Vision, CNN, PIEG, *spaces)
    others = (kind for method in METHODS.values() for kind in kinds_of(method.objective))
    return {kind.__name__: kind for kind in (*parts, *others)}


def seed_keys(seeds: Sequence[int]) -> jax.Array:
    return jnp.stack([jax.random.key(seed) for seed in seeds])
