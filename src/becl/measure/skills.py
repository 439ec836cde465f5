"""Measures what the skills of a pretrained policy do, on whole episodes without any training.

Every skill plays from the same starts with the policy's mean action: `rollout` simulates all skills together and
computes the rewards of all tasks on the states. The rest turns a rollout into numbers: returns, states covered, how
well the skill can be recognised from a state, how far the robot goes and whether it moves at all.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Int

from becl import envs
from becl.envs import maze
from becl.envs.domain import Domain, Vector
from becl.envs.external import is_external, make_external
from becl.envs.maze_batch import MazeBatch
from becl.envs.pictures import in_numbers
from becl.envs.simulations import Simulations
from becl.learning.protocols import Environments
from becl.learning.seeing import Seer, Vision, behind_camera
from becl.measure.coverage import grid_of
from becl.measure.estimators import BIN, knn_accuracy, plug_in
from becl.skills import NoSkill, OneHot, SkillSpace

if TYPE_CHECKING:
    import mujoco
    from mujoco.batch import Batch

STARTS = 1_000_000  # Seed of the starts; training uses the seeds of its run.
DRAWS = 16  # How many skills are looked at if they are continuous.
STATES = 50  # Evenly spaced states of an episode, among which neighbours and centroids are sought.
SQUARE = 1.0  # Side of the squares in which places are counted in environments from outside the package.
SHUFFLES = 10  # Random assignments of skills to episodes, for the information that chance would show.
STILL = 0.1  # Mean absolute speed of the joints below which a robot holds a pose, rad/s.
APART = ("jaco",)  # Domains in which a task changes the scene: the brick lies elsewhere.

Policy = Callable[..., Float[Array, "n a"]]
"""The mean action of observations with skills appended: an `Actor`, or any function of JAX; or a `Seer`, of images."""
Row = dict[str, Any]


class Episodes(NamedTuple):
    """Whole episodes of some skills. Episode e of every skill has the same start."""

    obs: Float32[np.ndarray, "skills episodes states obs"]
    """The first state is the start, so there is one more state than steps."""
    reward: Mapping[str, Float[np.ndarray, "skills episodes steps"]]
    """Rewards by task; none in a maze."""
    place: Float[np.ndarray, "skills episodes states axes"]
    """Walker: x of the torso, m. Quadruped: x, y of the torso, m. Jaco: the fingers' pinch point, m. Maze: x, y.
    Others: the numbers of the observation that are named, or x, y of a MuJoCo model's first body, m; else no axes."""
    joint_speed: Float[np.ndarray, "skills episodes steps"] | None
    """Mean absolute speed of the robot's hinges, rad/s."""
    step_seconds: float
    """Seconds per control step; 1 in a maze, where speed is in cells per step, and if it is not known, as elsewhere."""
    diverged: Bool[np.ndarray, "skills episodes"]
    """Episodes in which MuJoCo gave up: the last good state is repeated, and earns nothing."""
    length: Int[np.ndarray, "skills episodes"] | None = None
    """Steps of each episode, if some end early: then their last state is repeated, and earns nothing."""


# --- Episodes ---------------------------------------------------------------------------------------------------------


def skills_of(space: SkillSpace) -> Float32[np.ndarray, "skills dim"]:
    """The skills to look at: all discrete ones, draws of continuous ones, or one empty row if there are none."""
    if isinstance(space, NoSkill):
        return np.zeros((1, 0), np.float32)
    if isinstance(space, OneHot):
        return np.eye(space.dim, dtype=np.float32)
    return np.asarray(space.spread(jax.random.key(0), DRAWS), np.float32)


def tasks_of(env: str) -> list[str]:
    """All tasks of an environment's domain, or the environment itself as its only task; none in a maze."""
    if is_external(env):
        return [env]
    domain = env.partition("_")[0]
    return [] if env in maze.names() else [f"{domain}_{task}" for task in envs.DOMAINS[domain].tasks]


def sets_of(tasks: Sequence[str]) -> list[list[str]]:
    """Groups of tasks whose rewards can be computed on the same states."""
    if tasks and tasks[0].partition("_")[0] in APART:
        return [[task] for task in tasks]
    return [list(tasks)]


