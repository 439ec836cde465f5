"""Tasks for skills that were learned in an open field: hurdles for the half-cheetah, goals for the ant.

What they are learned in are Gymnasium's robots with their position in the observation, `becl/HalfCheetah-v0` and
`becl/Ant-v0` (an ant that falls goes on). The observations of the tasks begin with the same numbers, so that these
skills can act in them, and end with what only the tasks have.
"""

import warnings
from typing import Any, Literal

import mujoco
import numpy as np
from gymnasium.envs.mujoco.ant_v5 import AntEnv
from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv
from gymnasium.spaces import Box
from jaxtyping import Float

GAP = 4.0
"""Metres from the start to the first hurdle, and from each to the next."""
HURDLES = 50
HEIGHT = 0.2
"""Of a hurdle, in metres."""
REACH = 7.5
"""A goal is at most so many metres away in x and in y when it appears."""
RADIUS = 1.0
"""Metres within which a goal counts as reached."""

Obs = Float[np.ndarray, " o"]


class HalfCheetahHurdles(HalfCheetahEnv):
    """Pays 1 for every hurdle that is passed for the first time. The last number observed is the distance to the next,
    in metres."""

    def __init__(self, **options: Any):
        super().__init__(exclude_current_positions_from_observation=False, **options)
        self.observation_space = with_numbers(self.observation_space, 1)
        self.passed = 0

    def _initialize_simulation(self) -> tuple[mujoco.MjModel, mujoco.MjData]:
        spec = mujoco.MjSpec.from_file(self.fullpath)
        for number in range(1, HURDLES + 1):
            spec.worldbody.add_geom(name=f"hurdle {number}", type=mujoco.mjtGeom.mjGEOM_BOX, contype=0, conaffinity=1,
                                    pos=[GAP * number, 0, HEIGHT / 2], size=[0.05, 2.0, HEIGHT / 2],
                                    rgba=[0.8, 0.4, 0.2, 1])  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # About how Gymnasium's model sets the mass of its robot.
            model = spec.compile()
        model.vis.global_.offwidth = max(model.vis.global_.offwidth, self.width)
        model.vis.global_.offheight = max(model.vis.global_.offheight, self.height)
        return model, mujoco.MjData(model)

    def reset_model(self) -> Obs:
        self.passed = 0
        return super().reset_model()

    def _get_rew(self, x_velocity: float, action: np.ndarray) -> tuple[float, dict[str, float]]:
        del x_velocity, action
        before, self.passed = self.passed, max(self.passed, hurdles_before(self.data.qpos[0]))
        return float(self.passed - before), {"hurdles": float(self.passed)}

    def _get_obs(self) -> Obs:
        x = self.data.qpos[0]
        return np.append(super()._get_obs(), GAP * (hurdles_before(x) + 1) - x)


class AntGoals(AntEnv):
    """Pays for every metre nearer to a goal; where one is reached, another appears. The last two numbers observed are
    the way to the goal in x and y, in metres."""

    def __init__(self, **options: Any):
        super().__init__(
            exclude_current_positions_from_observation=False,
            include_cfrc_ext_in_observation=False,
            terminate_when_unhealthy=False,
            **options,
        )
        self.observation_space = with_numbers(self.observation_space, 2)
        self.goal, self.reached = np.zeros(2), 0
        self._away = 0.0

    def reset_model(self) -> Obs:
        self.reached = 0
        super().reset_model()
        self._next_goal()
        return self._get_obs()

    def step(self, action: np.ndarray) -> tuple[Obs, float, bool, Literal[False], dict[str, Any]]:
        _, _, terminated, truncated, info = super().step(action)
        before, self._away = self._away, float(np.linalg.norm(self._way()))
        reward = before - self._away
        if self._away < RADIUS:
            self.reached += 1
            self._next_goal()
        return self._get_obs(), reward, terminated, truncated, {**info, "goals": self.reached}

    def _next_goal(self) -> None:
        self.goal = self.data.qpos[:2] + self.np_random.uniform(-REACH, REACH, 2)
        self._away = float(np.linalg.norm(self._way()))

    def _way(self) -> Float[np.ndarray, " 2"]:
        return self.goal - self.data.qpos[:2]

    def _get_obs(self) -> Obs:
        return np.concatenate([super()._get_obs(), self._way()])


def hurdles_before(x: float) -> int:
    """How many hurdles are behind a place."""
    return int(np.clip(np.floor(x / GAP), 0, HURDLES))


def with_numbers(space: Any, count: int) -> Box:
    """A space of observations with so many numbers behind."""
    return Box(-np.inf, np.inf, (space.shape[0] + count,), space.dtype)
