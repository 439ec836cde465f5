"""Every trick for speed that is not a formula: rounding, thin products, gradients written out, compiler options.

Weights, optimisers' states and results are float32 always. How matrix products round is JAX's own setting, which
`computing` gives a name of ours:

    float32   products of float32                                     jax.default_matmul_precision("float32")
    tf32      as JAX does by default: tf32 where a GPU has it         jax.default_matmul_precision("default")
    bf16      the same, and hidden layers are bfloat16 themselves     jax.default_matmul_precision("bfloat16")

As it is JAX's, a jitted function is compiled anew for each, and a method's own matrix products follow it as well.
`networks.py` has the networks that use these functions, and no tricks.
"""

import functools
import math
from contextlib import AbstractContextManager
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

Rounding = Literal["float32", "tf32", "bf16"]
Precision = Literal["auto", "float32", "tf32", "bf16"]
"""`auto` is bf16 on devices made for it, and tf32 elsewhere."""

SETTINGS: dict[Rounding, str] = {"float32": "float32", "tf32": "default", "bf16": "bfloat16"}
"""JAX's name of each."""

# Products with fewer rows of weights cost little, and what comes in (observations, codes) is worth more bits.
THIN = 128


# --- How products round -----------------------------------------------------------------------------------------------


def computing(precision: Precision) -> AbstractContextManager[Any]:
    """The precision of what is traced inside: open it in a jitted function, around all that the function does."""
    return jax.default_matmul_precision(SETTINGS[fastest() if precision == "auto" else precision])


def fastest() -> Rounding:
    """bf16 on TPUs and on NVIDIA's cards since Ampere; others have no units for it, and are slower with it."""
    device = jax.devices()[0]
    capability = str(getattr(device, "compute_capability", "0")).partition(".")[0]
    made_for_it = device.platform == "tpu" or (device.platform == "gpu" and int(capability) >= 8)
    return "bf16" if made_for_it else "tf32"


def compute_dtype() -> jnp.dtype:
    """The type of hidden layers in the precision that is set."""
    coarse = jax.config.jax_default_matmul_precision == SETTINGS["bf16"]  # type: ignore[attr-defined]
    return jnp.dtype(jnp.bfloat16 if coarse else jnp.float32)


def rounded_weights(networks: PyTree) -> PyTree:
    """The weights that products round to bfloat16, rounded; None in place of all else, and in float32 of all."""
    dtype = compute_dtype()

    def copy(leaf: Array) -> Array | None:
        return leaf.astype(dtype) if dtype != jnp.float32 and leaf.ndim == 2 and len(leaf) >= THIN else None

    return jax.tree.map(copy, networks)


def rounded(networks: PyTree, weights: PyTree | None = None) -> PyTree:
    """Networks as products use them, with `rounded_weights` of theirs where these are at hand.

    A gradient by these networks is one by the weights: rounding is passed over. It pays where weights are used more
    often than they change, as each use of others rounds them again.
    """
    return eqx.combine(rounded_weights(networks) if weights is None else weights, networks)


# --- Layers -----------------------------------------------------------------------------------------------------------


def affine(
    x: Float[Array, "*batch in"], weight: Float[Array, "in out"], bias: Float[Array, " out"], exact: bool = False
) -> Float[Array, "*batch out"]:
    """x·W + b in the precision that is set; `exact` results are not rounded to it, as outputs should not be."""
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


def affine_relu(
    x: Float[Array, "*batch in"], weight: Float[Array, "in out"], bias: Float[Array, " out"]
) -> Float[Array, "*batch out"]:
    """max(x·W + b, 0) in the precision that is set."""
    thin = len(weight) < THIN
    return relu(affine(x, weight, bias), apart=thin and compute_dtype() != jnp.float32)


@jax.custom_vjp
def inner_product(x: Float[Array, "batch both"], weight: Float[Array, "2 hidden"]) -> Float[Array, "batch 2"]:
    """Products of the first half of the features with the first weights, and of the second with the second."""
    return jnp.sum(x.reshape(len(x), *weight.shape).astype(jnp.float32) * weight, -1)


def _inner_product_backward(kept: tuple[Array, Array], g: Float[Array, "batch 2"]) -> tuple[Array, Array]:
    x, weight = kept
    halves = x.reshape(len(x), *weight.shape)
    slope = batch_sum((halves * g[..., None]).reshape(len(x), -1)).reshape(weight.shape)
    return (g[..., None] * weight).reshape(x.shape).astype(x.dtype), slope


inner_product.defvjp(lambda x, weight: (inner_product(x, weight), (x, weight)), _inner_product_backward)


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


# --- XLA --------------------------------------------------------------------------------------------------------------

# Kernels that do not wait for each other run side by side, which the small ones of a single seed gain a third from;
# and products that share a factor are not merged, which costs a copy of the others.
GPU_OPTIONS: dict[str, Any] = {
    "xla_gpu_command_buffer_scheduling_mode": "CONCURRENT",
    "xla_gpu_dot_merger_threshold_mb": 0,
}


@functools.cache
def compiler_options() -> dict[str, Any] | None:
    """XLA's options on a GPU; none where this version does not know them."""
    if jax.default_backend() != "gpu":
        return None
    try:
        jax.jit(lambda x: x, compiler_options=GPU_OPTIONS)(0)
    except jax.errors.JaxRuntimeError:
        return None
    return GPU_OPTIONS
