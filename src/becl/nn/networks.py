"""Networks as pytrees of arrays, and how they start.

Two traditions meet here and both matter for reproducing numbers: URLB starts every layer orthogonal, the maze study
uniform in ±1/sqrt(fan-in). How layers are computed quickly is in `precision.py`.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_type_hints

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from becl.nn.precision import affine, affine_relu, squash
from becl.specs import is_specs

Widths = Annotated[tuple[int, ...], "widths of hidden layers"]
"""An option of a spec that `--hidden` changes, as it does those of a `Network`."""


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
        return affine_relu(x, self.weight, self.bias)


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


@dataclass(frozen=True)
class Network:
    """An MLP's hyper-parameters."""

    hidden: Widths = (1024, 1024)
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


def hidden_widths(spec: Any, path: str = "") -> Iterator[tuple[str, tuple[int, ...]]]:
    """Widths of all hidden layers that a spec and the specs in it have, with the options they are set by."""
    for option in options_of(spec):
        if option.widths:
            yield path + option.name, option.value
        elif dataclasses.is_dataclass(option.value):
            yield from hidden_widths(option.value, f"{path}{option.name}.")
        elif is_specs(option.value):
            for number, spec in enumerate(option.value):
                yield from hidden_widths(spec, f"{path}{option.name}.{number}.")


def with_hidden(spec: Any, width: int) -> Any:
    """A spec with all hidden layers of one width."""
    changes: dict[str, Any] = {}
    for option in options_of(spec):
        if option.widths:
            changes[option.name] = (width,) * len(option.value)
        elif dataclasses.is_dataclass(option.value) and any(hidden_widths(option.value)):
            changes[option.name] = with_hidden(option.value, width)
        elif is_specs(option.value):
            changes[option.name] = tuple(with_hidden(spec, width) for spec in option.value)
    return dataclasses.replace(spec, **changes)


class Option(NamedTuple):
    """An option of a spec."""

    name: str
    value: Any
    widths: bool
    """Whether it is set to `Widths`."""
    optional: bool
    """Whether it may be None."""


def options_of(spec: Any) -> Iterator[Option]:
    """Options of a spec."""
    hints = get_type_hints(type(spec), include_extras=True)
    for field in dataclasses.fields(spec):
        value, hint = getattr(spec, field.name), hints[field.name]
        widths = value is not None and (hint == Widths or Widths in get_args(hint))
        yield Option(field.name, value, widths, type(None) in get_args(hint))


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


def follow(target: PyTree, network: PyTree, rate: float) -> PyTree:
    """A target network moved towards its network: rate·θ + (1 − rate)·θ̄."""
    return jax.tree.map(lambda old, new: rate * new + (1 - rate) * old, target, network)
