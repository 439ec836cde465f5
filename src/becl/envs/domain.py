"""The interface of a MuJoCo domain; `simulations.py` does the rest."""

import importlib.util
import os
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from becl.errors import UserError

if TYPE_CHECKING:
    import mujoco
    from mujoco.batch import Batch

Vector = Float[np.ndarray, " n"]


@runtime_checkable
class Domain(Protocol):
    """A robot and its tasks. Each file has the same order: constants, observation, reward of each task, start."""

    tasks: Mapping[str, str]
    """What each task asks for, by name."""
    primal: str
    """The task whose reward is logged when the domain is used alone, as URLB does."""
    obs_dim: int
    parts: Mapping[str, slice]
    """The columns of each part of an observation."""
    action_dim: int
    substeps: int
    """Physics steps per control step."""
    episode_length: int
    """Control steps per episode."""
    camera: str
    """The camera of the model that shows the robot best."""

    def model(self) -> "mujoco.MjModel": ...

    def view(self, batch: "Batch") -> Any:
        """Live arrays of all simulations, from which observation and reward are computed."""
        ...

    def observe(self, view: Any) -> Float[np.ndarray, "n o"]:
        """The observation as URLB orders it, in float32."""
        ...

    def reward(self, task: str, view: Any) -> Vector: ...

    def start(
        self, task: str, batch: "Batch", slots: Int[np.ndarray, " n"], randoms: Sequence[np.random.Generator]
    ) -> None:
        """Writes random start states into simulations `slots`, which have just been reset to the model's defaults."""
        ...


def places(**sizes: int) -> dict[str, slice]:
    """Parts of an observation, one after another."""
    ends = np.cumsum(list(sizes.values())).tolist()
    return {name: slice(end - size, end) for (name, size), end in zip(sizes.items(), ends, strict=True)}


def check_mujoco() -> None:
    """Raises an error that says what to install if MuJoCo or the models are missing or too new."""
    try:
        found = version("mujoco")
    except PackageNotFoundError:
        raise UserError("mujoco is not installed; these environments need it: pip install 'mujoco>=3.17,<4'") from None
    numbers = tuple(int("".join(filter(str.isdigit, part)) or 0) for part in found.split(".")[:2])
    if not (3, 17) <= numbers < (4, 0):
        raise UserError(
            f"mujoco {found} is installed; these environments need 3.17 or newer, below 4: "
            "pip install 'mujoco>=3.17,<4'"
        )
    try:
        import mujoco  # noqa: F401
    except Exception as error:  # It loads the OpenGL library that MUJOCO_GL names, even if nothing is rendered.
        chosen = os.environ.get("MUJOCO_GL")
        raise UserError(
            f"mujoco cannot be imported with MUJOCO_GL={chosen}; without rendering, unset it ({error})"
        ) from None
    if importlib.util.find_spec("dm_control") is None:
        raise UserError("dm_control is not installed; the robots' models come from it: pip install dm_control")


def suite_file(name: str) -> Path:
    """A model file of dm_control's suite, found without importing dm_control."""
    spec = importlib.util.find_spec("dm_control")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "suite" / name


def without_islands(model: "mujoco.MjModel") -> "mujoco.MjModel":
    """Switches off the search for independent parts, as a single robot has none (5 % faster, same bits)."""
    import mujoco

    model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_ISLAND)
    return model


def sensor_columns(model: "mujoco.MjModel", sensors: Sequence[int]) -> Int[np.ndarray, " k"]:
    """Columns of `sensordata` that hold the readings of some sensors, one after another."""
    return np.concatenate([model.sensor_adr[i] + np.arange(model.sensor_dim[i]) for i in sensors])
