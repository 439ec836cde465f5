"""Networks as pytrees of arrays, how they start, and the optimiser that moves them.

Two traditions meet here and both matter for reproducing numbers: URLB starts every layer orthogonal and steps with the
usual Adam; the maze study starts every layer uniform in ±1/sqrt(fan-in) and steps with an Adam whose epsilon is large
and stands beside the uncorrected second moment.
"""

import contextlib
import contextvars
import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

Rounding = Literal["float32", "tf32", "bf16"]
Precision = Literal["auto", "float32", "tf32", "bf16"]
"""`auto` is bf16 on devices made for it, and tf32 elsewhere."""

_ROUNDING: contextvars.ContextVar[Rounding] = contextvars.ContextVar("rounding", default="tf32")


@contextlib.contextmanager
def computing(precision: Precision) -> Iterator[None]:
    """How matrix products are computed in what is traced inside. Weights and optimiser states are always float32.

    float32 and tf32 round as they say (a CPU has no tf32 and keeps float32); bf16 also keeps hidden layers in it.
    """
    rounding = fastest() if precision == "auto" else precision
    token = _ROUNDING.set(rounding)
    try:
        with jax.default_matmul_precision("float32" if rounding == "float32" else "default"):
            yield
    finally:
        _ROUNDING.reset(token)


def fastest() -> Rounding:
    """bf16 on TPUs and on NVIDIA's cards since Ampere; others have no units for it, and are slower with it."""
    device = jax.devices()[0]
    capability = str(getattr(device, "compute_capability", "0")).partition(".")[0]
    made_for_it = device.platform == "tpu" or (device.platform == "gpu" and int(capability) >= 8)
    return "bf16" if made_for_it else "tf32"


def compute_dtype() -> jnp.dtype:
    """Of hidden layers."""
    return jnp.dtype(jnp.bfloat16 if _ROUNDING.get() == "bf16" else jnp.float32)


# Products with fewer rows of weights cost little, and what comes in (observations, codes) is worth more bits.
THIN = 128


def affine(
    x: Float[Array, "*batch in"], weight: Float[Array, "in out"], bias: Float[Array, " out"], exact: bool = False
) -> Float[Array, "*batch out"]:
    """x·W + b in the precision of the day; `exact` results are not rounded to it, as outputs should not be."""
    return _affine(x, weight, bias, compute_dtype(), jnp.dtype(jnp.float32) if exact else compute_dtype())


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _affine(x: Array, weight: Array, bias: Array, dtype: jnp.dtype, result: jnp.dtype) -> Array:
    if len(weight) < THIN:
        return fine_product(with_one(x), jnp.concatenate([weight, bias[None]])).astype(result)
    product = jnp.matmul(x.astype(dtype), weight.astype(dtype), preferred_element_type=result)
    return (product + bias).astype(result)


def _affine_backward(
    dtype: jnp.dtype, result: jnp.dtype, kept: tuple[Array, Array], g: Array
) -> tuple[Array, Array, Array]:
    """Gradients are computed in the given type always, which JAX would not do where the result has more bits."""
    del result
    x, weight = kept
    fine, g = g, g.astype(dtype)
    rows, flat = x.reshape(-1, x.shape[-1]).astype(dtype), g.reshape(-1, g.shape[-1])
    if len(weight) < THIN:
        slopes = (with_one(rows).T @ flat).astype(weight.dtype)
        slope, bias = slopes[:-1], slopes[-1]
    else:
        slope, bias = (rows.T @ flat).astype(weight.dtype), batch_sum(fine)
    return (g @ weight.T.astype(dtype)).astype(x.dtype), slope, bias


_affine.defvjp(lambda x, weight, bias, *types: (_affine(x, weight, bias, *types), (x, weight)), _affine_backward)


