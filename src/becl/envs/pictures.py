"""What is seen instead of measured: environments whose observations are the last frames of a camera.

    o_t = (f_{t-2}, f_{t-1}, f_t),      at an episode's start three times the first frame

Every action is taken `repeat` times, its rewards are added up, and a frame shows where the last one led to, as in URLB.
A `CameraEye` draws robots; a `ScreenEye` shows the images that other people's environments give. Frames that are made
on JAX's device stay there.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float32, Shaped

from becl.envs.frames import Frames
from becl.envs.images import resized
from becl.envs.simulations import Simulations, Step
from becl.envs.spec import EnvSpec, Images


@runtime_checkable
class Eye(Protocol):
    """Makes frames of what environments are like after a step."""

    numbers: int
    """Numbers that say where an environment is, for those who measure."""

    def begun(self, obs: np.ndarray) -> np.ndarray:
        """What a frame is made of, a row an environment, where episodes begin with these observations."""
        ...

    def led_to(self, step: Step) -> np.ndarray:
        """The same, where a step has led to."""
        ...

    def draw(self, rows: np.ndarray) -> Any:
        """Frames of such rows."""
        ...

    def measured(self, obs: np.ndarray) -> Float32[np.ndarray, "n o"]:
        """The numbers of these observations."""
        ...

    def close(self) -> None: ...


class CameraEye:
    """Draws the poses of simulations of one model, which observe numbers."""

    def __init__(self, parts: Sequence[Simulations], frames: Frames):
        self.parts, self.frames = parts, frames
        self.numbers = parts[0].spec.obs_dim

    def begun(self, obs: np.ndarray) -> np.ndarray:
        return np.concatenate([part.qpos for part in self.parts])

    def led_to(self, step: Step) -> np.ndarray:
        return np.concatenate([part.led_to for part in self.parts])

    def draw(self, rows: np.ndarray) -> Any:
        return self.frames.draw(rows)

    def measured(self, obs: np.ndarray) -> Float32[np.ndarray, "n o"]:
        return obs

    def close(self) -> None:
        self.frames.close()


class ScreenEye:
    """Shows observations that are images, in another size. They are measured by a few grey dots, as there is no more to
    know of where such an environment is."""

    DOTS = 8
    numbers = DOTS**2

    def __init__(self, size: int, look: Callable[[Any], Any] = lambda frames: frames):
        """`look` makes of frames what is kept of them."""
        self.size, self.look = size, look

    def begun(self, obs: np.ndarray) -> np.ndarray:
        return obs

    def led_to(self, step: Step) -> np.ndarray:
        return step.next_obs

    def draw(self, rows: np.ndarray) -> Any:
        return self.look(resized(rows, self.size, self.size))

    def measured(self, obs: np.ndarray) -> Float32[np.ndarray, "n o"]:
        small = np.asarray(resized(obs, self.DOTS, self.DOTS), np.float32)
        return small.mean(-1).reshape(len(obs), -1) / 255

    def close(self) -> None:
        """There is nothing to close."""


class Pictures:
    """Environments behind an eye. What they are like in numbers is kept beside what is seen."""

    def __init__(self, inner: Any, eye: Eye, images: Images, repeat: int):
        self.inner, self.eye, self.images, self.repeat = inner, eye, images, repeat
        self.num_envs = inner.num_envs
        steps = -(-inner.spec.episode_length // repeat)
        self.spec: EnvSpec = inner.spec._replace(obs_dim=int(np.prod(images.shape)), episode_length=steps)
        self.numbers: Float32[np.ndarray, "n o"] = np.zeros((self.num_envs, eye.numbers), np.float32)
        """What would be observed now without a camera."""
        self.plain: Step | None = None
        """The last step, with such observations."""
        self._seen: Any = jnp.zeros((self.num_envs, *images.shape), images.kind)

    def reset(self) -> Shaped[Array, "n h w c"]:
        return self._begin(self.inner.reset())

    def restart(self) -> Shaped[Array, "n h w c"]:
        return self._begin(getattr(self.inner, "restart", self.inner.reset)())

    @property
    def resumable(self) -> bool:
        return getattr(self.inner, "resumable", True)

    def step(self, action: np.ndarray) -> Step:
        """A step of every environment; where an episode ends between two repetitions, the rest of them is the beginning
        of the next and earns nothing."""
        reward = np.zeros(self.num_envs)
        over, ended = np.zeros((2, self.num_envs), bool)
        led_to, rows, step = self.numbers, None, None
        for _ in range(self.repeat):
            step = self.inner.step(action)
            reward += np.where(over, 0.0, step.reward)
            led_to = np.where(over[:, None], led_to, self.eye.measured(step.next_obs))
            latest = self.eye.led_to(step)
            rows = latest if rows is None else np.where(along(over, latest), rows, latest)
            if step.terminated.size:
                ended |= step.terminated & ~over
            over |= step.truncated
        assert rows is not None
        assert step is not None
        self.numbers = self.eye.measured(step.obs)
        newest = self.eye.draw(rows)
        first = self.eye.draw(self.eye.begun(step.obs)) if over.any() else newest
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
        self.eye.close()

    def _begin(self, obs: np.ndarray) -> Array:
        self.numbers = self.eye.measured(obs)
        self._seen = jnp.tile(jnp.asarray(self.eye.draw(self.eye.begun(obs))), self.images.stack)
        return self._seen


def along(flags: Bool[np.ndarray, " n"], rows: Shaped[np.ndarray, "n *rest"]) -> Bool[np.ndarray, "n *ones"]:
    """Flags that go with all numbers of their row."""
    return flags.reshape(-1, *[1] * (rows.ndim - 1))


def in_numbers(environments: Any, step: Step) -> Step:
    """A step that environments have just taken, as it is without a camera."""
    return step if getattr(environments, "plain", None) is None else environments.plain


@jax.jit
def advanced(
    seen: Shaped[Array, "n h w stacked"],
    newest: Shaped[Array, "n h w c"],
    first: Shaped[Array, "n h w c"],
    over: Bool[Array, " n"],
) -> tuple[Any, Any]:
    """What is seen next, where an episode is over the next one's first frame alone; and what the step led to."""
    led_to = jnp.concatenate([seen[..., newest.shape[-1] :], newest], -1)
    begun = jnp.tile(first, seen.shape[-1] // newest.shape[-1])
    return jnp.where(over[:, None, None, None], begun, led_to), led_to
