"""PIE-G (Yuan et al. 2022): what a frozen network sees in each frame, and how that changes from frame to frame.

    f_t = F(frame_t),    h = LayerNorm(W [f_2, …, f_k, f_2 − f_1, …, f_k − f_{k−1}] + b)

F are the early layers of a network that learned from ImageNet (`frozen.py`). W, b and the LayerNorm are all that is
trained. In the released code F's convolutions stay as they are and its BatchNorm does not: where the encoder learns, it
goes by the batch's statistics, and its averages, by which the policy acts, move towards them (`statistics`: moving).
With `fixed` averages f_t depends on nothing but the frame, so that it can be computed once and kept.
"""

from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from becl.nn.frozen import KINDS, Averages, FrozenName, averages_of, maps_of, side_of
from becl.nn.networks import Linear, orthogonal_layer, standardize
from becl.nn.precision import affine
from becl.nn.vision import COLORS

# Mean and deviation of ImageNet's colours, with which the networks were trained.
MEAN, DEVIATION = np.array([0.485, 0.456, 0.406], np.float32), np.array([0.229, 0.224, 0.225], np.float32)


@dataclass(frozen=True)
class PIEG:
    """Frozen features of the frames, fused by their differences, and one trained layer."""

    network: FrozenName = "resnet18"
    """Of which the frozen layers are."""
    weights: str = ""
    """Digest of its weights."""
    statistics: Literal["moving", "fixed"] = "moving"
    """BatchNorm's: moving as in the released code, which feeds it x/255 − 0.5; or fixed as they come with the weights,
    and then images have ImageNet's mean and deviation taken out, as nothing else would make up for it."""
    units: int = 1024
    """Of the trained layer."""

    def init(self, key: PRNGKeyArray, size: int, stack: int) -> "FusionNet":
        layer = orthogonal_layer(key, 2 * (stack - 1) * side_of(size) ** 2 * self.channels, self.units)
        averages = averages_of(self.weights) if self.statistics == "moving" else {}
        return FusionNet(layer, jnp.ones(self.units), jnp.zeros(self.units), averages, self)

    @property
    def channels(self) -> int:
        """Maps that the frozen layers make of a frame."""
        return KINDS[self.network].channels

    def features(self, size: int) -> int:
        return self.units

    @property
    def smallest(self) -> int:
        return 8

    def maps(
        self, averages: Averages, images: Shaped[Array, "*batch h w stacked"], learning: bool = False
    ) -> tuple[Float[Array, "*batch rows columns maps"], Averages]:
        """What the frozen layers make of each frame, behind each other as the frames are, and the averages after it."""
        *batch, height, width, stacked = images.shape
        frames = jnp.moveaxis(images.reshape(*batch, height, width, -1, COLORS), -2, -4)
        x = frames.reshape(-1, height, width, COLORS).astype(jnp.float32) / 255
        moving = self.statistics == "moving"
        x = x - 0.5 if moving else (x - MEAN) / DEVIATION
        averages = averages if moving else averages_of(self.weights)
        maps, moved = maps_of(self.network, self.weights, averages, x, learning and moving)
        maps = jax.lax.stop_gradient(maps).reshape(*batch, stacked // COLORS, *maps.shape[1:])
        return jnp.moveaxis(maps, -4, -2).reshape(*batch, *maps.shape[-3:-1], -1), moved


class FusionNet(eqx.Module):
    """The trained layer behind the frozen ones."""

    layer: Linear
    gain: Float[Array, " units"]
    shift: Float[Array, " units"]
    averages: Averages
    """BatchNorm's, where they move."""
    spec: PIEG = eqx.field(static=True)

    def __call__(self, images: Shaped[Array, "*batch h w c"]) -> Float[Array, "*batch features"]:
        return self.see(self.look(images)[0])

    def look(
        self, images: Shaped[Array, "*batch h w c"], learning: bool = False
    ) -> tuple[Float[Array, "*batch rows columns maps"], "FusionNet"]:
        """What does not change while one batch is learned from, and the network after that; images that are maps
        already are left as they are."""
        if images.dtype != jnp.uint8:
            return images.astype(jnp.float32), self
        maps, averages = self.spec.maps(self.averages, images, learning)
        return maps, self.with_averages(averages) if self.averages else self

    def with_averages(self, averages: Averages) -> "FusionNet":
        return FusionNet(self.layer, self.gain, self.shift, averages, self.spec)

    def see(self, maps: Float[Array, "*batch rows columns maps"]) -> Float[Array, "*batch features"]:
        *batch, rows, columns, _ = maps.shape
        frames = maps.reshape(*batch, rows, columns, -1, self.spec.channels)
        now, before = frames[..., 1:, :], frames[..., :-1, :]
        fused = jnp.concatenate([now, now - before], -2).reshape(*batch, -1)
        out = affine(fused, self.layer.weight, self.layer.bias, exact=True)
        return standardize(out, -1) * self.gain + self.shift
