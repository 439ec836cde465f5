"""The robots as Gymnasium environments, such as `becl/walker_run-v0`, one at a time or as a native batch.

Importing `becl.envs` registers them. Gymnasium loads no plugins since 1.0, so either import it or name it in the id:
`gymnasium.make("becl.envs:becl/walker_run-v0")`; the same goes for `gymnasium.make_vec`.

The seed of a simulation is a pair in `becl.envs.make`: the run's seed and the simulation's number. `RobotEnv` with seed
s is simulation 0 of seed s. `RobotVectorEnv` with seed s has simulations 0, 1, … of seed s, as `becl.envs.make` does;
with a list of seeds, its parts are what as many `RobotEnv`s with these seeds are.
"""

import atexit
import copy
import functools
import importlib
import os
import sys
import warnings
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from jaxtyping import Bool, Float, Float32, Int, UInt8

from becl.envs import DOMAINS, make, names
from becl.envs.domain import check_mujoco
from becl.envs.simulations import Simulations
from becl.errors import UserError, unknown

if TYPE_CHECKING:
    import mujoco

METADATA: dict[str, Any] = {"render_modes": ["rgb_array"]}
VECTOR_METADATA: dict[str, Any] = {**METADATA, "autoreset_mode": AutoresetMode.SAME_STEP}
SIDE = 256  # Of a rendered frame, in pixels.

FIELD_STEPS = 200
"""Steps of an episode of the robots below, as in the paper of METRA."""
FIELDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "HalfCheetah": (
        "Gymnasium's half-cheetah, with its position",
        "gymnasium.envs.mujoco.half_cheetah_v5:HalfCheetahEnv",
        {"exclude_current_positions_from_observation": False},
    ),
    "HalfCheetahHurdles": ("the same with hurdles; 1 for each", "becl.envs.courses:HalfCheetahHurdles", {}),
    "Ant": (
        "Gymnasium's ant, with its position and without contact forces; goes on when it falls",
        "gymnasium.envs.mujoco.ant_v5:AntEnv",
        {
            "exclude_current_positions_from_observation": False,
            "include_cfrc_ext_in_observation": False,
            "terminate_when_unhealthy": False,
        },
    ),
    "AntGoals": ("the same with goals; metres nearer", "becl.envs.courses:AntGoals", {}),
}
"""Gymnasium's robots for skills that go somewhere, and tasks for such skills: what it is, entry point, options."""

Obs = Float32[np.ndarray, " o"]
ObsBatch = Float32[np.ndarray, "n o"]
Frame = UInt8[np.ndarray, "h w 3"]


def register() -> None:
    """Registers all environments with Gymnasium; a second call has no effect."""
    for name, (_, place, options) in FIELDS.items():
        if f"becl/{name}-v0" not in gymnasium.registry:
            gymnasium.register(f"becl/{name}-v0", place, max_episode_steps=FIELD_STEPS, kwargs=options)
    for name in [*DOMAINS, *names()]:
        if f"becl/{name}-v0" not in gymnasium.registry:
            gymnasium.register(
                f"becl/{name}-v0",
                entry_point=f"{__name__}:RobotEnv",
                vector_entry_point=f"{__name__}:RobotVectorEnv",
                max_episode_steps=DOMAINS[name.partition("_")[0]].episode_length,
                kwargs={"name": name},
            )


