"""The bytes of tensors: as memory to read into and write from, on the host and, through pinned buffers, on a GPU."""

import ctypes
import os
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["allocate", "as_bytes", "chunks_of", "copy_stream", "host_view", "pinned_chunk"]

CHUNK_BYTES = 8 << 20
_CHUNKS = 16


def allocate(size: int, device: torch.device | str = "cpu") -> torch.UntypedStorage:
    """Memory for a storage, as it comes."""
    return torch.UntypedStorage(size, device=device)  # type: ignore[no-untyped-call]  # torch says nothing of it


def host_view(storage: torch.UntypedStorage) -> memoryview:
    """The memory of a storage on the CPU, writable. The view keeps the storage alive."""
    size = storage.nbytes()
    if size == 0:
        return memoryview(b"")
    array = (ctypes.c_ubyte * size).from_address(storage.data_ptr())
    array._owner = storage  # type: ignore[attr-defined]  # noqa: SLF001 - ctypes arrays take attributes
    return memoryview(array).cast("B")


def as_bytes(
    storage: torch.UntypedStorage, start: int = 0, size: int | None = None
) -> torch.Tensor:
    """A storage, or a part of it, as a tensor of bytes that shares its memory."""
    size = storage.nbytes() - start if size is None else size
    empty = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return empty.set_(storage, start, (size,), (1,))


class _Pinned:
    """Pinned buffers of this process, made on first use and kept: pinning costs as much as copying."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: queue.SimpleQueue[torch.Tensor] | None = None

    def free(self) -> queue.SimpleQueue[torch.Tensor]:
        with self._lock:
            if self._free is None:
                self._free = queue.SimpleQueue()
                whole = torch.empty(_CHUNKS * CHUNK_BYTES, dtype=torch.uint8, pin_memory=True)
                for start in range(0, len(whole), CHUNK_BYTES):
                    self._free.put(whole[start : start + CHUNK_BYTES])
            return self._free


_pinned = _Pinned()


def _forget() -> None:
    # A child cannot use its parent's CUDA context, nor wait for buffers that the parent's threads hold.
    global _pinned
    _pinned = _Pinned()


os.register_at_fork(after_in_child=_forget)


@contextmanager
def pinned_chunk() -> Iterator[torch.Tensor]:
    """A pinned buffer of `CHUNK_BYTES`, waited for where all are in use."""
    free = _pinned.free()
    chunk = free.get()
    try:
        yield chunk
    finally:
        free.put(chunk)


def copy_stream(device: torch.device) -> torch.cuda.Stream:
    """A stream beside the current one for copies, which begins after all that is queued there now."""
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch says nothing of it
    stream.wait_stream(torch.cuda.current_stream(device))
    return stream


def chunks_of(storage: torch.UntypedStorage) -> Iterator[memoryview]:
    """The bytes of a storage in order. Each chunk is valid until the next one is asked for.

    On the CPU it is the memory itself, in one piece. From a GPU it comes through two pinned buffers, so that the
    next chunk is being copied while this one is used.
    """
    if storage.device.type == "cpu":
        if storage.nbytes():
            yield host_view(storage)
    elif storage.device.type == "cuda":
        yield from _chunks_of_cuda(storage)
    elif storage.device.type != "meta":
        yield from chunks_of(storage.cpu())  # type: ignore[no-untyped-call]  # torch says nothing of it


def _chunks_of_cuda(storage: torch.UntypedStorage) -> Iterator[memoryview]:
    source = as_bytes(storage)
    parts = [source[at : at + CHUNK_BYTES] for at in range(0, len(source), CHUNK_BYTES)]
    stream = copy_stream(storage.device)
    with pinned_chunk() as one, pinned_chunk() as other:
        buffers = (one, other)
        on_its_way: tuple[torch.Tensor, torch.cuda.Event] | None = None
        for number, part in enumerate(parts):
            target = buffers[number % 2][: len(part)]
            with torch.cuda.stream(stream):
                target.copy_(part, non_blocking=True)
                event = stream.record_event()
            if on_its_way is not None:
                yield _arrived(on_its_way)
            on_its_way = (target, event)
        if on_its_way is not None:
            yield _arrived(on_its_way)


def _arrived(on_its_way: tuple[torch.Tensor, torch.cuda.Event]) -> memoryview:
    chunk, event = on_its_way
    event.synchronize()
    start = chunk.storage_offset()
    return host_view(chunk.untyped_storage())[start : start + len(chunk)]
