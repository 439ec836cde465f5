"""Policies as plain functions of NumPy arrays: what is left of a network once its skill is chosen.

A policy acts on an observation with a skill beside it. With the skill fixed, what its rows of the first layer's weights
give is a constant, which is added to the bias: what is left maps observations to actions,

    x = tanh(LayerNorm(obs · trunk.weight + trunk.bias) · norm.gain + norm.shift)
    a = tanh(relu(x · hidden.weight + hidden.bias) · out.weight + out.bias)

where observations are whitened, with min(max((obs − obs.mean) / obs.std, −5), 5) in place of obs.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from becl.errors import UserError
from becl.learning.ddpg import Actor
from becl.nn.networks import mean_and_std

Act = Callable[[np.ndarray], np.ndarray]
"""From observations [..., observation] to actions [..., action]."""


def fold(actor: Actor, skill: np.ndarray) -> dict[str, np.ndarray]:
    """The arrays of a policy whose skill never changes."""
    weight, bias = np.asarray(actor.trunk.linear.weight), np.asarray(actor.trunk.linear.bias)
    observed = len(weight) - len(skill)
    # Observations come first, then the skill.
    constant = bias.astype(np.float64) + skill.astype(np.float64) @ weight[observed:].astype(np.float64)
    arrays = {
        "trunk.weight": weight[:observed],
        "trunk.bias": constant,
        "norm.gain": actor.trunk.gain,
        "norm.shift": actor.trunk.shift,
        "hidden.weight": actor.hidden.weight,
        "hidden.bias": actor.hidden.bias,
        "out.weight": actor.out.weight,
        "out.bias": actor.out.bias,
    }
    if actor.moments is not None:
        arrays["obs.mean"], arrays["obs.std"] = mean_and_std(actor.moments)
    return {name: np.asarray(array, np.float32, order="C") for name, array in arrays.items()}


def numpy_policy(arrays: Mapping[str, np.ndarray]) -> Act:
    """A policy of folded arrays, written for a single observation: tens of microseconds a call."""
    trunk, bias, gain, shift = (arrays[name] for name in ("trunk.weight", "trunk.bias", "norm.gain", "norm.shift"))
    # Columns in one piece: a product with a single row reads them one after another.
    hidden, out = (np.asfortranarray(arrays[f"{name}.weight"]) for name in ("hidden", "out"))
    hidden_bias, out_bias = arrays["hidden.bias"], arrays["out.bias"]
    whitened = "obs.mean" in arrays
    mean, std = (arrays[name] if whitened else np.zeros(0) for name in ("obs.mean", "obs.std"))
    average = np.full(len(bias), 1 / len(bias), np.float32)

    def act(obs: np.ndarray) -> np.ndarray:
        x = np.asarray(obs, np.float32)
        if whitened:
            x = np.minimum(np.maximum((x - mean) / std, -5.0), 5.0)
        x = x @ trunk
        x += bias
        x -= (x @ average)[..., None]
        x *= 1 / np.sqrt((x * x) @ average + np.float32(1e-5))[..., None]
        x *= gain
        x += shift
        x = np.tanh(x) @ hidden
        x += hidden_bias
        return np.tanh(np.maximum(x, 0) @ out + out_bias)

    return act


class Skill:
    """A policy with one skill as a plain callable: `skill(obs)` is the mean action, or the best choice, without noise.

    Takes one observation or a batch of them and gives actions in the environment's own range. Needs NumPy alone.
    """

    def __init__(
        self,
        arrays: Mapping[str, np.ndarray],
        about: Mapping[str, Any],
        to_vector: Callable[[Any], np.ndarray] | None = None,
        to_action: Callable[[np.ndarray], Any] | None = None,
    ):
        """`to_vector` flattens observations that are no arrays; `to_action` makes actions of what the policy gives."""
        self.arrays, self.about = dict(arrays), dict(about)
        self._act, self._to_vector, self._to_action = numpy_policy(arrays), to_vector, to_action

    @property
    def obs_dim(self) -> int:
        return len(self.arrays["trunk.weight"])

    @property
    def action_dim(self) -> int:
        return len(self.arrays["out.bias"])

    @property
    def vector(self) -> Float[np.ndarray, " skill"]:
        """The skill as the policy was given it."""
        return np.array(self.about["skill_vector"], np.float32)

    def __call__(self, obs: Any) -> Any:
        if self._to_vector is not None and not isinstance(obs, np.ndarray):
            obs = self._flattened(obs)
        try:
            obs = np.asarray(obs, np.float32)
        except (TypeError, ValueError):
            raise UserError(f"not an observation: {self.obs_dim} numbers are needed") from None
        if obs.shape[-1:] != (self.obs_dim,):
            raise UserError(f"an observation of shape {obs.shape}: {self.obs_dim} numbers are needed, one row each")
        action = self._act(obs)
        return action if self._to_action is None else self._to_action(action)

    def _flattened(self, obs: Any) -> np.ndarray:
        assert self._to_vector is not None
        try:
            return self._to_vector(obs)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"not an observation of {self.about['env']}: {type(error).__name__} {error}") from None

    def __repr__(self) -> str:
        about = self.about
        number = f" {about['skill']}" if about["skill"] != "" else ""
        where = about["task"] or about["env"]
        return f"Skill{number} of {about['method']} on {where}, seed {about['seed']}, {about['step']:,} steps"
