"""Pictures of robots for those who learn from them: poses in, images out.

`rays` draws on JAX's device and needs nothing else; `mujoco` is MuJoCo's own renderer, which needs OpenGL and knows
meshes.
"""

import functools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Array, Float, UInt8

from becl.envs.domain import Domain, check_mujoco
from becl.envs.rays import Kinematics, Scene, Shading, picture, scene_of
from becl.envs.registration import close_renderer, opengl
from becl.errors import UserError

if TYPE_CHECKING:
    import mujoco

Drawing = Literal["rays", "mujoco"]
TOGETHER = 64  # Pictures drawn at once: enough to fill a device, few enough for its memory.


@runtime_checkable
class Frames(Protocol):
    """Draws poses."""

    size: int

    def draw(self, qpos: Float[np.ndarray, "n q"]) -> UInt8[Array | np.ndarray, "n size size 3"]: ...

    def close(self) -> None: ...


def make_frames(domain: Domain, size: int = 84, drawing: Drawing = "rays") -> Frames:
    """What draws a robot from its own camera in squares of `size` pixels; refuses what cannot be drawn."""
    check_mujoco()
    return RayFrames(domain, Shading(size)) if drawing == "rays" else MuJoCoFrames(domain, size)


class RayFrames:
    """By rays in JAX, many at once."""

    def __init__(self, domain: Domain, shading: Shading):
        import mujoco

        self.size = shading.size
        self.model, self.scene, self._draw = program(domain, shading)
        self._data = mujoco.MjData(self.model)

    def draw(self, qpos: Float[np.ndarray, "n q"]) -> UInt8[Array, "n size size 3"]:
        """Pictures that stay on the device."""
        return self._draw(self.kinematics(qpos))

    def kinematics(self, qpos: Float[np.ndarray, "n q"]) -> Kinematics:
        """Where everything is in each pose."""
        found = [kinematics(self.model, self._data, self.scene, pose) for pose in qpos]
        return Kinematics(*(np.stack(parts) for parts in zip(*found, strict=True)))  # type: ignore[arg-type]

    def close(self) -> None:
        """There is nothing to close."""


@functools.cache
def program(domain: Domain, shading: Shading) -> tuple["mujoco.MjModel", Scene, Callable[[Kinematics], jax.Array]]:
    """A robot's model, what it looks like, and what draws it: compiled once for all who look at it."""
    model = domain.model()
    scene = scene_of(model, domain.camera)
    return model, scene, drawer(scene, shading)


def drawer(scene: Scene, shading: Shading) -> Callable[[Kinematics], jax.Array]:
    """Pictures of many poses as one program."""

    def draw(now: Kinematics) -> jax.Array:
        return jax.lax.map(lambda one: picture(scene, one, shading), now, batch_size=TOGETHER)

    return jax.jit(draw)


def kinematics(model: "mujoco.MjModel", data: "mujoco.MjData", scene: Scene, qpos: Float[np.ndarray, " q"]) -> tuple:
    """Positions of geoms, camera and lights, the fields of `Kinematics`."""
    import mujoco

    data.qpos[:] = qpos
    mujoco.mj_kinematics(model, data)
    mujoco.mj_comPos(model, data)
    mujoco.mj_camlight(model, data)
    lights = np.flatnonzero(model.light_active)
    found = (
        data.geom_xpos[scene.number],
        data.geom_xmat[scene.number].reshape(-1, 3, 3),
        data.cam_xpos[scene.camera],
        data.cam_xmat[scene.camera].reshape(3, 3),
        data.light_xpos[lights],
        data.light_xdir[lights],
    )
    return tuple(part.astype(np.float32) for part in found)


class MuJoCoFrames:
    """By MuJoCo's own renderer, one after another, as dm_control draws them."""

    def __init__(self, domain: Domain, size: int):
        import mujoco

        self.size, self.model, self._camera = size, domain.model(), domain.camera
        self._data = mujoco.MjData(self.model)
        self.model.vis.global_.offwidth = self.model.vis.global_.offheight = max(size, 1)
        try:
            with opengl():
                self._renderer = mujoco.Renderer(self.model, size, size)
        except UserError as error:
            raise UserError(f"MuJoCo's renderer: {error}") from None
        self.close = weakref.finalize(self, close_renderer, self._renderer)

    def draw(self, qpos: Float[np.ndarray, "n q"]) -> UInt8[np.ndarray, "n size size 3"]:
        import mujoco

        drawn = []
        for pose in qpos:
            self._data.qpos[:] = pose
            mujoco.mj_kinematics(self.model, self._data)
            mujoco.mj_comPos(self.model, self._data)
            mujoco.mj_camlight(self.model, self._data)
            self._renderer.update_scene(self._data, self._camera)
            drawn.append(self._renderer.render())
        return np.stack(drawn)
