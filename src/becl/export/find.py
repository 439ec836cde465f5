"""The policy that an export is asked for: which run, seed and snapshot, which task, which skill."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from becl.envs import maze
from becl.envs.external import LENGTH, is_external, make_external
from becl.envs.spec import EnvSpec
from becl.errors import UserError, unknown
from becl.experiments.environments import check_sizes
from becl.experiments.evaluation import choose_seed
from becl.experiments.lanes import Lane
from becl.experiments.policies import load_policies, load_policy, policy_path
from becl.experiments.pretraining import load_pretraining
from becl.experiments.snapshots import learner_shapes, snapshot_path, words_about
from becl.export.policy import Skill, fold
from becl.invocation import own_version
from becl.learning.ddpg import Actor
from becl.learning.offpolicy import OffPolicy
from becl.measure.skills import DRAWS, skills_of
from becl.nn.adam import without_optimizers
from becl.runs.arrays import load_arrays, named_arrays
from becl.runs.folder import choose_snapshot, read_config
from becl.skills import Cube, Modes, NoSkill, OneHot, SkillSpace

FORWARD = (
    "x = tanh(norm(obs @ trunk.weight + trunk.bias) * norm.gain + norm.shift); "
    "action = tanh(relu(x @ hidden.weight + hidden.bias) @ out.weight + out.bias); "
    "norm(y) = (y - mean(y)) / sqrt(var(y) + 1e-5) over units"
)
WHITENED = "obs = clip((obs - obs.mean) / obs.std, -5, 5); "


class Policy(NamedTuple):
    """A run's network, the skill it gets, and words about both."""

    actor: Actor
    skill: np.ndarray
    source: Path
    about: dict[str, Any]


def check_numbers_seen(run: OffPolicy, folder: Path) -> None:
    """Raises on policies that see images."""
    if run.vision is not None:
        raise UserError(f"{folder} learned from images: policies that see are not written as files")


def find_policy(
    run: Path, skill: str | None = None, seed: int | None = None, snapshot: int | None = None, task: str | None = None
) -> Policy:
    """The policy of one skill, checked and read: by default of the run's first seed and last snapshot.

    `skill` is a number; for continuous skills numbers separated by commas, or a draw's number."""
    if is_finetuned(run):
        policy = finetuned_policy(run, skill, seed, snapshot, task)
    else:
        policy = pretrained_policy(run, skill, seed, snapshot, task)
    if bad := [name for name, array in named_arrays(policy.actor).items() if not np.isfinite(array).all()]:
        raise UserError(f"{policy.source}: actor.{bad[0]} has numbers that are not finite")
    return policy


def is_finetuned(folder: Path) -> bool:
    """Whether a run with policies was finetuned."""
    command = read_config(folder).get("command")
    if command not in ("pretrain", "finetune"):
        raise UserError(f"{folder} holds no run of becl pretrain or becl finetune")
    return command == "finetune"


def pretrained_policy(
    folder: Path, skill: str | None, seed: int | None, snapshot: int | None, task: str | None
) -> Policy:
    spec = load_pretraining(folder)
    check_numbers_seen(spec.run, folder)
    if task is not None:
        raise UserError(f"--task {task}: {folder} was pretrained without a task; leave it out")
    seed = choose_seed(folder, spec.seeds, seed)
    step = choose_snapshot(folder, [seed], snapshot)
    vector, name = choose_skill(spec.method, spec.run.objective.skills, skill)
    source = snapshot_path(folder, seed, step)
    objective = jax.eval_shape(lambda: spec.run.objective.init(jax.random.key(0), spec.run.seen))
    like = {"learner": learner_shapes(spec.run), "objective": without_optimizers(objective)}
    actor = load_arrays(source, like, words_about(spec, source))["learner"].actor
    about = describe(spec.run, spec.env, spec.method, seed, step, vector, name)
    return Policy(actor, vector, source, about)


def finetuned_policy(
    folder: Path, skill: str | None, seed: int | None, snapshot: int | None, task: str | None
) -> Policy:
    spec = load_policies(folder, snapshot)
    check_numbers_seen(spec.run, folder)
    seed = choose_seed(folder, spec.seeds, seed)
    task = choose_task(folder, spec.tasks, task)
    space = spec.run.objective.skills
    chosen = None
    if spec.skill in ("each", "resampled") and (skill is not None or spec.skill == "each"):
        chosen = choose_skill(spec.method, space, skill)
    elif skill is not None:
        why = "its policy has no skill" if not space.dim else "its policy has learned with one skill, which it keeps"
        raise UserError(f"--skill {skill}: {why}; leave it out")
    lane = Lane(task, seed, int(chosen[1]) if spec.skill == "each" and chosen else None)
    actor, kept = load_policy(spec, folder, lane)
    assert isinstance(actor, Actor)
    vector, name = chosen or stored_skill(space, kept)
    about = describe(spec.run, spec.env, spec.method, seed, spec.steps, vector, name)
    about |= {"task": task, "pretraining_steps": spec.snapshot}
    return Policy(actor, vector, policy_path(folder, lane), about)


