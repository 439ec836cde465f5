"""Files of policies: arrays by name (npz, safetensors), or a graph (ONNX)."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from becl.errors import UserError
from becl.export.onnx import check_onnx, load_onnx, to_onnx
from becl.export.policy import Act, numpy_policy
from becl.runs.folder import check_place

FORMATS = ("npz", "safetensors", "onnx")


def choose_format(out: Path, wanted: str | None) -> str:
    """The format of a file's name, which has to agree with the one asked for; refuses one that cannot be written."""
    suffix = out.suffix.lower().removeprefix(".")
    if wanted is not None and suffix != wanted:
        raise UserError(f"--out {out}: a file of --format {wanted} ends in .{wanted}")
    if suffix not in FORMATS:
        raise UserError(f"--out {out}: the name has to end in .npz, .safetensors or .onnx")
    if suffix == "onnx":
        check_onnx(out)
    return suffix


def check_out(out: Path, force: bool) -> None:
    """Raises if a place cannot be written to; writes nothing."""
    try:
        if out.is_dir():
            raise UserError(f"--out {out} is a folder; name a file")
        if out.exists() and not force:
            raise UserError(f"{out} exists; --force replaces it")
        check_place(out.parent)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror}") from None


def save(path: Path, arrays: dict[str, np.ndarray], about: dict[str, Any]) -> None:
    """Writes folded arrays and words about them in the format of the file's name."""
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in about.items()}
    if path.suffix == ".npz":
        with path.open("wb") as file:
            np.savez(file, about=np.array(json.dumps(about)), **arrays)  # type: ignore[arg-type]
    elif path.suffix == ".safetensors":
        path.write_bytes(safetensors.numpy.save(arrays, texts))
    else:
        path.write_bytes(to_onnx(arrays, texts))


def load_policy(path: Path) -> Act:
    """The policy of an exported file, in any format."""
    suffix = path.suffix.lower()
    if suffix == ".onnx":
        return load_onnx(path)
    if suffix == ".npz":
        with np.load(path) as file:
            return numpy_policy(dict(file))
    return numpy_policy(safetensors.numpy.load_file(path))
