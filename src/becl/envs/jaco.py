"""Jaco: a Kinova arm with a three-fingered hand over a table, reaching for a brick at one of four places (URLB)."""

import copy
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from becl.envs.domain import Vector, places, sensor_columns
from becl.envs.tolerance import tolerance

if TYPE_CHECKING:
    import mujoco
    from mujoco.batch import Batch

Slots = Int[np.ndarray, " n"]

BRICK_PLACES = {  # x, y of the brick, m.
    "reach_top_left": (-0.09, 0.09),
    "reach_top_right": (0.09, 0.09),
    "reach_bottom_left": (-0.09, -0.09),
    "reach_bottom_right": (0.09, -0.09),
}
BRICK_DROP = 0.001  # Height it is dropped from, m.
REACH = 0.05  # Distance from the fingers' pinch point to the brick that earns the full reward, m.
PINCH_LOW, PINCH_HIGH = (-0.1, -0.1, 0.2), (0.1, 0.1, 0.4)  # Box the pinch point starts in, m.
HAND_DOWN = (0.0, 1.0, 1.0, 0.0)  # Orientation of the hand at the start: a quaternion, w first, not normalised.

# Inverse kinematics: Gauss-Newton with damping far from the goal, as in dm_control.
IK_STEPS = 100
IK_TOLERANCE = 1e-14  # Of metres plus weighted radians.
IK_TURN_WEIGHT = 2.0
IK_DAMPING, IK_DAMPED_ABOVE = 0.03, 0.1
IK_LARGEST_UPDATE = 2.0  # Norm over joints, rad.
IK_STUCK = 20.0  # Error over update.
IK_ATTEMPTS = 10  # From other joint angles, before another goal is drawn.
GOAL_ATTEMPTS = 100

SETTLED_SPEED, SETTLED_ACCELERATION = 1e-3, 1e-2  # Of the brick's coordinates; m, rad and s.
SETTLE_STEPS = 1000  # At most, of 2 ms.

ARM = "jaco_arm/"
HAND = "jaco_arm/jaco_hand/"
BRICK = "duplo2x4/"


class JacoView(NamedTuple):
    """Live arrays of all simulations, and where to find parts of them."""

    qpos: Float[np.ndarray, "n 16"]
    qvel: Float[np.ndarray, "n 15"]
    torques: Float[np.ndarray, "n 18"]  # Three axes at each of the arm's joints.
    pinch_position: Float[np.ndarray, "n 3"]
    pinch_rotation: Float[np.ndarray, "n 9"]
    sensors: Float[np.ndarray, "n s"]
    brick_position: Float[np.ndarray, "n 3"]
    joint_axes: Float[np.ndarray, "6 3"]
    brick: Int[np.ndarray, " 13"]