def choose_task(folder: Path, tasks: Sequence[str], wanted: str | None) -> str:
    if wanted is None:
        if len(tasks) > 1:
            raise UserError(f"--task: choose one; {folder} has {', '.join(tasks)}")
        return tasks[0]
    if wanted not in tasks:
        raise unknown(f"task of {folder}", wanted, tasks)
    return wanted


def choose_skill(method: str, space: SkillSpace, text: str | None) -> tuple[np.ndarray, str]:
    """The vector that a text stands for, and the skill's number where it has one."""
    if isinstance(space, NoSkill):
        if text is not None:
            raise UserError(f"--skill {text}: {method} has no skills; leave it out")
        return np.zeros(0, np.float32), ""
    if isinstance(space, OneHot):
        if text is None or not text.isdecimal() or int(text) >= space.dim:
            given = "" if text is None else f" {text}"
            raise UserError(f"--skill{given}: choose one; {method} has 0 to {space.dim - 1}")
        return skills_of(space)[int(text)], str(int(text))
    if text is not None and text.isdecimal() and int(text) < DRAWS:
        return skills_of(space)[int(text)], ""
    return parse_vector(method, space, text), ""


def parse_vector(method: str, space: SkillSpace, text: str | None) -> np.ndarray:
    """A continuous skill from its numbers; directions are brought to length 1."""
    ranges = {Cube: (0, 1), Modes: (-1, 1)}
    where = "that are a direction"
    if type(space) in ranges:
        least, most = ranges[type(space)]
        where = f"in [{least}, {most}]"
    needed = f"{method} needs {space.dim} numbers {where}, separated by commas, or 0 to {DRAWS - 1} for a draw"
    given = "" if text is None else f" {text if len(text) < 40 else text[:36] + '…'}"
    try:
        vector = np.array([float(part) for part in (text or "").split(",")])
    except ValueError:
        raise UserError(f"--skill{given}: {needed}") from None
    if len(vector) != space.dim or not np.isfinite(vector).all():
        raise UserError(f"--skill{given}: {needed}")
    if type(space) in ranges:
        least, most = ranges[type(space)]
        if vector.min() < least or vector.max() > most:
            raise UserError(f"--skill{given}: {needed}")
        return vector.astype(np.float32)
    length = np.linalg.norm(vector)
    if not length:
        raise UserError(f"--skill{given}: {needed}")
    return (vector / length).astype(np.float32)


def stored_skill(space: SkillSpace, vector: np.ndarray) -> tuple[np.ndarray, str]:
    """The skill kept beside a finetuned policy, and its number where it has one."""
    return vector, str(int(vector.argmax())) if isinstance(space, OneHot) else ""


def describe(
    run: OffPolicy, env: str, method: str, seed: int, step: int, skill: np.ndarray, name: str
) -> dict[str, Any]:
    """The words that go into a file beside its arrays."""
    ends = "0.95 of a cell" if env in maze.names() else "the ends of an actuator's control range"
    if is_external(env):
        ends = "the ends of the environment's own range"
    scale = f"[-1, 1], the mean action without noise; -1 and 1 are {ends}"
    if run.env.discrete:
        scale = "one number in [-1, 1] for each choice; the action is the choice with the largest"
    learner: Any = run.learner
    return {
        "becl": own_version() or "",
        "env": env,
        "task": "",
        "method": method,
        "seed": seed,
        "step": step,
        "skill": name,
        "skill_vector": [float(number) for number in skill],
        "observation_dim": run.env.obs_dim,
        "action_dim": run.env.action_dim,
        "action_range": scale,
        "forward": (WHITENED if learner.normalize else "") + FORWARD,
    }


def to_skill(found: Policy) -> Skill:
    """A policy as a function of the environment's own observations."""
    env = found.about["env"]
    to_vector: Callable[[Any], np.ndarray] | None = None
    to_action: Callable[[np.ndarray], Any] | None = None
    if is_external(env):
        batch = make_external(env, 1, 0)
        batch.close()
        check_sizes(env, EnvSpec(found.about["observation_dim"], found.about["action_dim"], LENGTH), batch.spec)
        to_vector, to_action = batch.layout.one, batch.to_action
    return Skill(fold(found.actor, found.skill), found.about, to_vector, to_action)
