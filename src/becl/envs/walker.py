"""Walker: a planar two-legged robot of dm_control's suite, with URLB's four tasks."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from becl.envs.domain import Vector, places, suite_file, without_islands
from becl.envs.tolerance import tolerance

if TYPE_CHECKING:
    import mujoco
    from mujoco.batch import Batch

STAND_HEIGHT = 1.2  # Torso height above which standing earns the full reward, m.
WALK_SPEED = 1.0  # Horizontal speed of the centre of mass, m/s.
RUN_SPEED = 8.0  # m/s.
SPIN = 5.0  # Angular momentum about the axis across the plane, kg·m²/s.


class WalkerView(NamedTuple):
    """Live arrays of all simulations."""

    orientations: Float[np.ndarray, "n 7 2"]  # x- and z-component of each body's x-axis.
    height: Vector
    velocity: Float[np.ndarray, "n 9"]
    upright: Vector
    forward_speed: Vector
    angular_momentum: Vector


class Walker:
    tasks: Mapping[str, str] = {
        "stand": "keep the torso up",
        "walk": "go forward at 1 m/s",
        "run": "go forward at 8 m/s",
        "flip": "turn over forwards",
    }
    primal = "stand"
    obs_dim = 24
    parts: Mapping[str, slice] = places(orientations=14, height=1, velocity=9)
    action_dim = 6  # Torques of right hip, knee, ankle, then left.
    substeps = 10  # of 2.5 ms.
    episode_length = 1000  # Control steps of 25 ms.
    camera = "side"

    def model(self) -> "mujoco.MjModel":
        import mujoco

        return without_islands(mujoco.MjModel.from_xml_path(str(suite_file("walker.xml"))))

    def view(self, batch: "Batch") -> WalkerView:
        torso = batch.model.body("torso").id
        xmat = batch.bind("xmat")
        return WalkerView(
            orientations=xmat[:, 1:, 0:3:2],
            height=batch.bind("xpos")[:, torso, 2],
            velocity=batch.bind("qvel"),
            upright=xmat[:, torso, 8],
            forward_speed=batch.bind("sensordata")[:, batch.model.sensor("torso_subtreelinvel").adr[0]],
            # Computed along with the velocity sensor above.
            angular_momentum=batch.bind("subtree_angmom")[:, torso, 1],
        )

    def observe(self, view: WalkerView) -> Float[np.ndarray, "n o"]:
        parts = (view.orientations.reshape(len(view.height), -1), view.height[:, None], view.velocity)
        return np.concatenate(parts, axis=1, dtype=np.float32, casting="same_kind")

    def reward(self, task: str, view: WalkerView) -> Vector:
        standing = tolerance(view.height, STAND_HEIGHT, margin=STAND_HEIGHT / 2)
        stand = (3 * standing + (1 + view.upright) / 2) / 4
        if task == "stand":
            return stand
        if task == "flip":
            move = tolerance(view.angular_momentum, SPIN, margin=SPIN, value_at_margin=0.0, shape="linear")
        else:
            speed = WALK_SPEED if task == "walk" else RUN_SPEED
            move = tolerance(view.forward_speed, speed, margin=speed / 2, value_at_margin=0.5, shape="linear")
        return stand * (5 * move + 1) / 6

    def start(
        self, task: str, batch: "Batch", slots: Int[np.ndarray, " n"], randoms: Sequence[np.random.Generator]
    ) -> None:
        """Torso at its normal height with random pitch; joints uniform in their ranges. May start inside the floor."""
        model = batch.model
        ranges = np.where(model.jnt_limited[:, None], model.jnt_range, (-np.pi, np.pi))
        first = model.joint("rooty").qposadr[0]  # The two sliding joints before it stay at 0.
        low, high = ranges[first:].T
        batch.bind("qpos")[slots, first:] = [random.uniform(low, high) for random in randoms]
