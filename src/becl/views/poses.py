"""What the skills of a run look like: the poses of one episode of each, and where every body is then.

Each skill is played once from the same start with the policy's mean action, and the joints' positions are kept.
Everything else that is drawn follows from them by MuJoCo's kinematics. In a maze a pose is a position; where there is
neither, environments draw themselves.
"""

import contextlib
import copy
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float, Float32

from becl import envs
from becl.envs import maze
from becl.envs.external import GymBatch, is_external, maker_of
from becl.envs.maze_batch import MazeBatch
from becl.envs.simulations import Simulations
from becl.errors import UserError
from becl.experiments.environments import check_here
from becl.experiments.evaluation import choose_seed, choose_skills
from becl.experiments.finetuning import Finetuning
from becl.experiments.lanes import Lane
from becl.experiments.policies import load_policies, load_policy
from becl.experiments.pretraining import Pretraining, load_pretraining
from becl.experiments.snapshots import load_snapshot, snapshot_path
from becl.learning.seeing import Vision, behind_camera
from becl.measure.skills import STARTS, Policy, Watched, play
from becl.runs.folder import choose_snapshot, read_config
from becl.runs.log import lane_name
from becl.views.recorded import PackedPicture, Recorded, draws_itself, pose_parts

if TYPE_CHECKING:
    import mujoco

FREE = -1  # The number of the camera that no model needs to have.


class Look(NamedTuple):
    """Which skills of a run to look at."""

    pretraining: Pretraining
    folder: Path
    seed: int
    snapshot: int
    vectors: Float32[np.ndarray, "skills dim"]
    names: list[int]

    @property
    def method(self) -> str:
        return self.pretraining.method

    @property
    def env(self) -> str:
        return self.pretraining.env

    @property
    def path(self) -> Path:
        return snapshot_path(self.folder, self.seed, self.snapshot)

    @property
    def title(self) -> str:
        return f"{self.method} on {self.env}, seed {self.seed}, {self.snapshot:,} steps"

    @property
    def caption(self) -> str:
        """The caption of a picture: which run and seed it shows."""
        return f"{self.folder.resolve().name} · seed {self.seed} · {self.snapshot:,} steps"


class Motion(NamedTuple):
    """One episode of every skill, at evenly spaced moments."""

    names: list[int]
    poses: Float[np.ndarray, "skills frames pose"]
    """Robots: positions of all joints, then of bodies moved from outside. Mazes: x, y. Else what is observed."""
    frame_seconds: float
    """Between two frames; of the simulation, 1 a step where time is not known."""
    model: "mujoco.MjModel | None" = None
    """None where MuJoCo does not draw."""
    camera: str | int = FREE
    plan: maze.Geometry | None = None
    """The maze's floor plan."""
    pictures: list[list[PackedPicture]] | None = None
    """Of each skill, where the environment draws itself."""
    timed: bool = True
    """Whether time is known. In a maze, only steps are."""

    @property
    def frames(self) -> int:
        return self.poses.shape[1]


class Bodies(NamedTuple):
    """Where all bodies are."""

    position: Float[np.ndarray, "skills frames bodies 3"]
    turn: Float[np.ndarray, "skills frames bodies 4"]
    """Quaternions, w first."""


# --- What to look at --------------------------------------------------------------------------------------------------


class Tuned(NamedTuple):
    """A finetuned policy, to be looked at on its task."""

    finetuning: Finetuning
    folder: Path
    lane: Lane

    @property
    def method(self) -> str:
        return self.finetuning.method

    @property
    def env(self) -> str:
        return self.finetuning.env

    @property
    def title(self) -> str:
        return (
            f"{self.method} on {self.lane.task}, seed {self.lane.seed}, finetuned for {self.finetuning.steps:,} steps"
        )

    @property
    def caption(self) -> str:
        return f"{self.folder.resolve().name} · seed {self.lane.seed} · finetuned for {self.finetuning.steps:,} steps"

    @property
    def name(self) -> str:
        """The name of files."""
        return lane_name(self.lane.label)

    @property
    def label(self) -> str:
        return self.lane.task if self.lane.skill is None else f"{self.lane.task}\nskill {self.lane.skill}"