def fine_product(x: Float[Array, "*batch in"], weight: Float[Array, "in out"]) -> Float[Array, "*batch out"]:
    """x·W where hidden layers may be bfloat16 and inputs should not lose as many bits.

    There factors are float16: the bits of tf32 at twice its speed, for numbers from 6e-5 to 65,504 (smaller ones are
    off by 3e-8 at most, larger ones count as the largest). A TPU has no units for them and does as it does by default.
    """
    if compute_dtype() == jnp.bfloat16 and jax.default_backend() != "tpu":
        most = float(jnp.finfo(jnp.float16).max)
        x, weight = (jnp.clip(part.astype(jnp.float32), -most, most).astype(jnp.float16) for part in (x, weight))
    return jnp.matmul(x, weight, preferred_element_type=jnp.float32)


def with_one(x: Float[Array, "*batch n"]) -> Float[Array, "*batch n+1"]:
    """With an input whose weight is the bias: it is added, and its gradient found, in the product of the others."""
    return jnp.concatenate([x, jnp.ones((*x.shape[:-1], 1), x.dtype)], -1)


def batch_sum(x: Float[Array, "*batch dim"]) -> Float[Array, " dim"]:
    """In float32, and in two steps: a GPU sums down long columns of an array with few of its cores."""
    rows = math.prod(x.shape[:-1])
    parts = x.astype(jnp.float32).reshape(math.gcd(rows, 8), -1, x.shape[-1]).sum(1)
    return jax.lax.optimization_barrier(parts).sum(0)


def relu(x: Float[Array, "*batch dim"], apart: bool = False) -> Float[Array, "*batch dim"]:
    """max(x, 0); its gradient remembers the result rather than x, which need not be kept then.

    `apart`: computed once, with the product before it, and not again in every product behind it.
    """
    return _relu(x, apart)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _relu(x: Array, apart: bool) -> Array:
    y = jnp.maximum(x, 0)
    return jax.lax.optimization_barrier(y) if apart else y


_relu.defvjp(lambda x, apart: (y := _relu(x, apart), y), lambda _, y, g: (jnp.where(y > 0, g, 0),))


class Moments(NamedTuple):
    """Running sums over all data seen, without forgetting."""

    number: Float[Array, ""]
    total: Float[Array, " dim"]
    squares: Float[Array, " dim"]


class Linear(eqx.Module):
    weight: Float[Array, "in out"]
    bias: Float[Array, " out"]

    def __call__(self, x: Float[Array, "*batch in"]) -> Float[Array, "*batch out"]:
        return affine(x, self.weight, self.bias, exact=True)

    def hidden(self, x: Float[Array, "*batch in"]) -> Float[Array, "*batch out"]:
        """With ReLU behind it."""
        thin = len(self.weight) < THIN
        return relu(affine(x, self.weight, self.bias), apart=thin and compute_dtype() != jnp.float32)


class MLP(eqx.Module):
    """Linear layers with ReLU between them; inputs are whitened first when `moments` are kept."""

    layers: tuple[Linear, ...]
    moments: Moments | None = None

    def __call__(self, x: Float[Array, "*batch in"]) -> Float[Array, "*batch out"]:
        if self.moments is not None:
            x = whiten(jax.lax.stop_gradient(self.moments), x)
        for layer in self.layers[:-1]:
            x = layer.hidden(x)
        return self.layers[-1](x)

    def observe(self, x: Float[Array, "*batch in"]) -> "MLP":
        """The same network having seen `x` (changes nothing unless it keeps moments)."""
        if self.moments is None:
            return self
        return MLP(self.layers, add_moments(self.moments, x))


class Trunk(eqx.Module):
    """Linear, LayerNorm, tanh: the first layer of URLB's networks."""

    linear: Linear
    gain: Float[Array, " out"]
    shift: Float[Array, " out"]

    def __call__(self, x: Float[Array, "*batch in"]) -> Float[Array, "*batch out"]:
        return squash(affine(x, self.linear.weight, self.linear.bias), self.gain, self.shift)


@jax.custom_vjp
def squash(x: Float[Array, "*b d"], gain: Float[Array, " d"], shift: Float[Array, " d"]) -> Float[Array, "*b d"]:
    """tanh(LayerNorm(x)). Its gradient keeps x alone and computes the rest again: less to write and read."""
    return _squash(x, gain, shift)[0]