class Jaco:
    tasks: Mapping[str, str] = {
        name: f"touch the brick {name.removeprefix('reach_').replace('_', ' ')}" for name in BRICK_PLACES
    }
    primal = "reach_top_left"
    obs_dim = 55
    parts: Mapping[str, slice] = places(
        arm_position=12, arm_torque=6, arm_velocity=6, hand_position=3, hand_velocity=3, pinch_position=3,
        pinch_rotation=9, brick_angular_velocity=3, brick_velocity=3, brick_orientation=4, brick_position=3,
    )  # fmt: skip
    action_dim = 9  # Speeds of six joints and three fingers.
    substeps = 20  # of 2 ms.
    episode_length = 250  # Control steps of 40 ms. The authors' dm_control stopped one earlier: episode_length=249.
    camera = "front_close"

    def model(self) -> "mujoco.MjModel":
        """dm_control builds it from its parts: arena, arm, hand, brick."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # It looks for a display on import.
            from dm_control import manipulation
        env: Any = manipulation.load("reach_duplo_features")
        env.reset()  # Only now the brick's studs get their size.
        return copy.copy(env.physics.model.ptr)

    def view(self, batch: "Batch") -> JacoView:
        model = batch.model
        sensors = batch.bind("sensordata")
        torques = sensor_columns(model, [model.sensor(f"{ARM}joint_{i}_torque").id for i in range(1, 7)])
        pinch = model.site(f"{HAND}pinchsite").id
        readings = ("angular_velocity", "linear_velocity", "orientation", "position")
        return JacoView(
            qpos=batch.bind("qpos"),
            qvel=batch.bind("qvel"),
            torques=sensors[:, torques[0] : torques[-1] + 1],
            pinch_position=batch.bind("site_xpos")[:, pinch],
            pinch_rotation=batch.bind("site_xmat")[:, pinch],
            sensors=sensors,
            brick_position=batch.bind("xpos")[:, model.body(BRICK).id],
            joint_axes=model.jnt_axis[:6],
            brick=sensor_columns(model, [model.sensor(BRICK + name).id for name in readings]),
        )

    def observe(self, view: JacoView) -> Float[np.ndarray, "n o"]:
        count = len(view.qpos)
        angles = view.qpos[:, :6]
        torques = np.einsum("nij,ij->ni", view.torques.reshape(count, 6, 3), view.joint_axes)
        parts = (
            np.stack([np.sin(angles), np.cos(angles)], axis=2).reshape(count, 12),
            np.sign(torques) * np.log1p(np.abs(torques)),
            view.qvel[:, :6],
            view.qpos[:, 6:9],
            view.qvel[:, 6:9],
            view.pinch_position,
            view.pinch_rotation,
            view.sensors[:, view.brick],
        )
        return np.concatenate(parts, axis=1, dtype=np.float32, casting="same_kind")

    def reward(self, task: str, view: JacoView) -> Vector:
        distance = np.linalg.norm(view.pinch_position - view.brick_position, axis=1)
        return tolerance(distance, 0.0, REACH, margin=REACH)

    def start(self, task: str, batch: "Batch", slots: Slots, randoms: Sequence[np.random.Generator]) -> None:
        """Fingers randomly closed, hand pointing down at a random place, brick randomly turned and at rest."""
        model = batch.model
        qpos = batch.bind("qpos")
        low, high = model.jnt_range[6:9].T
        for slot, random in zip(slots, randoms, strict=True):
            qpos[slot, 6:9] = low + (high - low) * random.uniform()
        touches = Touches(model)
        place_hand(batch, slots, randoms, touches)
        place_brick(batch, slots, randoms, touches, BRICK_PLACES[task])
        settle_brick(batch, slots)


def place_hand(batch: "Batch", slots: Slots, randoms: Sequence[np.random.Generator], touches: "Touches") -> None:
    """Joint angles that hold the hand pointing down at a random place, touching neither table nor arm."""
    qpos = batch.bind("qpos")
    home = qpos[slots, :6].copy()
    todo = np.arange(len(slots))
    for _ in range(GOAL_ATTEMPTS):
        drawing = [randoms[i] for i in todo.tolist()]
        goals = np.array([random.uniform(PINCH_LOW, PINCH_HIGH) for random in drawing])
        placed = reach(batch, slots[todo], goals, drawing)
        placed &= [not (ok and touches.robot(qpos[slots[i]])) for i, ok in zip(todo, placed, strict=True)]
        todo = todo[~placed]
        if not todo.size:
            return
        qpos[slots[todo], :6] = home[todo]
    raise RuntimeError(f"no free arm pose found in {GOAL_ATTEMPTS} attempts")


def reach(
    batch: "Batch", slots: Slots, goals: Float[np.ndarray, "n 3"], randoms: Sequence[np.random.Generator]
) -> Bool[np.ndarray, " n"]:
    """Inverse kinematics from the current angles, then from random ones; results are within the joints' ranges."""
    model = batch.model
    qpos = batch.bind("qpos")
    low, high = np.where(model.jnt_limited[:6, None], model.jnt_range[:6], (0.0, 2 * np.pi)).T
    reached = np.zeros(len(slots), bool)
    for _ in range(IK_ATTEMPTS):
        todo = np.flatnonzero(~reached)
        if not todo.size:
            break
        solved = solve(batch, slots[todo], goals[todo])
        angles = qpos[slots[todo], :6]
        while (over := angles >= high).any():
            angles -= 2 * np.pi * over
        while (under := angles < low).any():
            angles += 2 * np.pi * under
        qpos[slots[todo], :6] = np.where(solved[:, None], angles, qpos[slots[todo], :6])
        reached[todo] = solved & (angles <= high).all(1)
        for i in np.flatnonzero(~reached).tolist():
            qpos[slots[i], :6] = randoms[i].uniform(low, high)
    return reached