class Wanted(NamedTuple):
    """Which episodes to play."""

    policy: Policy
    skills: Float[np.ndarray, "skills dim"]
    episodes: int
    """Episodes per skill."""
    seed: int
    """Seed of the starts."""
    episode_length: int | None
    """Steps per episode; the environment's own by default."""
    advance: Callable[[int], None] | None
    """Is told how many steps were done."""
    vision: Vision | None = None
    """The camera, if the policy sees images."""
    position: Sequence[int] = ()
    """Which numbers of an observation say where it is, in environments from outside the package."""

    @property
    def skill(self) -> Float[np.ndarray, "n dim"]:
        """The skill of each environment; episodes of a skill are next to each other."""
        return np.repeat(self.skills, self.episodes, axis=0)

    @property
    def seeds(self) -> list[int]:
        """The same seed for every skill, so that each skill's episodes are what they would be alone."""
        return [self.seed] * len(self.skills)


def rollout(
    policy: Policy,
    env: str,
    skills: Float[np.ndarray, "skills dim"],
    episodes: int = 10,
    seed: int = STARTS,
    *,
    tasks: Sequence[str] | None = None,
    episode_length: int | None = None,
    advance: Callable[[int], None] | None = None,
    vision: Vision | None = None,
    position: Sequence[int] = (),
) -> Episodes:
    """Plays episodes of every skill in an environment (`walker`, `walker_run`, `square_a`), with the rewards of `tasks`
    (default: all).

    If a task changes the scene, each task is simulated separately, and everything but the rewards comes from the first.
    `advance` gets the number of steps that were done. With a `vision` the policy sees images; what is measured is the
    same. `position` are the numbers of an observation that say where it is, in an environment from outside the package.
    """
    wanted = Wanted(policy, skills, episodes, seed, episode_length, advance, vision, position)
    if env in maze.names():
        return maze_rollout(env, wanted)
    if is_external(env):
        return external_rollout(env, wanted)
    done = [robot_rollout(together, wanted) for together in sets_of(tasks_of(env) if tasks is None else tasks)]
    return done[0]._replace(reward={task: reward for one in done for task, reward in one.reward.items()})


def maze_rollout(env: str, wanted: Wanted) -> Episodes:
    length = wanted.episode_length
    plan = maze.Maze(env) if length is None else maze.Maze(env, episode_length=length)
    batch = MazeBatch(plan, len(wanted.skill), wanted.seeds)
    states = play(wanted.policy, batch, wanted.skill, wanted.advance)
    obs = _by_skill(np.stack(list(states), axis=1), len(wanted.skills))
    return Episodes(obs, {}, obs.astype(np.float64), None, 1.0, np.zeros(obs.shape[:2], bool))


def external_rollout(env: str, wanted: Wanted) -> Episodes:
    """Episodes in an environment from outside the package, with its own reward, at most as long as its spec says."""
    skill = wanted.skill
    batch = make_external(env, len(skill), wanted.seeds, images=wanted.vision is not None)
    seen_by = behind_camera(batch, wanted.vision)
    with contextlib.closing(seen_by):
        now = seen_by.reset()
        obs, places, rewards = [getattr(seen_by, "numbers", now)], [batch.places()], []
        over, length = np.zeros(len(skill), bool), np.zeros(len(skill), int)
        for _ in range(wanted.episode_length or seen_by.spec.episode_length):
            step = seen_by.step(np.asarray(act(wanted.policy, now, skill)))
            now = step.obs
            obs.append(np.where(over[:, None], obs[-1], in_numbers(seen_by, step).next_obs))
            # Where an episode has just ended, the next has begun elsewhere.
            places.append(np.where((over | step.truncated)[:, None], places[-1], batch.places()))
            rewards.append(np.where(over, 0.0, step.reward))
            length += ~over
            over |= step.truncated
            if wanted.advance is not None:
                wanted.advance(len(skill))
            if over.all():
                break
    count, seen = len(wanted.skills), np.stack(obs, axis=1)
    place = seen[..., list(wanted.position)].astype(np.float64) if wanted.position else np.stack(places, axis=1)
    return Episodes(
        _by_skill(seen, count),
        {env: _by_skill(np.stack(rewards, axis=1), count)},
        _by_skill(place, count),
        None,
        1.0,
        np.zeros((count, wanted.episodes), bool),
        _by_skill(length, count),
    )