def _squash(x: Float[Array, "*b d"], gain: Float[Array, " d"], shift: Float[Array, " d"]):
    wide = x.astype(jnp.float32)
    # One pass instead of two. The mean over so many units is near zero, so that nothing cancels.
    mean = wide.mean(-1, keepdims=True)
    variance = jnp.square(wide).mean(-1, keepdims=True) - jnp.square(mean)
    scale = jax.lax.rsqrt(jnp.maximum(variance, 0.0) + 1e-5)
    normal = (wide - mean) * scale
    return jnp.tanh(normal * gain + shift).astype(x.dtype), mean, scale


def _squash_backward(kept: tuple[Array, ...], g: Array) -> tuple[Array, Array, Array]:
    # The barriers keep XLA from storing what the forward pass computed, and from a kernel for everything at once.
    x, gain, shift, mean, scale = jax.lax.optimization_barrier(kept)
    normal = (x.astype(jnp.float32) - mean) * scale
    inner = g.astype(jnp.float32) * (1 - jnp.square(jnp.tanh(normal * gain + shift)))
    # Rounded like the layer, so that it takes half the memory.
    inner = jax.lax.optimization_barrier(inner.astype(x.dtype)).astype(jnp.float32)
    outer = inner * gain
    level, along = jax.lax.optimization_barrier(
        (outer.mean(-1, keepdims=True), (outer * normal).mean(-1, keepdims=True))
    )
    out = scale * (outer - level - normal * along)
    return out.astype(x.dtype), batch_sum(inner * normal), batch_sum(inner)


def _squash_forward(x: Array, gain: Array, shift: Array) -> tuple[Array, tuple[Array, ...]]:
    y, mean, scale = _squash(x, gain, shift)
    return y, (x, gain, shift, mean, scale)


squash.defvjp(_squash_forward, _squash_backward)


@dataclass(frozen=True)
class Network:
    """An MLP's hyper-parameters."""

    hidden: tuple[int, ...] = (1024, 1024)
    """Width of each hidden layer."""
    start: Literal["orthogonal", "uniform"] = "orthogonal"
    """Initial weights: orthogonal with zero bias (URLB), or uniform in ±1/sqrt(fan-in) (maze study)."""
    normalize: bool = False
    """Whiten inputs with running statistics of all data seen."""

    def init(self, key: PRNGKeyArray, in_dim: int, out_dim: int) -> MLP:
        sizes = (in_dim, *self.hidden, out_dim)
        keys = jax.random.split(key, len(sizes) - 1)
        layer = {"orthogonal": orthogonal_layer, "uniform": uniform_layer}[self.start]
        layers = tuple(layer(k, i, o) for k, i, o in zip(keys, sizes[:-1], sizes[1:], strict=True))
        return MLP(layers, init_moments(in_dim) if self.normalize else None)


def orthogonal_layer(key: PRNGKeyArray, in_dim: int, out_dim: int, gain: float = 1.0) -> Linear:
    weight = jax.nn.initializers.orthogonal(gain)(key, (in_dim, out_dim))
    return Linear(weight, jnp.zeros(out_dim))


def uniform_layer(key: PRNGKeyArray, in_dim: int, out_dim: int) -> Linear:
    bound = in_dim**-0.5
    weight_key, bias_key = jax.random.split(key)
    weight = jax.random.uniform(weight_key, (in_dim, out_dim), minval=-bound, maxval=bound)
    return Linear(weight, jax.random.uniform(bias_key, (out_dim,), minval=-bound, maxval=bound))


def init_trunk(key: PRNGKeyArray, in_dim: int, out_dim: int) -> Trunk:
    return Trunk(orthogonal_layer(key, in_dim, out_dim), jnp.ones(out_dim), jnp.zeros(out_dim))


def init_moments(dim: int) -> Moments:
    return Moments(jnp.array(0.01), jnp.zeros(dim), jnp.full(dim, 0.01))


