"""What anyone's environment looks like, step by step: the poses of the MuJoCo model inside, or else the pictures that
it draws of itself (`render_mode="rgb_array"`).
"""

import contextlib
import copy
import functools
import os
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium
import numpy as np
from jaxtyping import Float, UInt8

from becl.envs.dm_env import DmEnvironment
from becl.envs.external import Layout, maker_of
from becl.envs.registration import RobotEnv
from becl.errors import UserError

if TYPE_CHECKING:
    import mujoco

LARGEST = 400  # Pixels that are kept of a picture's height and width, at most.


class PackedPicture(NamedTuple):
    """An image, packed: of long episodes there are thousands."""

    packed: bytes
    shape: tuple[int, ...]

    @property
    def pixels(self) -> UInt8[np.ndarray, "h w 3"]:
        return np.frombuffer(zlib.decompress(self.packed), np.uint8).reshape(self.shape)


def packed(pixels: UInt8[np.ndarray, "h w 3"]) -> PackedPicture:
    """A picture of at most the largest size."""
    from PIL import Image

    image = Image.fromarray(pixels)
    image.thumbnail((LARGEST, LARGEST))
    small = np.asarray(image)
    return PackedPicture(zlib.compress(small.tobytes(), 1), small.shape)


class Recorded(gymnasium.Wrapper):
    """Notes the first episode of an environment."""

    def __init__(self, env: Any, drawn: bool):
        """`drawn`: whether by its pictures instead of by poses."""
        super().__init__(env)
        self.poses: list[np.ndarray] = []
        """Where pictures are taken: what is observed."""
        self.pictures: list[PackedPicture] = []
        self.over = False
        self.model: mujoco.MjModel | None = None
        self.seconds: float | None = None
        """Of a step, where that is known."""
        self._layout = Layout(env.observation_space) if drawn else None
        self._begun_at = 0.0

    def reset(self, **options: Any) -> Any:
        result = self.env.reset(**options)
        if self.poses:
            self.over = True
        else:
            self._note(result[0])
        return result

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        if not self.over:
            self._note(result[0])
        return result

    def _note(self, obs: Any) -> None:
        if self._layout is not None:
            self.poses.append(self._layout.one(obs))
            self.pictures.append(packed(drawn_by_itself(self.env)))
            rate = self.env.metadata.get("render_fps")
            self.seconds = 1 / rate if rate else None
            return
        found = physics_of(self.env.unwrapped)  # Asked for every time: dm_control makes another with every seed.
        assert found is not None
        model, data = found
        if not self.poses:
            self.model, self._begun_at = copy.copy(model), data.time
        self.poses.append(pose_of(model, data))
        self.seconds = (data.time - self._begun_at) / max(len(self.poses) - 1, 1) or 1.0


@functools.cache
def draws_itself(name: str) -> bool:
    """Whether an environment has to be shown by its own pictures; refuses one that has neither poses nor pictures."""
    make = maker_of(name)
    with contextlib.closing(make()) as env:
        if physics_of(env.unwrapped) is not None:
            return False
        if "rgb_array" not in (env.metadata.get("render_modes") or ()):
            raise UserError(
                f"{name} has no poses to draw, as mazes, robots and environments on MuJoCo have, and draws no pictures "
                "itself: render_mode='rgb_array' is not among the render_modes of its metadata"
            )
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame's pictures need no window, and no word about it.
    try:
        with contextlib.closing(make(render_mode="rgb_array")) as env:
            env.reset(seed=0)
            drawn_by_itself(env)
    except UserError as error:
        raise UserError(f"{name} draws no pictures: {error}") from None
    except Exception as error:  # Environments may raise anything here, above all where a package is missing.
        said = str(error).strip().splitlines()
        raise UserError(f"{name} draws no pictures: {type(error).__name__}: {said[0] if said else ''}") from error
    return True


def drawn_by_itself(env: Any) -> UInt8[np.ndarray, "h w 3"]:
    """What an environment made with `render_mode="rgb_array"` looks like now."""
    if env.render_mode != "rgb_array":
        raise UserError(
            "what makes it has to take render_mode and hand it on, or to make it with render_mode='rgb_array'"
        )
    pixels = np.asarray(env.render())
    if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8:
        raise UserError(f"render() gave {pixels.dtype} of shape {pixels.shape}: uint8 (height, width, 3) is needed")
    return pixels


def physics_of(env: Any) -> tuple["mujoco.MjModel", "mujoco.MjData"] | None:
    """MuJoCo's model and data inside an environment."""
    import mujoco

    if isinstance(env, DmEnvironment):
        return None if env.physics is None else (env.physics.model.ptr, env.physics.data.ptr)
    if isinstance(env, RobotEnv):
        return env.simulations.model, env.simulations.data(0)
    model, data = getattr(env, "model", None), getattr(env, "data", None)
    return (model, data) if isinstance(model, mujoco.MjModel) and isinstance(data, mujoco.MjData) else None


def pose_parts() -> int:
    """What of MuJoCo's state a pose is."""
    import mujoco

    kinds = mujoco.mjtState
    return int(kinds.mjSTATE_QPOS | kinds.mjSTATE_MOCAP_POS | kinds.mjSTATE_MOCAP_QUAT)


def pose_of(model: "mujoco.MjModel", data: "mujoco.MjData") -> Float[np.ndarray, " pose"]:
    import mujoco

    pose = np.zeros(mujoco.mj_stateSize(model, pose_parts()))
    mujoco.mj_getState(model, data, pose, pose_parts())
    return pose