def robot_rollout(tasks: Sequence[str], wanted: Wanted) -> Episodes:
    """Episodes in the scene of the first task, with the rewards of all tasks."""
    name, _, first = tasks[0].partition("_")
    watched = Watched(envs.DOMAINS[name], [task.partition("_")[2] for task in tasks])
    sims = Simulations(watched, first, len(wanted.skill), wanted.seeds, wanted.episode_length)
    seen_by = behind_camera(sims, wanted.vision)
    obs, places, speeds = [], [], []
    rewards: dict[str, list[Vector]] = {task: [] for task in tasks}
    with contextlib.closing(seen_by):
        for seen in play(wanted.policy, seen_by, wanted.skill, wanted.advance):
            if not obs:
                qpos = np.stack([sims.data(number).qpos for number in range(sims.num_envs)])
                obs.append(seen)
                places.append(place_of(name, qpos, seen))
                continue
            good = sims.divergences == 0
            obs.append(np.where(good[:, None], seen, obs[-1]))
            places.append(np.where(good[:, None], place_of(name, watched.qpos, seen), places[-1]))
            speeds.append(np.where(good, watched.joint_speed, 0.0))
            for task, reward in zip(tasks, watched.earned(), strict=True):
                rewards[task].append(np.where(good, reward, 0.0))
    count, repeat = len(wanted.skills), 1 if wanted.vision is None else wanted.vision.repeat
    timestep = sims.model.opt.timestep * repeat
    return Episodes(
        _by_skill(np.stack(obs, axis=1), count),
        {task: _by_skill(np.stack(each, axis=1), count) for task, each in rewards.items()},
        _by_skill(np.stack(places, axis=1), count),
        _by_skill(np.stack(speeds, axis=1), count),
        timestep * watched.substeps,
        _by_skill(sims.divergences > 0, count),
    )


def play(
    policy: Policy,
    environments: Environments,
    skill: Float[np.ndarray, "n z"],
    advance: Callable[[int], None] | None = None,
) -> Iterator[Float32[np.ndarray, "n o"]]:
    """Yields the states, as numbers, of one episode of every environment: the first, then what each action led to."""
    obs = environments.reset()
    yield getattr(environments, "numbers", obs)
    for _ in range(environments.spec.episode_length):
        outcome = environments.step(np.asarray(act(policy, obs, skill)))
        obs = outcome.obs
        if advance is not None:
            advance(len(obs))
        yield in_numbers(environments, outcome).next_obs


@eqx.filter_jit
def act(policy: Policy, obs: Any, skill: Any) -> Float[Array, "n a"]:
    return policy(obs, skill) if isinstance(policy, Seer) else policy(jnp.concatenate([obs, skill], axis=1))


def place_of(domain: str, qpos: Float[np.ndarray, "n q"], obs: Float[np.ndarray, "n o"]) -> Float[np.ndarray, "n axes"]:
    if domain == "walker":
        return qpos[:, 1:2].copy()  # The first joint is vertical.
    if domain == "quadruped":
        return qpos[:, :2].copy()
    return grid_of(domain).coordinates(obs).astype(np.float64)