class RobotEnv(gymnasium.Env[np.ndarray, np.ndarray]):
    """One simulation.

    As in Gymnasium's own environments the length of an episode is set by the `TimeLimit` that `gymnasium.make` adds, so
    that its `max_episode_steps` means what it says. Only a simulation that diverges ends its episode here.
    """

    metadata = METADATA

    def __init__(self, name: str, render_mode: str | None = None, width: int = SIDE, height: int = SIDE):
        check_view(render_mode, width, height)
        self.simulations = make(name, episode_length=sys.maxsize)
        self.observation_space, self.action_space = spaces(self.simulations)
        self.metadata = {**self.metadata, "render_fps": frames_per_second(self.simulations)}
        self.render_mode, self._size = render_mode, (width, height)
        self._camera: Camera | None = None
        self._seeded = False
        self._next_start: Obs | None = None
        """Whether the next episode has already begun because the simulation diverged and was restarted."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """Begins the first episode of a seed, or the next episode."""
        super().reset(seed=seed)
        if seed is not None or not self._seeded:
            self.simulations.seed(drawn_seed(self.np_random) if seed is None else seed)
            self._seeded = True
            start = self.simulations.reset()[0]
        elif self._next_start is not None:
            start = self._next_start
        else:
            start = self.simulations.restart()[0]
        self._next_start = None
        return start, {}

    def step(self, action: np.ndarray) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """One control step with an action in [-1, 1]."""
        if self._next_start is not None:
            raise ResetNeeded("the simulation diverged, which ended the episode: reset before the next step")
        step = self.simulations.step(np.asarray(action)[None])
        diverged = bool(step.truncated[0])
        if diverged:
            self._next_start = step.obs[0]
        return step.next_obs[0].copy(), float(step.reward[0]), False, diverged, {}

    def render(self) -> Frame | None:
        """Renders what the domain's camera sees."""
        if self.render_mode is None:
            return warn_of_no_render_mode()
        self._camera = self._camera or Camera(self.simulations, *self._size)
        return self._camera.frame(0)

    def close(self) -> None:
        self.simulations.close()
        if self._camera is not None:
            self._camera.close()


class RobotVectorEnv(VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """A batch of simulations on native threads.

    An episode that ends is followed by the next within the same step; the last observation of the old one is then in
    `infos["final_obs"]`. Gymnasium's observation wrappers for batches refuse this way; with
    `make_vec(..., vectorization_mode="sync")` those for single environments can be used instead.
    """

    metadata = VECTOR_METADATA

    def __init__(
        self,
        name: str,
        num_envs: int = 1,
        max_episode_steps: int | None = None,
        threads: int | None = None,
        render_mode: str | None = None,
        width: int = SIDE,
        height: int = SIDE,
    ):
        check_view(render_mode, width, height)
        self.simulations = make(name, num_envs, episode_length=max_episode_steps, threads=threads)
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = spaces(self.simulations)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.metadata = {**self.metadata, "render_fps": frames_per_second(self.simulations)}
        self.render_mode, self._size = render_mode, (width, height)
        self._camera: Camera | None = None
        self._seeded = False

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ObsBatch, dict[str, Any]]:
        """Begins the first episodes of a seed or of one seed each, or the next ones.

        `options={"reset_mask": mask}` leaves the simulations outside the mask alone.
        """
        several = isinstance(seed, Sequence | np.ndarray)
        if several and len(seed) != self.num_envs:
            raise UserError(f"{len(seed)} seeds for {self.num_envs} simulations: give one each, or a single number")
        super().reset(seed=None if several else seed)
        mask = (options or {}).get("reset_mask")
        if mask is not None:
            if seed is not None or not self._seeded:
                raise UserError("reset all simulations first, and give no seed along with a reset_mask")
            return self.simulations.restart(masked(mask, self.num_envs)), {}
        if seed is None and self._seeded:
            return self.simulations.restart(), {}
        self.simulations.seed(drawn_seed(self.np_random) if seed is None else seed)
        self._seeded = True
        return self.simulations.reset(), {}

    def step(
        self, actions: np.ndarray
    ) -> tuple[ObsBatch, Float[np.ndarray, " n"], Bool[np.ndarray, " n"], Bool[np.ndarray, " n"], dict[str, Any]]:
        """One control step of every simulation with actions in [-1, 1]."""
        step = self.simulations.step(actions)
        infos: dict[str, Any] = {}
        for number in np.flatnonzero(step.truncated).tolist():
            infos = self._add_info(infos, {"final_obs": step.next_obs[number], "final_info": {}}, number)
        return step.obs, step.reward, np.zeros(self.num_envs, bool), step.truncated, infos

    def render(self) -> tuple[Frame, ...] | None:
        """Renders what the domain's camera sees in every simulation."""
        if self.render_mode is None:
            return warn_of_no_render_mode()
        self._camera = camera = self._camera or Camera(self.simulations, *self._size)
        return tuple(camera.frame(number) for number in range(self.num_envs))

    def close_extras(self, **kwargs: Any) -> None:
        self.simulations.close()
        if self._camera is not None:
            self._camera.close()