def look_at(run: Path, seed: int | None = None, snapshot: int | None = None, skills: Sequence[int] = ()) -> Look:
    """Raises on runs, seeds, snapshots and skills that are not there."""
    pretraining = load_pretraining(run)
    if not pretraining.run.objective.skills.dim:
        raise UserError(f"{run}: {pretraining.method} has no skills to look at")
    seed = choose_seed(run, pretraining.seeds, seed)
    vectors, names = choose_skills(pretraining.method, pretraining.run.objective.skills, skills)
    snapshot = choose_snapshot(run, [seed], snapshot)
    check_here(pretraining.env, pretraining.run)
    return Look(pretraining, run, seed, snapshot, vectors, names)


def looks_at(
    run: Path, seed: int | None = None, snapshot: int | None = None, skills: Sequence[int] = ()
) -> list[Look] | list[Tuned]:
    """The skills of a pretrained run, or the policies of a finetuned one."""
    if read_config(run).get("command") == "finetune":
        return tuned_at(run, seed, snapshot, skills)
    return [look_at(run, seed, snapshot, skills)]


def tuned_at(
    run: Path, seed: int | None = None, snapshot: int | None = None, skills: Sequence[int] = ()
) -> list[Tuned]:
    """The policies of a seed, task by task; refuses what is not there."""
    finetuning = load_policies(run, snapshot)
    seed = choose_seed(run, finetuning.seeds, seed)
    if skills and finetuning.skill != "each":
        raise UserError(f"--skills {skills[0]}: each policy of {run} has learned with a skill of its own; leave it out")
    wanted = [None]
    if finetuning.skill == "each":
        _, wanted = choose_skills(finetuning.method, finetuning.run.objective.skills, skills)
    return [Tuned(finetuning, run, Lane(task, seed, skill)) for task in finetuning.tasks for skill in wanted]


def policy_of(look: Look) -> Policy:
    return load_snapshot(look.pretraining, look.path)[0].actor


def motion_of(look: Look | Tuned, frames: int, steps: int | None = None) -> Motion:
    """The episode of every skill, or its first `steps`, in so many frames at most."""
    if isinstance(look, Tuned):
        policy, skill = load_policy(look.finetuning, look.folder, look.lane)
        vision, steps = look.finetuning.run.vision, steps or look.finetuning.episode_length
        return thinned(record(policy, look.lane.task, skill[None], [0], steps=steps, vision=vision), frames)
    vision, steps = look.pretraining.run.vision, steps or look.pretraining.episode_length
    return thinned(record(policy_of(look), look.env, look.vectors, look.names, steps=steps, vision=vision), frames)


# --- Episodes ---------------------------------------------------------------------------------------------------------


class Take(NamedTuple):
    """What is to be recorded: an episode of each skill, or its first steps."""

    policy: Policy
    skills: Float[np.ndarray, "skills dim"]
    names: list[int]
    seed: int
    """Seed of the start."""
    steps: int | None
    vision: Vision | None = None
    """What the policy sees, where that is images."""

    @property
    def seeds(self) -> list[int]:
        return [self.seed] * len(self.skills)


def record(
    policy: Policy,
    env: str,
    skills: Float[np.ndarray, "skills dim"],
    names: Sequence[int],
    seed: int = STARTS,
    steps: int | None = None,
    vision: Vision | None = None,
) -> Motion:
    """A frame a step. The start is that of the first episode of `becl evaluate`."""
    take = Take(policy, skills, list(names), seed, steps, vision)
    if env in maze.names():
        return record_maze(env, take)
    return record_external(env, take) if is_external(env) else record_robot(env, take)


def record_maze(env: str, take: Take) -> Motion:
    plan = maze.Maze(env) if take.steps is None else maze.Maze(env, episode_length=take.steps)
    states = play(take.policy, MazeBatch(plan, len(take.skills), take.seeds), take.skills)
    return Motion(take.names, np.stack(list(states), axis=1).astype(float), 1.0, plan=maze.geometry(env), timed=False)


