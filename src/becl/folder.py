"""Folders of results: plain files, each written whole or not at all."""

import csv
import io
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from becl.errors import UserError
from becl.specs import difference


def open_folder(config: dict[str, Any], out: Path) -> None:
    """Makes the folder or checks that it holds this configuration; says what is wrong before anything is written."""
    config = json.loads(json.dumps(config))
    path = out / "config.json"
    try:
        if path.exists():
            found = json.loads(path.read_text())
            if place := difference(found, config):
                raise UserError(f"{out} holds another configuration ({place} now); remove it or choose another --out")
            if not os.access(out, os.W_OK):
                raise UserError(f"no permission to write in {out}")
            return
        if out.exists() and not out.is_dir():
            raise UserError(f"{out} is a file; choose another --out")
        if out.exists() and any(out.iterdir()):
            raise UserError(f"{out} is not empty and holds no study; choose another --out")
        out.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(config, indent=1) + "\n")
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise UserError(f"{path} is damaged; remove it or choose another --out") from None
    except OSError as error:
        raise UserError(f"cannot write in {out}: {error.strerror}") from None


def read_pretraining(folder: Path) -> dict[str, Any]:
    """The configuration of a pretraining run, as JSON values."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text())
    except OSError as error:
        raise UserError(f"{folder} holds no run: {path.name}: {error.strerror}") from None
    except ValueError:
        raise UserError(f"{path} is damaged") from None
    if not isinstance(config, dict) or config.get("command") != "pretrain":
        raise UserError(f"{folder} holds no pretraining run")
    return config


def write_text(path: Path, text: str) -> None:
    """All or nothing: a reader never sees half a file."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    temporary = path.with_name(path.name + ".part")
    temporary.write_bytes(data)
    temporary.replace(path)


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

    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf) for path, leaf in leaves}


def save_arrays(path: Path, tree: Any, about: dict[str, str]) -> None:
    """A tree of arrays as safetensors, with a few words about it."""
    import safetensors.numpy

    arrays = {name: np.asarray(array, order="C") for name, array in named_arrays(tree).items()}
    write_bytes(path, safetensors.numpy.save(arrays, about))


def load_arrays(path: Path, like: Any) -> Any:
    """A tree shaped like another with the arrays of a file, which must have all of them and no others."""
    import jax
    import safetensors.numpy

    try:
        arrays = safetensors.numpy.load(path.read_bytes())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except Exception as error:  # safetensors has errors of its own.
        raise UserError(f"{path} is damaged: {error}") from None

    def pick(place: Any, leaf: Any) -> Any:
        name = jax.tree_util.keystr(place, simple=True, separator=".")
        if name not in arrays:
            raise UserError(f"{path}: {name} is missing, which this run needs")
        if arrays[name].shape != np.shape(leaf):
            raise UserError(f"{path}: {name} has shape {arrays[name].shape}, not {np.shape(leaf)} as this run needs")
        return jax.numpy.asarray(arrays[name])

    tree = jax.tree_util.tree_map_with_path(pick, like)
    if other := sorted(arrays.keys() - named_arrays(like).keys()):
        raise UserError(f"{path}: {other[0]} has no place in this run")
    return tree
