"""Seeing: URLB's convolutional encoder, and the random shift of images that it learns from.

An image is (height, width, channels), uint8; several pictures in a row stand behind each other on the channels, oldest
first. Convolutions are products of patches and weights. Seeds are vmapped, weights and all, and what others would write
as a convolution becomes a grouped one then, which takes many times as long; a product of matrices stays one.
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, Shaped, UInt8

from becl.nn.networks import Linear, orthogonal_layer

KERNEL = 3  # Pixels of a patch's side.
COLORS = 3  # Red, green and blue.


class ConvNet(eqx.Module):
    layers: tuple[Linear, ...]
    """Weights from a patch (row by row, column by column, channel by channel) to filters."""

    def __call__(self, images: UInt8[Array, "*batch h w c"]) -> Float[Array, "*batch features"]:
        return self.see(images)

    def look(
        self, images: UInt8[Array, "*batch h w c"], learning: bool = False
    ) -> tuple[UInt8[Array, "*batch h w c"], "ConvNet"]:
        """What does not change while one batch is learned from, and the network after that: here all is trained."""
        return images, self

    def see(self, images: UInt8[Array, "*batch h w c"]) -> Float[Array, "*batch features"]:
        x = images.astype(jnp.float32) / 255 - 0.5
        for number, layer in enumerate(self.layers):
            x = layer.hidden(patches(x, stride=1 if number else 2))
        return x.reshape(*x.shape[:-3], -1).astype(jnp.float32)


@dataclass(frozen=True)
class CNN:
    """3×3 convolutions without padding, the first with stride 2, ReLU behind each: 39,200 features of 84×84 images."""

    filters: int = 32
    """Filters of each convolution."""
    layers: int = 4

    def init(self, key: PRNGKeyArray, size: int, stack: int) -> ConvNet:
        keys = jax.random.split(key, self.layers)
        inputs = [COLORS * stack] + [self.filters] * (self.layers - 1)
        areas = [KERNEL**2 * count for count in inputs]
        return ConvNet(
            tuple(orthogonal_layer(k, area, self.filters, 2**0.5) for k, area in zip(keys, areas, strict=True))
        )

    def side(self, size: int) -> int:
        """Height and width of what comes out, for images of this height and width; below 1 they are too small."""
        return (size - KERNEL) // 2 + 1 - (KERNEL - 1) * (self.layers - 1)

    def features(self, size: int) -> int:
        return self.side(size) ** 2 * self.filters

    @property
    def smallest(self) -> int:
        """Height of the smallest images that it can take."""
        return 2 * (KERNEL - 1) * (self.layers - 1) + KERNEL


def patches(x: Float[Array, "*batch h w c"], stride: int) -> Float[Array, "*batch rows columns patch"]:
    """Every patch as a vector."""
    height, width = x.shape[-3:-1]
    rows, columns = ((side - KERNEL) // stride + 1 for side in (height, width))
    parts = [
        x[..., i : i + stride * (rows - 1) + 1 : stride, j : j + stride * (columns - 1) + 1 : stride, :]
        for i in range(KERNEL)
        for j in range(KERNEL)
    ]
    return jnp.concatenate(parts, -1)


def random_shift(key: PRNGKeyArray, images: Shaped[Array, "batch h w c"], most: int) -> Shaped[Array, "batch h w c"]:
    """Each image moved by up to `most` pixels each way, all its channels alike; its edge is repeated where it ends."""
    if most == 0:
        return images
    moved = jax.random.randint(key, (2, len(images), 1), -most, most + 1)
    height, width = images.shape[1:3]
    rows = jnp.clip(jnp.arange(height) + moved[0], 0, height - 1)
    columns = jnp.clip(jnp.arange(width) + moved[1], 0, width - 1)
    return jax.vmap(lambda image, row, column: image[row][:, column])(images, rows, columns)