def solve(batch: "Batch", slots: Slots, goals: Float[np.ndarray, "n 3"]) -> Bool[np.ndarray, " n"]:
    """Moves the arm's joints until the pinch point is at its goal with the hand down; returns where that worked."""
    import mujoco
    from scipy.spatial.transform import Rotation

    model = batch.model
    qpos = batch.bind("qpos")
    site = model.site(f"{HAND}pinchsite").id
    positions, rotations = batch.bind("site_xpos")[:, site], batch.bind("site_xmat")[:, site]
    down = Rotation.from_quat(HAND_DOWN, scalar_first=True)
    solved = np.zeros(len(slots), bool)
    active = np.arange(len(slots))
    for _ in range(IK_STEPS):
        ids = slots[active]
        batch.forward(ids, stage=int(mujoco.mjtStage.mjSTAGE_POS))
        turn = down * Rotation.from_matrix(rotations[ids].reshape(-1, 3, 3)).inv()
        error = np.concatenate([goals[active] - positions[ids], turn.as_rotvec()], axis=1)
        size = np.linalg.norm(error[:, :3], axis=1) + IK_TURN_WEIGHT * np.linalg.norm(error[:, 3:], axis=1)
        done = size < IK_TOLERANCE
        solved[active[done]] = True
        active, ids, error, size = active[~done], ids[~done], error[~done], size[~done]
        if not active.size:
            break
        jacobian = np.concatenate(batch.jac(model.site_bodyid[site], positions[ids], ids), axis=1)[:, :, :6]
        square = np.einsum("nei,nej->nij", jacobian, jacobian)
        square += np.where(size > IK_DAMPED_ABOVE, IK_DAMPING, 0.0)[:, None, None] * np.eye(6)
        inverse = np.linalg.pinv(square, rcond=np.finfo(float).eps, hermitian=True)
        update = np.einsum("nij,nej,ne->ni", inverse, jacobian, error)
        length = np.linalg.norm(update, axis=1)
        going = size <= IK_STUCK * length
        active, ids, update, length = active[going], ids[going], update[going], length[going]
        qpos[ids, :6] += update * np.minimum(1.0, IK_LARGEST_UPDATE / length)[:, None]
    return solved


def place_brick(
    batch: "Batch",
    slots: Slots,
    randoms: Sequence[np.random.Generator],
    touches: "Touches",
    place: tuple[float, float],
) -> None:
    """The brick just above the table, turned about the vertical, touching nothing."""
    qpos = batch.bind("qpos")
    for slot, random in zip(slots, randoms, strict=True):
        for _ in range(GOAL_ATTEMPTS):
            half = random.uniform(-np.pi, np.pi) / 2
            qpos[slot, 9:16] = (*place, BRICK_DROP, np.cos(half), 0.0, 0.0, np.sin(half))
            if not touches.brick(qpos[slot]):
                break
        else:
            raise RuntimeError(f"no free place for the brick found in {GOAL_ATTEMPTS} attempts")


def settle_brick(batch: "Batch", slots: Slots) -> None:
    """Lets the brick come to rest while everything else is held in place."""
    qpos, qvel, qacc = batch.bind("qpos"), batch.bind("qvel"), batch.bind("qacc")
    held = qpos[slots, :9].copy()
    active = np.arange(len(slots))
    for _ in range(SETTLE_STEPS):
        ids = slots[active]
        before = batch.state[ids].copy()
        moving = np.abs(qvel[ids, 9:]).max(1) >= SETTLED_SPEED
        batch.step(ids)
        qpos[ids, :9], qvel[ids, :9] = held[active], 0.0
        moving |= np.abs(qacc[ids, 9:]).max(1) >= SETTLED_ACCELERATION  # Of the state before the step,
        batch.state[ids[~moving]] = before[~moving]  # which was the one at rest.
        active = active[moving]
        if not active.size:
            break
    batch.bind("time")[slots] = 0.0


class Touches:
    """Which parts touch in a configuration."""

    def __init__(self, model: "mujoco.MjModel"):
        import mujoco

        self.model, self.data = model, mujoco.MjData(model)
        names = [model.geom(i).name for i in range(model.ngeom)]
        self.is_hand = np.array([name.startswith(HAND) for name in names])
        self.is_arm = np.array([name.startswith(ARM) for name in names]) & ~self.is_hand
        self.is_brick = np.array([name.startswith(BRICK) for name in names])

    def pairs(self, qpos: Float[np.ndarray, " q"]) -> Int[np.ndarray, "k 2"]:
        import mujoco

        self.data.qpos[:] = qpos
        mujoco.mj_kinematics(self.model, self.data)
        mujoco.mj_comPos(self.model, self.data)
        mujoco.mj_collision(self.model, self.data)
        contact = self.data.contact
        return contact.geom[contact.dist <= 0]

    def robot(self, qpos: Float[np.ndarray, " q"]) -> bool:
        """Contacts of the arm with itself or the hand, or of either with anything but the brick. Fingers may touch."""
        geoms = self.pairs(qpos)
        hands, bricks = self.is_hand[geoms], self.is_brick[geoms]
        return bool((~hands.all(1) & ~bricks.any(1)).any())

    def brick(self, qpos: Float[np.ndarray, " q"]) -> bool:
        return bool(self.is_brick[self.pairs(qpos)].any())
