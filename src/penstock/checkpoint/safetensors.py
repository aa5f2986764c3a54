"""The safetensors format: a JSON header that says where each tensor lies, then their bytes. Pure.

A header is believed only when every number in it agrees with every other and with the size of the file, and before
anything is allocated. What the reference implementation refuses is refused.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from penstock.errors import InvalidCheckpoint

__all__ = ["Entry", "header_bytes", "parse_header", "plan_header"]

_LONGEST_HEADER_BYTES = 100_000_000
_PREFIX_BYTES = 8
_METADATA = "__metadata__"

_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": getattr(torch, "float8_e8m0fnu", None),
    "I16": torch.int16,
    "U16": torch.uint16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F32": torch.float32,
    "C64": torch.complex64,
    "F64": torch.float64,
    "I64": torch.int64,
    "U64": torch.uint64,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items() if dtype is not None}


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor and the half-open range of the file that holds it, its elements in row-major order."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int


def header_bytes(prefix: memoryview, *, size: int) -> int:
    """How many bytes of a file of `size` come before its data, from the first eight of them."""
    if len(prefix) < _PREFIX_BYTES:
        raise InvalidCheckpoint(f"it has {size} bytes, too few for a safetensors header")
    length = int.from_bytes(prefix[:_PREFIX_BYTES], "little")
    if length > _LONGEST_HEADER_BYTES:
        raise InvalidCheckpoint(
            f"its header claims {length} bytes, more than the {_LONGEST_HEADER_BYTES} that the format allows"
        )
    if _PREFIX_BYTES + length > size:
        raise InvalidCheckpoint(f"its header claims {length} bytes, and the file has {size}")
    return _PREFIX_BYTES + length


def parse_header(header: memoryview, *, size: int) -> list[Entry]:
    """Every tensor, in the order of the file, from its first `header_bytes`."""
    text = bytes(header[_PREFIX_BYTES:])
    if not text.startswith(b"{"):
        raise InvalidCheckpoint("its header does not begin with a brace")
    try:
        found = json.loads(text, object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as exc:
        raise InvalidCheckpoint(f"its header cannot be read ({exc})") from exc
    metadata = found.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise InvalidCheckpoint("its metadata is not a table of strings")
    entries = [_entry(name, value, len(header)) for name, value in found.items()]
    entries.sort(key=lambda entry: (entry.start, entry.stop))
    at = len(header)
    for entry in entries:
        if entry.start != at:
            what = "overlaps the one before it" if entry.start < at else "leaves a hole before it"
            raise InvalidCheckpoint(f"tensor {entry.name!r} {what}")
        at = entry.stop
    if at != size:
        raise InvalidCheckpoint(f"its tensors end at byte {at}, and the file has {size}")
    return entries


def _no_duplicates(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidCheckpoint(f"its header has {twice!r} twice")
    return found


def _entry(name: str, value: Any, data_at: int) -> Entry:
    match value:
        case {"dtype": str(kind), "shape": [*shape], "data_offsets": [begin, end], **rest} if (
            not rest
        ):
            numbers = [*shape, begin, end]
        case _:
            raise InvalidCheckpoint(
                f"tensor {name!r} is not described by dtype, shape and data_offsets"
            )
    # JSON's true is Python's 1.
    if not all(type(n) is int and 0 <= n < 1 << 63 for n in numbers) or begin > end:
        raise InvalidCheckpoint(f"tensor {name!r} has an impossible shape or data_offsets")
    dtype = _DTYPES.get(kind)
    if dtype is None:
        raise InvalidCheckpoint(
            f"tensor {name!r} has dtype {kind!r}, which this torch does not have"
        )
    wanted = math.prod(shape) * dtype.itemsize
    if wanted != end - begin:
        raise InvalidCheckpoint(
            f"tensor {name!r} of {kind} {shape} needs {wanted} bytes, its data_offsets hold {end - begin}"
        )
    return Entry(name, dtype, tuple(shape), data_at + begin, data_at + end)


def plan_header(tensors: Mapping[str, torch.Tensor]) -> tuple[bytes, list[Entry]]:
    """The beginning of the file for these tensors, and where each goes: wide dtypes first, so that all are aligned."""
    for name, tensor in tensors.items():
        if tensor.dtype not in _NAMES:
            raise ValueError(
                f"tensor {name!r} has {tensor.dtype}, which safetensors cannot hold; save it as .pt"
            )
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0]))
    described: dict[str, Any] = {}
    entries: list[tuple[str, torch.Tensor, int]] = []
    at = 0
    for name, tensor in ordered:
        size = tensor.numel() * tensor.dtype.itemsize
        described[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": [*tensor.shape],
            "data_offsets": [at, at + size],
        }
        entries.append((name, tensor, at))
        at += size
    text = json.dumps(described, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > _LONGEST_HEADER_BYTES:
        raise ValueError(f"a header of {len(text)} bytes is more than safetensors allows")
    header = len(text).to_bytes(_PREFIX_BYTES, "little") + text
    return header, [
        Entry(
            name,
            tensor.dtype,
            tuple(tensor.shape),
            len(header) + start,
            len(header) + start + tensor.numel() * tensor.dtype.itemsize,
        )
        for name, tensor, start in entries
    ]
