"""Tensors in the files of torch, read without torch and without running anything that a file names.

Such a file is a pickle, which can name any function and have it called. This reader knows dictionaries, tensors and
their storages, and refuses whatever else a file names. Both formats are read: the zip archives of today, and the older
ones in which a few pickles stand before the numbers.
"""

import collections
import io
import pickle
import struct
import zipfile
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from becl.errors import UserError

MAGIC = 0x1950A86A20F9469CFC6C
"""What older files begin with."""
KINDS = {"FloatStorage": "<f4", "DoubleStorage": "<f8", "HalfStorage": "<f2", "LongStorage": "<i8", "IntStorage": "<i4",
         "ShortStorage": "<i2", "CharStorage": "<i1", "ByteStorage": "<u1", "BoolStorage": "<u1"}  # fmt: skip


class Storage(NamedTuple):
    """Where the numbers of tensors are."""

    kind: str
    key: str


class Tensor(NamedTuple):
    """A tensor whose numbers are not read yet."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Refused(Exception):
    """A file names something that is no tensor."""


class Reader(pickle.Unpickler):
    """Reads dictionaries of tensors, and nothing else."""

    def __init__(self, file: io.BytesIO):
        super().__init__(file)

        # Made anew each time: a file cannot change what reads the next.
        def tensor(storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any) -> Tensor:
            return Tensor(storage, int(offset), tuple(map(int, shape)), tuple(map(int, strides)))

        def parameter(data: Any, *rest: Any) -> Any:
            return data

        self.known: dict[tuple[str, str], Any] = {
            ("collections", "OrderedDict"): collections.OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2"): tensor,
            ("torch._utils", "_rebuild_parameter"): parameter,
            **{("torch", name): kind for name, kind in KINDS.items()},
        }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.known:
            raise Refused(f"{module}.{name}")
        return self.known[module, name]

    def persistent_load(self, pid: Any) -> Storage:
        what, kind, key = pid[:3]
        if what != "storage" or kind not in KINDS.values():
            raise ValueError(what)
        return Storage(kind, str(key))


def read_tensors(data: bytes, name: str) -> dict[str, np.ndarray]:
    """The tensors in a file of torch, by name; those of its `state_dict` where it has one."""
    try:
        found, storage_of = (from_archive if zipfile.is_zipfile(io.BytesIO(data)) else from_pickles)(data)
        found = found.get("state_dict", found)
        tensors = {key: value for key, value in found.items() if isinstance(value, Tensor)}
        if not tensors:
            raise UserError(f"{name} holds no tensors by name")
        return {str(key): numbers_of(value, storage_of(value.storage)) for key, value in tensors.items()}
    except UserError:
        raise
    except Refused as error:
        raise UserError(f"{name} is refused: it names {error}, and weights need tensors alone") from None
    except Exception as error:  # A damaged pickle may raise anything.
        raise UserError(f"{name} is damaged, or no file of torch: {type(error).__name__}") from None


def from_archive(data: bytes) -> tuple[Mapping[Any, Any], Callable[[Storage], bytes]]:
    archive = zipfile.ZipFile(io.BytesIO(data))
    pickled = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
    root = pickled.removesuffix("data.pkl")
    order = archive.read(root + "byteorder") if root + "byteorder" in archive.namelist() else b"little"
    if order != b"little" or any(one.compress_type != zipfile.ZIP_STORED for one in archive.infolist()):
        raise ValueError("another byte order, or compressed")
    found = Reader(io.BytesIO(archive.read(pickled))).load()
    return found, lambda storage: archive.read(f"{root}data/{storage.key}")


def from_pickles(data: bytes) -> tuple[Mapping[Any, Any], Callable[[Storage], bytes]]:
    file = io.BytesIO(data)
    if Reader(file).load() != MAGIC:
        raise ValueError("not torch's")
    Reader(file).load()  # The version of the format.
    if not Reader(file).load()["little_endian"]:
        raise ValueError("another byte order")
    reader = Reader(file)
    found, kinds = reader.load(), {}
    for tensor in found.get("state_dict", found).values():
        if isinstance(tensor, Tensor):
            kinds[tensor.storage.key] = np.dtype(tensor.storage.kind)
    storages = {}
    for key in Reader(file).load():
        (count,) = struct.unpack("<q", file.read(8))
        if key not in kinds or count < 0:
            raise ValueError(key)
        storages[key] = file.read(count * kinds[key].itemsize)
    return found, lambda storage: storages[storage.key]


def numbers_of(tensor: Tensor, storage: bytes) -> np.ndarray:
    """A tensor's numbers, in its own order; refuses one that reaches beyond its storage."""
    flat = np.frombuffer(storage, tensor.storage.kind)
    steps = [(size - 1) * stride for size, stride in zip(tensor.shape, tensor.strides, strict=True)]
    if min((tensor.offset, *tensor.shape, *tensor.strides)) < 0 or np.prod(tensor.shape, dtype=float) > 1e9:
        raise ValueError(tensor.shape)
    if 0 not in tensor.shape and tensor.offset + sum(steps) >= len(flat):
        raise ValueError(tensor.shape)
    strides = [stride * flat.itemsize for stride in tensor.strides]
    return np.lib.stride_tricks.as_strided(flat[tensor.offset :], tensor.shape, strides, writeable=False)