def _by_skill(array: np.ndarray, skills: int) -> np.ndarray:
    return array.reshape(skills, len(array) // skills, *array.shape[1:])


class Seen(NamedTuple):
    """A domain's view of a batch, and its joints."""

    view: Any
    qpos: Float[np.ndarray, "n q"]
    qvel: Float[np.ndarray, "n v"]
    hinges: Int[np.ndarray, " h"]


class Watched:
    """A domain that, whenever a step's reward is asked for, computes the rewards of all `priced` tasks and looks at the
    joints. Rewards are added up until they are taken."""

    def __init__(self, domain: Domain, priced: Sequence[str]):
        self.domain, self.priced = domain, priced
        self.tasks, self.primal, self.camera = domain.tasks, domain.primal, domain.camera
        self.obs_dim, self.parts, self.action_dim = domain.obs_dim, domain.parts, domain.action_dim
        self.substeps, self.episode_length = domain.substeps, domain.episode_length
        self.rewards: list[Vector] = []
        self.qpos: np.ndarray = np.zeros((0, 0))
        self.joint_speed: Vector = np.zeros(0)

    def model(self) -> "mujoco.MjModel":
        return self.domain.model()

    def view(self, batch: "Batch") -> Seen:
        import mujoco

        model = batch.model
        # The walker's torso hangs on a hinge of its own, which is not a joint of the robot.
        hinges = [
            model.jnt_dofadr[joint]
            for joint in range(model.njnt)
            if model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_HINGE and not model.joint(joint).name.startswith("root")
        ]
        return Seen(self.domain.view(batch), batch.bind("qpos"), batch.bind("qvel"), np.array(hinges))

    def observe(self, view: Seen) -> Float[np.ndarray, "n o"]:
        return self.domain.observe(view.view)

    def reward(self, task: str, view: Seen) -> Vector:
        now = [self.domain.reward(one, view.view) for one in self.priced]
        earned = self.rewards or [np.zeros(len(now[0]))] * len(now)
        self.rewards = [one + other for one, other in zip(earned, now, strict=True)]
        self.qpos = view.qpos.copy()
        self.joint_speed = np.abs(view.qvel[:, view.hinges]).mean(1)
        return now[self.priced.index(task)]

    def earned(self) -> list[Vector]:
        """The rewards of each task since they were taken last."""
        rewards, self.rewards = self.rewards, []
        return rewards

    def start(
        self, task: str, batch: "Batch", slots: Int[np.ndarray, " n"], randoms: Sequence[np.random.Generator]
    ) -> None:
        self.domain.start(task, batch, slots, randoms)


# --- Numbers ----------------------------------------------------------------------------------------------------------


def zero_shot(done: Episodes, names: Sequence[Any]) -> list[Row]:
    """One row per skill and task: mean undiscounted return, and its standard error over episodes."""
    rows = []
    for number, name in enumerate(names):
        for task, reward in done.reward.items():
            returns = reward[number].sum(-1)
            error = returns.std(ddof=1) / np.sqrt(len(returns)) if len(returns) > 1 else float("nan")
            rows.append({"skill": name, "task": task, "return": float(returns.mean()), "stderr": float(error)})
    return rows


def per_skill(done: Episodes, env: str, names: Sequence[Any], square: float = SQUARE) -> list[Row]:
    """One row per skill: cells or squares visited, and means over its episodes of how far and how much it moves."""
    gridded = not is_external(env)
    placed = not gridded and done.place.shape[-1] > 0
    cells = cells_of(env, done.obs) if gridded else None
    net = done.place[:, :, -1] - done.place[:, :, 0]
    path = np.linalg.norm(np.diff(done.place, axis=2), axis=-1).sum(-1)
    seconds = (done.obs.shape[2] - 1) * done.step_seconds
    rows = []
    for number, name in enumerate(names):
        row: Row = {"skill": name}
        if cells is not None:
            row["cells"] = len(np.unique(cells[number]))
        if placed:
            row["squares"] = squares(done.place[number], square)
        if done.place.shape[-1]:
            row["distance"] = float(np.linalg.norm(net[number], axis=-1).mean())
        if done.place.shape[-1] and gridded:
            row["speed"] = float(path[number].mean() / seconds)
        if done.length is not None:
            row["length"] = float(done.length[number].mean())
        if net.shape[-1] == 1:
            row["velocity"] = float(net[number].mean() / seconds)
        if done.joint_speed is not None:
            late = done.joint_speed[number][:, done.joint_speed.shape[-1] // 2 :]
            row |= {"joint_speed": float(done.joint_speed[number].mean()), "still": float((late < STILL).mean())}
        rows.append(row)
    return rows


def squares(place: Float[np.ndarray, "*batch axes"], side: float) -> int:
    """How many squares of a plane, or pieces of a line, were visited."""
    return len(np.unique(np.floor(place.reshape(-1, place.shape[-1]) / side), axis=0))


def summary(done: Episodes, env: str, square: float = SQUARE) -> Row:
    """One row for all skills together. What needs two skills, or two episodes of each, is NaN without them."""
    skills, episodes, states = done.obs.shape[:3]
    each = per_skill(done, env, range(skills), square)
    row: Row = {"skills": skills, "episodes": episodes}
    if "squares" in each[0]:
        row["squares"] = squares(done.place, square)
        row["squares_per_skill"] = float(np.mean([one["squares"] for one in each]))
    if not is_external(env):  # Nobody knows which cells of other numbers would be fair to count elsewhere.
        row["cells"] = len(np.unique(cells_of(env, done.obs)))
        reachable = grid_of(env).reachable
        if reachable is not None:
            row["coverage"] = row["cells"] / reachable
        row["cells_per_skill"] = float(np.mean([one["cells"] for one in each]))
        row |= information(env, done.obs[:, :, 1:])
    chosen = np.linspace(1, states - 1, min(STATES, states - 1)).round().astype(int)
    row |= accuracies(standardised(done.obs[:, :, chosen].astype(np.float64)))
    moved = [name for name in each[0] if name not in ("skill", "cells", "squares", "velocity")]
    row |= {name: float(np.mean([one[name] for one in each])) for name in moved}
    return row if done.joint_speed is None else row | {"diverged": int(done.diverged.sum())}


def information(env: str, obs: Float[np.ndarray, "skills episodes steps obs"]) -> dict[str, float]:
    """Plug-in H(S), I(S; Z), and I(S; Z) when the episodes of each start are assigned to skills at random."""
    skills, episodes, steps, _ = obs.shape
    flat = obs.reshape(skills * episodes * steps, -1)
    # A maze's own grid is too fine for such an estimate.
    states, width = (flat, BIN) if env in maze.names() else (grid_of(env).cells(flat)[:, None].astype(np.float64), 1.0)
    skill = np.broadcast_to(np.arange(skills)[:, None], (skills, episodes))
    found = plug_in(states, np.repeat(skill.ravel(), steps), width)
    if skills == 1:
        return {"entropy": found.entropy, "mutual_information": float("nan"), "chance_information": float("nan")}
    random = np.random.default_rng(0)
    dealt = [plug_in(states, np.repeat(random.permuted(skill, axis=0).ravel(), steps), width) for _ in range(SHUFFLES)]
    return {
        "entropy": found.entropy,
        "mutual_information": found.mutual_information,
        "chance_information": float(np.mean([one.mutual_information for one in dealt])),
    }


def standardised(obs: Float[np.ndarray, "*batch obs"]) -> Float[np.ndarray, "*batch obs"]:
    """Observations shifted to mean 0 and, where they vary, scaled to variance 1."""
    axes = tuple(range(obs.ndim - 1))
    deviation = obs.std(axes)
    return (obs - obs.mean(axes)) / np.where(deviation > 0, deviation, 1.0)


def accuracies(points: Float[np.ndarray, "skills episodes states obs"]) -> dict[str, float]:
    """How often a state's skill is recognised from episodes with other starts.

    The episodes of all skills with the same start are left out: they are alike, and the state's own skill has only the
    state's own episode among them.
    """
    skills, episodes, states, _ = points.shape
    if skills == 1 or episodes == 1:
        return {"knn_accuracy": float("nan"), "centroid_accuracy": float("nan")}
    skill, start, _ = np.indices((skills, episodes, states)).reshape(3, -1)
    flat = points.reshape(len(skill), -1)
    return {"knn_accuracy": knn_accuracy(flat, skill, start), "centroid_accuracy": centroid_accuracy(points)}


def centroid_accuracy(points: Float[np.ndarray, "skills episodes states obs"]) -> float:
    """How often the nearest of the skills' means over other starts is that of a state's own skill; ties share."""
    hits = []
    for start in range(points.shape[1]):
        centroids = np.delete(points, start, axis=1).mean((1, 2))
        gap = np.square(points[:, start, :, None] - centroids).sum(-1)  # [skills, states, skills]
        nearest = gap == gap.min(-1, keepdims=True)
        hits.append((np.diagonal(nearest, axis1=0, axis2=2) / nearest.sum(-1).T).mean())
    return float(np.mean(hits))


def cells_of(env: str, obs: Float[np.ndarray, "*batch obs"]) -> Int[np.ndarray, "*batch"]:
    return grid_of(env).cells(obs.reshape(-1, obs.shape[-1])).reshape(obs.shape[:-1])
