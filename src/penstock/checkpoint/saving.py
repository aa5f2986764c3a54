"""`save`: a state streamed to a store, its parts going up while the rest is still being read."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from penstock.checkpoint.capture import capture
from penstock.checkpoint.memory import chunks_of
from penstock.checkpoint.safetensors import plan_header
from penstock.checkpoint.write import Writes, write_archive
from penstock.config import StoreConfig
from penstock.store import ObjectMeta
from penstock.transfer import open_writer

__all__ = ["SavedObject", "save"]


@dataclass(frozen=True, slots=True)
class SavedObject(ObjectMeta):
    """What was saved, and the CRC32C of its bytes, which the store has verified where it can."""

    crc32c: int = 0


def save(
    obj: object, url: str | os.PathLike[str], *, config: StoreConfig | None = None
) -> SavedObject:
    """Writes `obj` to `url`: the file that `torch.save` would write, or safetensors where the URL ends so.

    It uploads while it reads, within `TransferConfig.budget_bytes`; tensors on a GPU come through pinned buffers, chunk
    by chunk. The object appears when this returns, and not at all if it raises. It replaces one that is there.
    """
    with open_writer(url, config=config) as file:
        if os.fspath(url).endswith(".safetensors"):
            _write_safetensors(file, obj)
        else:
            captured = capture(obj)
            write_archive(file, captured.archive, lambda name: chunks_of(captured.storages[name]))
        crc32c = file.crc32c
    meta = file.meta
    assert meta is not None
    return SavedObject(meta.key, meta.size, meta.etag, meta.last_modified, crc32c)


def _write_safetensors(target: Writes, obj: object) -> None:
    tensors = _flat_tensors(obj)
    header, entries = plan_header(tensors)
    target.write(memoryview(header))
    for entry in entries:
        rows = tensors[entry.name].detach().contiguous()
        if rows.numel() == 0:
            continue
        whole = rows.untyped_storage()
        if whole.nbytes() != rows.nbytes:
            rows = rows.clone()
        for chunk in chunks_of(rows.untyped_storage()):
            target.write(chunk)


def _flat_tensors(obj: object) -> Mapping[str, torch.Tensor]:
    if not isinstance(obj, Mapping):
        raise TypeError(
            f"safetensors holds a dict of tensors, got {type(obj).__name__}; save it as .pt"
        )
    homes: dict[tuple[torch.device, int], str] = {}
    for name, tensor in obj.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise TypeError(
                f"safetensors holds tensors by name, got {type(tensor).__name__} under {name!r}; save it as .pt"
            )
        if tensor.layout is not torch.strided or tensor.is_quantized:
            raise ValueError(f"tensor {name!r} is sparse or quantized; save it as .pt")
        if tensor.numel() == 0:
            continue
        home = (tensor.device, tensor.untyped_storage().data_ptr())
        if home in homes:
            raise ValueError(
                f"tensors {homes[home]!r} and {name!r} share memory, which safetensors cannot keep; save them as "
                ".pt, or clone one"
            )
        homes[home] = name
    return obj
