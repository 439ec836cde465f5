"""Robots that are seen instead of measured: simulations whose observations are the last frames of a camera.

    o_t = (f_{t-2}, f_{t-1}, f_t),      at an episode's start three times the first frame

Every action is taken `repeat` times, its rewards are added up, and a frame shows where the last one led to, as in URLB.
Frames that are drawn on JAX's device stay there.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float32, UInt8

from becl.envs.frames import Frames
from becl.envs.simulations import Simulations, Step
from becl.envs.spec import EnvSpec, Images


class Pictures:
    """Simulations behind a camera. What they observe in numbers is kept beside what is seen."""

    def __init__(self, inner: Any, parts: Sequence[Simulations], frames: Frames, images: Images, repeat: int):
        """`inner` steps the simulations `parts`, of one model, together."""
        self.inner, self.parts, self.frames, self.images, self.repeat = inner, parts, frames, images, repeat
        self.num_envs = inner.num_envs
        steps = -(-inner.spec.episode_length // repeat)
        self.spec = EnvSpec(int(np.prod(images.shape)), inner.spec.action_dim, steps)
        self.numbers: Float32[np.ndarray, "n o"] = np.zeros((self.num_envs, inner.spec.obs_dim), np.float32)
        """What would be observed now without a camera."""
        self.plain: Step | None = None
        """The last step, with such observations."""
        self._seen: Any = jnp.zeros((self.num_envs, *images.shape), images.kind)

    def reset(self) -> UInt8[Array, "n h w c"]:
        return self._begin(self.inner.reset())

    def restart(self) -> UInt8[Array, "n h w c"]:
        return self._begin(getattr(self.inner, "restart", self.inner.reset)())

    def step(self, action: np.ndarray) -> Step:
        """A step of every simulation; where an episode ends between two repetitions, the rest of them is the beginning
        of the next and earns nothing."""
        reward = np.zeros(self.num_envs)
        over, ended = np.zeros((2, self.num_envs), bool)
        led_to, qpos = self.numbers, None
        for _ in range(self.repeat):
            step = self.inner.step(action)
            reward += np.where(over, 0.0, step.reward)
            led_to = np.where(over[:, None], led_to, step.next_obs)
            latest = np.concatenate([part.led_to for part in self.parts])
            qpos = latest if qpos is None else np.where(over[:, None], qpos, latest)
            if step.terminated.size:
                ended |= step.terminated & ~over
            over |= step.truncated
            self.numbers = step.obs
        assert qpos is not None
        newest = self.frames.draw(qpos)
        first = self._draw_now() if over.any() else newest
        self._seen, next_seen = advanced(self._seen, newest, first, over)
        self.plain = Step(self.numbers, reward, over, led_to, ended)
        return Step(self._seen, reward, over, next_seen, ended)

    def get_state(self) -> tuple[Any, np.ndarray, np.ndarray]:
        return self.inner.get_state(), np.asarray(self._seen), self.numbers

    def set_state(self, state: tuple[Any, np.ndarray, np.ndarray]) -> None:
        inner, seen, self.numbers = state
        self.inner.set_state(inner)
        self._seen = jnp.asarray(seen)

    def close(self) -> None:
        self.inner.close()
        self.frames.close()

    def _begin(self, numbers: np.ndarray) -> Array:
        self.numbers = numbers
        self._seen = jnp.tile(jnp.asarray(self._draw_now()), self.images.stack)
        return self._seen

    def _draw_now(self) -> Any:
        return self.frames.draw(np.concatenate([part.qpos for part in self.parts]))


def in_numbers(environments: Any, step: Step) -> Step:
    """A step that environments have just taken, as it is without a camera."""
    return step if getattr(environments, "plain", None) is None else environments.plain


@jax.jit
def advanced(
    seen: UInt8[Array, "n h w stacked"],
    newest: UInt8[Array, "n h w c"],
    first: UInt8[Array, "n h w c"],
    over: Bool[Array, " n"],
) -> tuple[Any, Any]:
    """What is seen next, where an episode is over the next one's first frame alone; and what the step led to."""
    led_to = jnp.concatenate([seen[..., newest.shape[-1] :], newest], -1)
    begun = jnp.tile(first, seen.shape[-1] // newest.shape[-1])
    return jnp.where(over[:, None, None, None], begun, led_to), led_to
