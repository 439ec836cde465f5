"""Folders of results: plain files, each written whole or not at all."""

import contextlib
import csv
import io
import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from becl.errors import UserError
from becl.plugins import bare, origins_of
from becl.specs import difference, upgraded


def open_folder(config: dict[str, Any], out: Path) -> None:
    """Makes the folder or checks that it holds this configuration; says what is wrong before anything is written."""
    config = json.loads(json.dumps(config))
    path = out / "config.json"
    try:
        if path.exists():
            found = upgraded(json.loads(path.read_text()))
            if place := difference(located(bare(found)), located(config)):
                raise UserError(f"{out} holds another configuration ({place} now); remove it or choose another --out")
            if not os.access(out, os.W_OK):
                raise UserError(f"no permission to write in {out}")
            return
        if out.exists() and not out.is_dir():
            raise UserError(f"{out} is a file; choose another --out")
        if out.exists() and any(path.name != "config.json.part" for path in out.iterdir()):
            raise UserError(f"{out} is not empty and holds no study; choose another --out")
        out.mkdir(parents=True, exist_ok=True)
        origins = origins_of(config)
        config |= {"plugins": origins} if origins else {}
        write_text(path, json.dumps(config, indent=1) + "\n")
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        raise UserError(f"{path} is damaged; remove it or choose another --out") from None
    except OSError as error:
        raise UserError(f"cannot write in {out}: {error.strerror}") from None


def located(config: Any) -> Any:
    """A configuration, as JSON, whose `source`, another folder, is where it is: however it was spelled."""
    try:
        return config | {"source": os.path.realpath(config["source"])}
    except (KeyError, TypeError, ValueError):  # It has none, or is damaged.
        return config


def folder_name(*words: str) -> str:
    """Words joined to a name that every file system takes."""
    return "-".join(re.sub(r"[^\w.-]+", "-", word) for word in words)


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration of a run or study, as JSON values."""
    path = folder / "config.json"
    try:
        config = upgraded(json.loads(path.read_text()))
    except OSError as error:
        raise UserError(f"{folder} holds no run: {path.name}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise UserError(f"{path} is damaged") from None
    return config if isinstance(config, dict) else {}


def read_pretraining(folder: Path) -> dict[str, Any]:
    """The configuration of a pretraining run, as JSON values."""
    config = read_config(folder)
    if config.get("command") != "pretrain":
        raise UserError(f"{folder} holds no pretraining run")
    return config


def kept_snapshots(folder: Path, seed: int) -> list[int]:
    """Steps after which the networks of a seed were kept."""
    found = (path.stem.partition("-")[2] for path in (folder / f"seed-{seed}").glob("snapshot-*.safetensors"))
    return sorted(int(steps) for steps in found if steps.isdigit())


def same_settings(config: dict[str, Any], folder: Path) -> None:
    """Refuses to go on with a run that this version would run otherwise."""
    if place := difference(bare(read_config(folder)), json.loads(json.dumps(config))):
        raise UserError(f"{folder} was made by a version with other settings ({place} now)")
    if not os.access(folder, os.W_OK):
        raise UserError(f"no permission to write in {folder}")


def check_place(out: Path) -> None:
    """Whether a folder can be made and written in."""
    nearest = next(place for place in (out, *out.absolute().parents) if place.exists())
    if not nearest.is_dir():
        raise UserError(f"cannot write in {out}: {nearest} is a file")
    if not os.access(nearest, os.W_OK):
        raise UserError(f"cannot write in {out}: no permission")


def check_writable(folder: Path) -> None:
    """Makes a folder, or says why it cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(f"cannot write in {folder}: {error.strerror}") from None


def write_text(path: Path, text: str) -> None:
    """All or nothing: a reader never sees half a file."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """All or nothing, also when the machine stops: flushed to the disk before it gets its name."""
    temporary = path.with_name(path.name + ".part")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def to_csv(rows: Sequence[dict[str, Any]], header: bool = True) -> str:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fieldnames=list(rows[0]), lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def named_arrays(tree: Any) -> dict[str, np.ndarray]:
    """The arrays of a tree by their place in it, such as `learner.actor.trunk.gain`."""
    import jax

    def plain(leaf: Any) -> np.ndarray:
        return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)

    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): plain(leaf) for path, leaf in leaves}


def is_key(leaf: Any) -> bool:
    """Whether an array is one of random keys."""
    import jax

    return hasattr(leaf, "dtype") and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def save_arrays(path: Path, tree: Any, about: dict[str, str]) -> None:
    """A tree of arrays as safetensors, with a few words about it."""
    import safetensors.numpy

    arrays = {name: np.asarray(array, order="C") for name, array in named_arrays(tree).items()}
    write_bytes(path, safetensors.numpy.save(arrays, about))


def load_arrays(path: Path, like: Any) -> Any:
    """A tree shaped like another with the arrays of a file, which must have all of them and no others."""
    import safetensors.numpy

    try:
        arrays = safetensors.numpy.load(path.read_bytes())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except Exception as error:  # safetensors has errors of its own.
        raise UserError(f"{path} is damaged: {error}") from None
    return place_arrays(arrays, like, path)


def place_arrays(arrays: Mapping[str, np.ndarray], like: Any, source: Path) -> Any:
    """A tree shaped like another, of arrays or only of their shapes, with the arrays of these names."""
    import jax

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
