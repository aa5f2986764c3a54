"""Copies a state into host memory that is kept from save to save, so that training goes on while it is uploaded."""

import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from penstock.checkpoint.capture import Captured
from penstock.checkpoint.memory import as_bytes, copy_stream

__all__ = ["Arena", "Staged"]

_ALIGNMENT = 4096


@dataclass(frozen=True, slots=True)
class Staged:
    """Where in the arena each record's bytes lie, as half-open ranges; valid until the next state is staged."""

    memory: memoryview
    ranges: Mapping[str, tuple[int, int]]

    def bytes_of(self, name: str) -> list[memoryview]:
        """The bytes of a record."""
        start, stop = self.ranges[name]
        return [self.memory[start:stop]]


class Arena:
    """Host memory for one state: pinned once where there is a GPU, shared with a child process if asked for.

    It grows to the largest state that it has held, and never shrinks before `close`.
    """

    def __init__(self, *, shared: bool) -> None:
        self._shared = shared
        self._pinned = False
        self._memory: mmap.mmap | None = None
        self._tensor = torch.empty(0, dtype=torch.uint8)
        self.descriptor: int | None = None
        """The file behind shared memory."""

    @property
    def size(self) -> int:
        """Bytes held."""
        return len(self._tensor)

    def stage(self, captured: Captured) -> Staged:
        """Copies every storage; when it returns, the state may change. One pass over its bytes."""
        ranges: dict[str, tuple[int, int]] = {}
        at = 0
        for name, storage in captured.storages.items():
            ranges[name] = (at, at + storage.nbytes())
            at += -(-storage.nbytes() // 64) * 64
        on_gpu = {s.device for s in captured.storages.values() if s.device.type == "cuda"}
        self._reserve(at, pinned=bool(on_gpu))
        for name, storage in captured.storages.items():
            if storage.device.type not in ("cuda", "meta") and storage.nbytes():
                self._at(ranges[name]).copy_(as_bytes(storage))
        for device in on_gpu:
            stream = copy_stream(device)
            with torch.cuda.stream(stream):
                for name, storage in captured.storages.items():
                    if storage.device == device and storage.nbytes():
                        self._at(ranges[name]).copy_(as_bytes(storage), non_blocking=True)
            stream.synchronize()
        memory = memoryview(self._memory) if self._memory is not None else memoryview(b"")
        return Staged(memory, ranges)

    def close(self) -> None:
        """Gives the memory back when nothing refers to it any more."""
        if self._pinned:
            _cudart().cudaHostUnregister(self._tensor.data_ptr())
            self._pinned = False
        self._tensor = torch.empty(0, dtype=torch.uint8)
        self._memory = None
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None

    def _at(self, span: tuple[int, int]) -> torch.Tensor:
        return self._tensor[span[0] : span[1]]

    def _reserve(self, size: int, *, pinned: bool) -> None:
        if size > self.size:
            self.close()
            whole = -(-size // _ALIGNMENT) * _ALIGNMENT
            if self._shared:
                self.descriptor = os.memfd_create("penstock-checkpoint")
                os.ftruncate(self.descriptor, whole)
                self._memory = mmap.mmap(self.descriptor, whole)
            else:
                self._memory = mmap.mmap(-1, whole, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self._tensor = torch.frombuffer(self._memory, dtype=torch.uint8)
        if pinned and not self._pinned and self.size:
            # Not torch's own pinned memory, which comes in powers of two: 9 GiB would take 16.
            error = _cudart().cudaHostRegister(self._tensor.data_ptr(), self.size, 0)
            if int(error) != 0:
                raise MemoryError(
                    f"the driver refuses to pin {self.size} bytes of host memory (CUDA error {int(error)}); "
                    "save with block=True, which needs 16 MiB of it"
                )
            self._pinned = True


def _cudart() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch says nothing of it
