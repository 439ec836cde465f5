"""Observations of other people's environments that are images: found in a space, and brought to one form.

An image is a Box of bytes, 0 to 255, as [height, width], [height, width, channels] or [channels, height, width] with 1,
3 or 4 channels: grey, colours, or colours and how opaque they are. Frames made of it always have three colours.
"""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt8

from becl.errors import UserError

SMALLEST = 16
"""Pixels of a side. Smaller arrays of bytes are taken for numbers, as the 7×7 cells of grid worlds are."""
CHANNELS = (1, 3, 4)


class Image(NamedTuple):
    """Which part of an observation is an image, and what it looks like there."""

    path: tuple[Any, ...]
    """Keys of a Dict, or places in a Tuple, from outside in."""
    height: int
    width: int
    channels_first: bool
    others: tuple[str, ...]
    """Names of the other parts, which are not seen."""

    def of(self, obs: Any) -> UInt8[np.ndarray, "*batch h w 3"]:
        """The image in an observation, or in a batch of them as Gymnasium's vector environments give it."""
        for key in self.path:
            obs = obs[key]
        found = np.asarray(obs)
        if self.channels_first:
            found = np.moveaxis(found, -3, -1)
        elif found.shape[-2:] == (self.height, self.width):
            found = found[..., None]
        return np.repeat(found, 3, -1) if found.shape[-1] == 1 else found[..., :3]


def find_image(space: Any) -> Image | None:
    """The one image of an observation; None where there is none. Refuses several, and what is almost one."""
    parts = list(boxes(space))
    found = [(path, box) for path, box in parts if is_image(box, name_of(path))]
    if not found:
        return None
    if len(found) > 1:
        names = ", ".join(name_of(path) for path, _ in found)
        raise UserError(f"observation has {len(found)} images ({names}): one is supported; keep one by a wrapper")
    path, box = found[0]
    height, width, first = layout_of(box.shape)
    others = tuple(name_of(other) for other, _ in parts if other != path)
    return Image(path, height, width, first, others)


def boxes(space: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The spaces nested in a space."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict | spaces.Tuple):
        inner = space.items() if isinstance(space, spaces.Dict) else enumerate(space)
        for key, part in inner:
            yield from boxes(part, (*path, key))
    else:
        yield path, space


def name_of(path: tuple[Any, ...]) -> str:
    return ".".join(map(str, path))


def is_image(box: Any, name: str) -> bool:
    """Whether a space is an image. One that looks like it and is not of bytes, or has other channels, is refused: as a
    vector it would be of no use to anybody."""
    from gymnasium import spaces

    if not isinstance(box, spaces.Box) or len(box.shape) not in (2, 3):
        return False
    sides = sorted(box.shape)[-2:]
    if sides[0] < SMALLEST:
        return False
    what = f"observation{f' {name!r}' if name else ''} of shape {tuple(box.shape)} and type {box.dtype}"
    bytes_only = box.dtype == np.uint8
    if len(box.shape) == 2:
        return bytes_only
    least = min(box.shape[0], box.shape[-1])
    if least in CHANNELS and bytes_only:
        return True
    bounds = float(np.min(box.low)), float(np.max(box.high))
    if least in CHANNELS and bounds in ((0, 1), (0, 255), (-1, 1)):
        raise UserError(f"{what}: images are of bytes (uint8), 0 to 255; convert it by a wrapper")
    if bytes_only:
        raise UserError(f"{what}: images have 1, 3 or 4 channels, first or last")
    return False


def layout_of(shape: tuple[int, ...]) -> tuple[int, int, bool]:
    """Height, width, and whether channels come first."""
    if len(shape) == 2:
        return shape[0], shape[1], False
    if shape[-1] in CHANNELS:
        return shape[0], shape[1], False
    return shape[1], shape[2], True


def resized(frames: UInt8[Any, "n h w 3"], height: int, width: int) -> UInt8[Array, "n height width 3"]:
    """Images of another size: weighted means of the pixels around, without regard to what was square before."""
    return jnp.asarray(frames) if frames.shape[1:3] == (height, width) else _resized(frames, height, width)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _resized(frames: UInt8[Any, "n h w 3"], height: int, width: int) -> UInt8[Array, "n height width 3"]:
    shape = (len(frames), height, width, 3)
    smooth = jax.image.resize(frames.astype(jnp.float32), shape, "linear", antialias=True)
    return jnp.clip(jnp.round(smooth), 0, 255).astype(jnp.uint8)