def record_robot(env: str, take: Take) -> Motion:
    name, _, task = env.partition("_")
    domain = envs.DOMAINS[name]
    task = task or domain.primal
    watched = Watched(domain, [task])
    poses: list[np.ndarray] = []
    sims = Simulations(watched, task, len(take.skills), take.seeds, take.steps)
    seen_by = behind_camera(sims, take.vision)
    with contextlib.closing(seen_by):
        for _ in play(take.policy, seen_by, take.skills):
            if not poses:
                poses.append(np.stack([sims.data(number).qpos for number in range(sims.num_envs)]))
                continue
            # Where MuJoCo gave up, the last good pose is held.
            good = sims.divergences == 0
            poses.append(np.where(good[:, None], watched.qpos, poses[-1]))
        model, seconds = copy.copy(sims.model), sims.model.opt.timestep * domain.substeps
    seconds *= 1 if take.vision is None else take.vision.repeat
    return Motion(take.names, np.stack(poses, axis=1), seconds, model, domain.camera)


def record_external(env: str, take: Take) -> Motion:
    """Anyone's environment: its poses, or its pictures. After an episode's end the last one is held."""
    drawn, make = draws_itself(env), maker_of(env)
    recorded: list[Recorded] = []

    def watched() -> Recorded:
        recorded.append(Recorded(make(render_mode="rgb_array") if drawn else make(), drawn))
        return recorded[-1]

    batch = GymBatch(watched, len(take.skills), take.seeds, images=take.vision is not None)
    seen_by = behind_camera(batch, take.vision)
    with contextlib.closing(seen_by):
        seen_by.spec = seen_by.spec._replace(episode_length=take.steps or seen_by.spec.episode_length)
        for _ in play(take.policy, seen_by, take.skills):
            if all(one.over for one in recorded if one.poses):
                break
    whole = [one for one in recorded if one.poses]  # One more was made to ask for its length.
    longest = max(len(one.poses) for one in whole)
    poses = np.stack([held(one.poses, longest) for one in whole])
    seconds, model = whole[0].seconds, whole[0].model
    if model is None:
        pictures = [held(one.pictures, longest) for one in whole]
        return Motion(take.names, poses, seconds or 1.0, pictures=pictures, timed=seconds is not None)
    return Motion(take.names, poses, seconds or 1.0, model, tracking_camera(model))


def held(moments: list[Any], count: int) -> list[Any]:
    """So many of them: the last stays."""
    return moments + [moments[-1]] * (count - len(moments))


def tracking_camera(model: "mujoco.MjModel") -> str | int:
    """A camera that follows the robot, or the free one."""
    import mujoco

    modes = [int(mujoco.mjtCamLight.mjCAMLIGHT_TRACKCOM), int(mujoco.mjtCamLight.mjCAMLIGHT_TRACK)]
    return next(iter(np.flatnonzero(np.isin(model.cam_mode, modes)).tolist()), FREE)


def thinned(motion: Motion, frames: int) -> Motion:
    """At most so many frames, evenly spaced, first and last included."""
    last = motion.frames - 1
    chosen = np.linspace(0, last, min(frames, last + 1)).round().astype(int)
    seconds = motion.frame_seconds * last / max(len(chosen) - 1, 1)
    pictures = motion.pictures and [[each[i] for i in chosen] for each in motion.pictures]
    return motion._replace(poses=motion.poses[:, chosen], frame_seconds=seconds, pictures=pictures)


# --- Kinematics -------------------------------------------------------------------------------------------------------


def take_pose(model: "mujoco.MjModel", data: "mujoco.MjData", pose: Float[np.ndarray, " pose"]) -> None:
    """Moves bodies, geoms, cameras and lights to where a pose puts them."""
    import mujoco

    mujoco.mj_setState(model, data, pose, pose_parts())
    mujoco.mj_kinematics(model, data)
    mujoco.mj_comPos(model, data)
    mujoco.mj_camlight(model, data)


def bodies_of(motion: Motion) -> Bodies:
    """Where the bodies are in all frames."""
    import mujoco

    model = motion.model
    assert model is not None
    data = mujoco.MjData(model)
    position = np.zeros((*motion.poses.shape[:2], model.nbody, 3))
    turn = np.zeros((*motion.poses.shape[:2], model.nbody, 4))
    for place in np.ndindex(*motion.poses.shape[:2]):
        take_pose(model, data, motion.poses[place])
        position[place], turn[place] = data.xpos, data.xquat
    return Bodies(position, turn)
