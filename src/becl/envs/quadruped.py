"""Quadruped: the four-legged robot of dm_control's suite, with URLB's four tasks."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from becl.envs.domain import Vector, places, sensor_columns, suite_file, without_islands
from becl.envs.tolerance import tolerance

if TYPE_CHECKING:
    import mujoco
    from mujoco.batch import Batch

WALK_SPEED = 0.5  # Of the torso along its own x-axis, m/s.
RUN_SPEED = 5.0  # m/s.
JUMP_HEIGHT = 1.0  # Of the centre of mass, m.
HEIGHTS = np.add.accumulate([0.0, *[0.01] * 500])  # Tried for the start in this order until nothing touches, m.
FLOOR = 100.0  # Half the side of the visible floor, m; for contacts the floor is infinite.
UNUSED_GEOMS = ("wall_px", "wall_py", "wall_nx", "wall_ny", "terrain")


class QuadrupedView(NamedTuple):
    """Live arrays of all simulations, and where to find parts of them."""

    qpos: Float[np.ndarray, "n q"]
    qvel: Float[np.ndarray, "n v"]
    act: Float[np.ndarray, "n a"]
    sensors: Float[np.ndarray, "n s"]
    upright: Vector
    torso_speed: Vector
    centre_height: Vector
    hinge_qpos: Int[np.ndarray, " h"]
    hinge_qvel: Int[np.ndarray, " h"]
    velocimeter: Int[np.ndarray, " 3"]
    imu: Int[np.ndarray, " 6"]
    force_torque: Int[np.ndarray, " 24"]


class Quadruped:
    tasks: Mapping[str, str] = {
        "stand": "keep the torso upright",
        "walk": "go forward at 0.5 m/s",
        "run": "go forward at 5 m/s",
        "jump": "lift the centre of mass to 1 m",
    }
    primal = "walk"
    obs_dim = 78
    parts: Mapping[str, slice] = places(
        joint_position=16, joint_velocity=16, activation=12, velocity=3, upright=1, imu=6, force_torque=24
    )
    action_dim = 12  # Yaw, lift and extension of front left, front right, back right, back left leg.
    substeps = 4  # of 5 ms.
    episode_length = 1000  # Control steps of 20 ms.
    camera = "y"

    def model(self) -> "mujoco.MjModel":
        """The suite's model without ball, target, terrain, walls and range finders."""
        import mujoco

        spec = mujoco.MjSpec.from_file(str(suite_file("quadruped.xml")))
        finders = [s for s in spec.sensors if s.type == mujoco.mjtSensor.mjSENS_RANGEFINDER]
        unused = [spec.body("ball"), spec.site("target"), *(spec.geom(name) for name in UNUSED_GEOMS), *finders]
        for element in unused:
            spec.delete(element)
        spec.geom("floor").size = [FLOOR, FLOOR, 0.5]
        return without_islands(spec.compile())

    def view(self, batch: "Batch") -> QuadrupedView:
        import mujoco

        model = batch.model
        torso = model.body("torso").id
        hinges = np.flatnonzero(model.jnt_type == mujoco.mjtJoint.mjJNT_HINGE)
        sensors = batch.bind("sensordata")

        def columns(*kinds: mujoco.mjtSensor) -> np.ndarray:
            return sensor_columns(model, np.flatnonzero(np.isin(model.sensor_type, kinds)).tolist())

        velocimeter = columns(mujoco.mjtSensor.mjSENS_VELOCIMETER)
        return QuadrupedView(
            qpos=batch.bind("qpos"),
            qvel=batch.bind("qvel"),
            act=batch.bind("act"),
            sensors=sensors,
            upright=batch.bind("xmat")[:, torso, 8],
            torso_speed=sensors[:, velocimeter[0]],
            centre_height=sensors[:, model.sensor("center_of_mass").adr[0] + 2],
            hinge_qpos=model.jnt_qposadr[hinges],
            hinge_qvel=model.jnt_dofadr[hinges],
            velocimeter=velocimeter,
            imu=columns(mujoco.mjtSensor.mjSENS_ACCELEROMETER, mujoco.mjtSensor.mjSENS_GYRO),
            force_torque=columns(mujoco.mjtSensor.mjSENS_FORCE, mujoco.mjtSensor.mjSENS_TORQUE),
        )

    def observe(self, view: QuadrupedView) -> Float[np.ndarray, "n o"]:
        parts = (
            view.qpos[:, view.hinge_qpos],
            view.qvel[:, view.hinge_qvel],
            view.act,
            view.sensors[:, view.velocimeter],
            view.upright[:, None],
            view.sensors[:, view.imu],
            np.arcsinh(view.sensors[:, view.force_torque]),
        )
        return np.concatenate(parts, axis=1, dtype=np.float32, casting="same_kind")

    def reward(self, task: str, view: QuadrupedView) -> Vector:
        upright = tolerance(view.upright, 1.0, margin=2.0, value_at_margin=0.0, shape="linear")
        if task == "stand":
            return upright
        reached, goal = {
            "walk": (view.torso_speed, WALK_SPEED),
            "run": (view.torso_speed, RUN_SPEED),
            "jump": (view.centre_height, JUMP_HEIGHT),
        }[task]
        return upright * tolerance(reached, goal, margin=goal, value_at_margin=0.5, shape="linear")

    def start(
        self, task: str, batch: "Batch", slots: Int[np.ndarray, " n"], randoms: Sequence[np.random.Generator]
    ) -> None:
        """A random orientation (often upside down), just high enough to touch nothing."""
        import mujoco

        model = batch.model
        qpos, contacts, centres = batch.bind("qpos"), batch.bind("ncon"), batch.bind("geom_xpos")
        turns = np.array([random.standard_normal(4) for random in randoms])
        qpos[slots, :3] = 0.0
        qpos[slots, 3:7] = turns / np.linalg.norm(turns, axis=1, keepdims=True)
        batch.forward(slots, stage=int(mujoco.mjtStage.mjSTAGE_POS))
        # dm_control tries 0, 1, 2, … cm. As long as the centre of some part is below the floor, that part touches it.
        lowest = centres[slots][:, model.geom_bodyid > 0, 2].min(1)
        level = np.searchsorted(HEIGHTS, -lowest)
        todo = np.arange(len(slots))
        while todo.size:
            qpos[slots[todo], 2] = HEIGHTS[level[todo]]
            batch.forward(slots[todo], stage=int(mujoco.mjtStage.mjSTAGE_POS))
            todo = todo[contacts[slots[todo]] > 0]
            level[todo] += 1