def spaces(simulations: Simulations) -> tuple[Box, Box]:
    """The spaces of observations and actions of one simulation."""
    spec = simulations.spec
    return Box(-np.inf, np.inf, (spec.obs_dim,), np.float32), Box(-1.0, 1.0, (spec.action_dim,), np.float32)


def frames_per_second(simulations: Simulations) -> int:
    """Frames per second for a film in real time."""
    return round(1 / (simulations.model.opt.timestep * simulations.domain.substeps))


def drawn_seed(random: np.random.Generator) -> int:
    return int(random.integers(2**31))


def masked(mask: Any, num_envs: int) -> Int[np.ndarray, " k"]:
    """The numbers of the simulations in a mask."""
    mask = np.asarray(mask)
    if mask.shape != (num_envs,) or mask.dtype != bool or not mask.any():
        raise UserError(f"reset_mask {mask}: {num_envs} booleans, at least one of them true, are needed")
    return np.flatnonzero(mask)


class Camera:
    """Renders simulations with MuJoCo."""

    def __init__(self, simulations: Simulations, width: int = SIDE, height: int = SIDE):
        import mujoco

        self.simulations = simulations
        self.model = copy.copy(simulations.model)
        visual = self.model.vis
        visual.global_.offwidth, visual.global_.offheight = width, height
        # On a CPU, shadows, reflections and smooth edges take ten times as long as everything else.
        visual.quality.shadowsize, visual.quality.offsamples = 1, 0
        problem = opengl_problem()
        if problem:
            raise UserError(problem)
        self.renderer = mujoco.Renderer(self.model, height, width)
        self.close = weakref.finalize(self, close_renderer, self.renderer)
        # A renderer must be closed before Python exits, and before EGL, which it has just loaded, ends itself.
        self.close.atexit = False
        atexit.register(self.close)
        for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
            self.renderer.scene.flags[flag] = False

    def frame(self, number: int) -> Frame:
        import mujoco

        data = self.simulations.data(number)
        mujoco.mj_forward(self.model, data)  # A new simulation has no positions of its bodies yet.
        self.renderer.update_scene(data, self.simulations.domain.camera)
        return self.renderer.render()


def check_view(render_mode: str | None, width: int, height: int) -> None:
    """Checks the options before anything is simulated."""
    if render_mode is None:
        return
    if render_mode not in METADATA["render_modes"]:
        raise unknown("render_mode", render_mode, METADATA["render_modes"])
    if min(width, height) < 1:
        raise UserError(f"width {width}, height {height}: at least 1 pixel is needed")
    check_mujoco()
    with opengl():
        importlib.import_module("mujoco")  # It loads what MUJOCO_GL names.
    warn_without_opengl()


@functools.cache
def warn_without_opengl() -> None:
    """Warns only: Stable-Baselines3 asks for a render mode whether or not it is going to render."""
    problem = opengl_problem()
    if problem:
        warnings.warn(problem, stacklevel=4)


@functools.cache
def opengl_problem() -> str | None:
    """Why nothing can be rendered. If MuJoCo found out itself, its second renderer would crash Python."""
    import mujoco

    try:
        with opengl():
            context = mujoco.GLContext(1, 1)
            if not getattr(context, "_context", True):
                raise RuntimeError("no window can be opened")
            context.free()
    except UserError as error:
        return str(error)
    return None


@contextmanager
def opengl() -> Iterator[None]:
    """Raises an error that says what to install and set if MuJoCo finds no OpenGL."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # GLFW's, about the display.
            yield
    except Exception as error:  # Each back end fails with an exception of another type.
        chosen = os.environ.get("MUJOCO_GL", "")
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(
            f"rendering needs OpenGL, which MuJoCo cannot use here (MUJOCO_GL={chosen!r}): set MUJOCO_GL=egl before "
            "Python starts, after apt install --no-install-recommends libegl1 libgl1; or MUJOCO_GL=osmesa, after the "
            f"same with libosmesa6 ({reason})"
        ) from None


def close_renderer(renderer: "mujoco.Renderer") -> None:
    if renderer._gl_context:
        renderer._gl_context.make_current()  # MuJoCo frees its resources in whichever context was used last.
    renderer.close()


def warn_of_no_render_mode() -> None:
    gymnasium.logger.warn("nothing is rendered: make the environment with render_mode='rgb_array'")
