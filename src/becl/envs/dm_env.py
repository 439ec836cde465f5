"""A dm_env environment as a Gymnasium environment."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete


class DmEnvironment(gymnasium.Env):
    """Observations are a Dict of arrays. A discount of 0 terminates an episode; any other end is a time limit."""

    def __init__(self, make: Callable[[int], Any], seed: int = 0):
        """`make` returns the environment for a seed."""
        self._make = make
        self._env = make(seed)
        spec = self._env.action_spec()
        self.action_space: Any = Box(
            np.broadcast_to(spec.minimum, spec.shape).astype(np.float64),
            np.broadcast_to(spec.maximum, spec.shape).astype(np.float64),
            dtype=np.float64,
        )
        if hasattr(spec, "num_values"):
            self.action_space = Discrete(spec.num_values)
        observed = self._env.observation_spec()
        self.observation_space = Dict(
            {name: Box(-np.inf, np.inf, part.shape, np.float64) for name, part in observed.items()}
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        super().reset(seed=seed)
        del options
        if seed is not None:
            self._env.close()
            self._env = self._make(seed)
        return self._observed(self._env.reset()), {}

    def step(self, action: np.ndarray) -> tuple[dict, float, bool, bool, dict]:
        step = self._env.step(action)
        over = step.last()
        terminated = bool(over and step.discount == 0)
        return self._observed(step), float(step.reward or 0.0), terminated, bool(over and not terminated), {}

    def close(self) -> None:
        self._env.close()

    @property
    def physics(self) -> Any:
        """The physics of dm_control's environments; None for others."""
        return getattr(self._env, "physics", None)

    def _observed(self, step: Any) -> dict[str, np.ndarray]:
        return {name: np.asarray(value, np.float64) for name, value in step.observation.items()}
