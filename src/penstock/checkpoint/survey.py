"""Reads the pickle of a `torch.save` file without running any of it: what tensors there are, under which names.

Every class and function that the pickle names is replaced by a stand-in, so nothing is imported or called, and a
hostile file can do nothing here. Pure.
"""

import io
import pickle
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch

from penstock.checkpoint.torchfile import Unplannable

__all__ = ["Opaque", "StorageRef", "Survey", "TensorSpec", "storages_in", "survey"]


@dataclass(frozen=True, slots=True)
class StorageRef:
    """One mention of a storage in the pickle. `location` is where it was saved from: `cpu`, `cuda:0`."""

    key: str
    location: str
    size: int
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor to be: a view of a storage. Offset and strides count elements."""

    storage: StorageRef
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    is_plain: bool = True
    """False for one that is more than its bytes: a conjugate or negative view, a parameter with attributes."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What a pickle describes: its containers and plain values as they are, the rest as specs and stand-ins."""

    tree: Any
    mentions: Sequence[StorageRef]
    """Every mention of a storage, in the order in which loading meets them."""


class Opaque:
    """Stands for an object of a class that is not looked at; keeps what it was made from."""

    name = "object"

    parts: list[object]

    def __new__(cls, *args: object, **named: object) -> Self:
        # Not in `__init__`, which unpickling may leave out.
        self = object.__new__(cls)
        self.parts = [*args, *named.values()]
        return self

    def __setstate__(self, state: object) -> None:
        self.parts.append(state)

    def __setitem__(self, key: object, value: object) -> None:
        self.parts += [key, value]

    def __call__(self, *args: object) -> "Opaque":
        return Opaque(self, *args)

    def append(self, item: object) -> None:
        self.parts.append(item)

    def extend(self, items: Sequence[object]) -> None:
        self.parts += items

    add = append


def survey(data: memoryview) -> Survey:
    """Walks through the pickle. Raises `Unplannable` where it says something that is not understood."""
    reader = _Reader(io.BytesIO(data), encoding="utf-8")
    try:
        tree = reader.load()
    except Unplannable:
        raise
    except Exception as exc:
        raise Unplannable(
            f"its pickle cannot be understood without running it ({type(exc).__name__}: {exc})"
        ) from exc
    return Survey(tree, reader.mentions)


def storages_in(item: object) -> Iterator[StorageRef]:
    """Every storage that `item` is made of, however deep it hides."""
    seen: set[int] = set()
    waiting = [item]
    while waiting:
        found = waiting.pop()
        if isinstance(found, StorageRef):
            yield found
        elif isinstance(found, TensorSpec):
            yield found.storage
        elif id(found) not in seen:
            seen.add(id(found))
            if isinstance(found, dict):
                waiting += [*found.keys(), *found.values(), getattr(found, "__dict__", None)]
            elif isinstance(found, list | tuple | set | frozenset):
                waiting += found
            elif isinstance(found, Opaque):
                waiting += found.parts


@dataclass(frozen=True, slots=True)
class _StorageType:
    dtype: torch.dtype


def _tensor(storage: StorageRef, offset: int, size: Any, stride: Any, *rest: Any) -> TensorSpec:
    metadata = rest[2] if len(rest) > 2 else None
    return TensorSpec(storage, storage.dtype, offset, tuple(size), tuple(stride), not metadata)


def _typed_tensor(
    storage: StorageRef, offset: int, size: Any, stride: Any, *rest: Any
) -> TensorSpec:
    metadata = rest[3] if len(rest) > 3 else None
    return TensorSpec(storage, rest[2], offset, tuple(size), tuple(stride), not metadata)


def _parameter(data: Any, *_: object) -> Any:
    return data


def _parameter_with_state(data: Any, *_: object) -> Any:
    if isinstance(data, TensorSpec):
        return TensorSpec(
            data.storage, data.dtype, data.offset, data.shape, data.stride, is_plain=False
        )
    return Opaque(data, *_)


def _encode(text: str, encoding: str) -> bytes:
    return text.encode(encoding)


_KNOWN: dict[tuple[str, str], Callable[..., Any]] = {
    ("torch._utils", "_rebuild_tensor"): _tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_tensor_v3"): _typed_tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): _parameter_with_state,
    ("collections", "OrderedDict"): OrderedDict,
    ("torch", "Size"): tuple,
    ("_codecs", "encode"): _encode,
}
_STORAGES = {
    "BFloat16Storage": torch.bfloat16,
    "BoolStorage": torch.bool,
    "ByteStorage": torch.uint8,
    "CharStorage": torch.int8,
    "ComplexDoubleStorage": torch.complex128,
    "ComplexFloatStorage": torch.complex64,
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "IntStorage": torch.int32,
    "LongStorage": torch.int64,
    "QInt32Storage": torch.qint32,
    "QInt8Storage": torch.qint8,
    "QUInt8Storage": torch.quint8,
    "ShortStorage": torch.int16,
    "UntypedStorage": torch.uint8,
}
# These ask for the device by another way than their storage's, which a planned load cannot answer.
_REFUSED = {"_rebuild_wrapper_subclass", "_rebuild_device_tensor_from_numpy"}


@dataclass
class _Stand:
    classes: dict[str, type[Opaque]] = field(default_factory=dict)

    def for_name(self, name: str) -> type[Opaque]:
        if name not in self.classes:
            self.classes[name] = type("Opaque", (Opaque,), {"name": name})
        return self.classes[name]


class _Reader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, *, encoding: str) -> None:
        super().__init__(file, encoding=encoding)
        self.mentions: list[StorageRef] = []
        self._stand = _Stand()

    def find_class(self, module: str, name: str, /) -> Any:
        if (known := _KNOWN.get((module, name))) is not None:
            return known
        if module == "torch._utils" and name in _REFUSED:
            raise Unplannable("it holds a tensor subclass that wraps other tensors")
        if module.partition(".")[0] == "torch":
            found = getattr(torch, name, None)
            if isinstance(found, torch.dtype):
                return found
            if name.endswith("Storage"):
                return _StorageType(_dtype_of(name))
        return self._stand.for_name(f"{module}.{name}")

    def persistent_load(self, pid: Any, /) -> StorageRef:
        kind, storage_type, key, location, count = pid
        if kind != "storage":
            raise Unplannable(f"its pickle refers to something outside of it, {kind!r}")
        dtype = storage_type.dtype
        ref = StorageRef(str(key), str(location), count * dtype.itemsize, dtype)
        self.mentions.append(ref)
        return ref


def _dtype_of(storage_name: str) -> torch.dtype:
    dtype = _STORAGES.get(storage_name)
    if dtype is None:
        raise Unplannable(f"it has a {storage_name}, which only torch knows")
    return dtype