def add_moments(moments: Moments, x: Float[Array, "*batch dim"]) -> Moments:
    x = x.reshape(-1, x.shape[-1])
    return Moments(moments.number + len(x), moments.total + x.sum(0), moments.squares + jnp.square(x).sum(0))


def mean_and_std(moments: Moments) -> tuple[Float[Array, " dim"], Float[Array, " dim"]]:
    mean = moments.total / moments.number
    variance = jnp.maximum(moments.squares / moments.number - jnp.square(mean), 0.01)
    return mean, jnp.sqrt(variance)


def whiten(moments: Moments, x: Float[Array, "*batch dim"]) -> Float[Array, "*batch dim"]:
    mean, std = mean_and_std(moments)
    return jnp.clip((x - mean) / std, -5.0, 5.0)


def unit(x: Float[Array, "*batch dim"]) -> Float[Array, "*batch dim"]:
    """Projection on the unit sphere."""
    squares = jnp.sum(jnp.square(x), -1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.maximum(squares, 1e-24))


def standardize(x: Float[Array, "*batch dim"], axis: int) -> Float[Array, "*batch dim"]:
    """Mean 0 and biased variance 1 along an axis, as in LayerNorm (-1) and BatchNorm (0)."""
    # Not jax.nn.standardize, whose mean of squares less square of mean turns negative far from the origin.
    return (x - x.mean(axis, keepdims=True)) * jax.lax.rsqrt(x.var(axis, keepdims=True) + 1e-5)


def norm(x: Float[Array, "*batch dim"]) -> Float[Array, "*batch"]:
    """Euclidean length; where it is zero, so is its gradient."""
    squares = jnp.sum(jnp.square(x), -1)
    positive = squares > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, squares, 1.0)), 0.0)


def wide_weights(networks: PyTree) -> PyTree:
    """bfloat16 copies of the weights that products round to it; None in place of all else, and in float32 of all."""
    dtype = compute_dtype()

    def copy(leaf: Array) -> Array | None:
        return leaf.astype(dtype) if dtype != jnp.float32 and leaf.ndim == 2 and len(leaf) >= THIN else None

    return jax.tree.map(copy, networks)


def coarse(networks: PyTree, copies: PyTree | None = None) -> PyTree:
    """Networks as products use them; with copies of their wide weights where these are at hand."""
    return eqx.combine(wide_weights(networks) if copies is None else copies, networks)


def follow(target: PyTree, network: PyTree, rate: float) -> PyTree:
    """A target network moved towards its network: rate·θ + (1 − rate)·θ̄."""
    return jax.tree.map(lambda old, new: rate * new + (1 - rate) * old, target, network)


class AdamState(NamedTuple):
    mean: PyTree
    square: PyTree
    decay: Float[Array, " 2"]
    """β₁ᵗ and β₂ᵗ after t steps."""


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba 2015): θ ← θ − η √(1−β₂ᵗ)/(1−β₁ᵗ) · m / (√v + ε̂)."""

    learning_rate: float = 1e-4
    eps: float = 1e-8
    corrected: bool = True
    """Whether ε is added to the bias-corrected √v, as usual: ε̂ = ε √(1−β₂ᵗ). The maze study has ε̂ = ε, so that its
    1e-3 acts like 0.03 at the first step and like 1e-3 only after thousands."""

    def init(self, params: PyTree) -> AdamState:
        return AdamState(jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params), jnp.ones(2))

    def update(self, params: PyTree, grads: PyTree, state: AdamState) -> tuple[PyTree, AdamState]:
        b1, b2 = 0.9, 0.999
        grads = jax.tree.map(lambda g, m: g.astype(m.dtype), grads, state.mean)
        # Multiplied up rather than raised to a power: what is this cheap, XLA computes wherever it is needed.
        decay = state.decay * jnp.array([b1, b2])
        mean = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mean, grads)
        square = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * jnp.square(g), state.square, grads)
        root = jnp.sqrt(1 - decay[1])
        rate = self.learning_rate * root / (1 - decay[0])
        eps = self.eps * root if self.corrected else self.eps
        moved = jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) + eps), params, mean, square)
        return moved, AdamState(mean, square, decay)
