"""Trees of arrays as files: safetensors, each array under the name of its place in the tree."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors.numpy

from becl.errors import UserError
from becl.runs.sums import read_checked, write_checked


def named_arrays(tree: Any) -> dict[str, np.ndarray]:
    """The arrays of a tree by their place in it, such as `learner.actor.trunk.gain`."""

    def plain(leaf: Any) -> np.ndarray:
        return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)

    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): plain(leaf) for path, leaf in leaves}


def is_key(leaf: Any) -> bool:
    """Whether an array is one of random keys."""
    return hasattr(leaf, "dtype") and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def save_arrays(path: Path, tree: Any, about: dict[str, str]) -> None:
    """A tree of arrays as safetensors, with a few words about it."""
    arrays = {name: np.asarray(array, order="C") for name, array in named_arrays(tree).items()}
    write_checked(path, safetensors.numpy.save(arrays, about))


def load_arrays(path: Path, like: Any, about: Mapping[str, str] | None = None) -> Any:
    """A tree shaped like another with the arrays of a file, which must have all of them and no others, and say nothing
    else `about` itself."""
    try:
        data = read_checked(path)
        arrays = safetensors.numpy.load(data)
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except Exception as error:  # safetensors has errors of its own.
        raise UserError(f"{path} is damaged: {error}") from None
    said = words_of(data)
    for name, value in (about or {}).items():
        if said.get(name, value) != value:
            raise UserError(f"{path} is of another run: {name} {said[name]}, not {value}")
    return place_arrays(arrays, like, path)


def words_of(data: bytes) -> dict[str, str]:
    """What a file of safetensors, whose arrays could be read, says about itself."""
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return header.get("__metadata__", {})


def place_arrays(arrays: Mapping[str, np.ndarray], like: Any, source: Path) -> Any:
    """A tree shaped like another, of arrays or only of their shapes, with the arrays of these names."""
    used = set()

    def pick(place: Any, leaf: Any) -> Any:
        name = jax.tree_util.keystr(place, simple=True, separator=".")
        used.add(name)
        if name not in arrays:
            raise UserError(f"{source}: {name} is missing, which this run needs")
        shape, kind = np.shape(leaf), getattr(leaf, "dtype", None)
        if is_key(leaf):
            inner = jax.eval_shape(jax.random.key_data, leaf)
            shape, kind = inner.shape, inner.dtype
        if arrays[name].shape != shape:
            raise UserError(f"{source}: {name} has shape {arrays[name].shape}, not {shape} as this run needs")
        if kind is not None and arrays[name].dtype != kind:
            raise UserError(f"{source}: {name} has numbers of type {arrays[name].dtype}, not {kind} as this run needs")
        if isinstance(leaf, np.ndarray):  # JAX would round what has 64 bits.
            return arrays[name]
        array = jax.numpy.asarray(arrays[name])
        return jax.random.wrap_key_data(array) if is_key(leaf) else array

    tree = jax.tree_util.tree_map_with_path(pick, like)
    if other := sorted(arrays.keys() - used):
        raise UserError(f"{source}: {other[0]} has no place in this run")
    return tree
