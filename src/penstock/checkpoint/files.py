"""What a load needs to know of a file, whichever its format: its records, its tensors, and how to make the object."""

import io
import sys
import zipfile
import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from penstock.checkpoint.read import check_record
from penstock.checkpoint.safetensors import header_bytes, parse_header
from penstock.checkpoint.survey import StorageRef, TensorSpec, survey
from penstock.checkpoint.torchfile import Record, read_layout
from penstock.checkpoint.window import Window
from penstock.errors import InvalidCheckpoint

__all__ = ["CheckpointFile", "open_file"]

Storages = Mapping[str, torch.UntypedStorage]


class CheckpointFile(Protocol):
    """A file that was understood, before any tensor of it was read."""

    @property
    def tree(self) -> Any:
        """Its containers, with a `TensorSpec` for every tensor."""
        ...

    @property
    def records(self) -> Mapping[str, Record]:
        """Where each storage lies, by its key."""
        ...

    @property
    def mentions(self) -> Sequence[StorageRef]:
        """The storages that the object is made of; one may be mentioned often."""
        ...

    def assemble(self, storages: Storages, *, weights_only: bool) -> Any:
        """The object, made of storages that are filled and where they belong."""
        ...


def open_file(window: Window, *, check: bool) -> CheckpointFile:
    """Reads what describes the file. Raises `Unplannable` for one that only torch can read."""
    try:
        if window.key.endswith(".safetensors"):
            return _SafetensorsFile(window)
        return _TorchFile(window, check=check)
    except InvalidCheckpoint as exc:
        raise InvalidCheckpoint(
            f"{window.url}: {exc}; the file is damaged or hostile, restore it"
        ) from exc


class _TorchFile(CheckpointFile):
    def __init__(self, window: Window, *, check: bool) -> None:
        layout = read_layout(window.meta.size, window.read, byteorder=sys.byteorder)
        self._pickle = window.read(layout.pickle.start, layout.pickle.stop)
        if check:
            check_record(window, layout.pickle, zlib.crc32(self._pickle))
        found = survey(self._pickle)
        self._tree = found.tree
        self._mentions = found.mentions
        self._records = layout.storages
        for ref in found.mentions:
            record = layout.storages.get(ref.key)
            if record is None or record.size != ref.size:
                there = "is missing" if record is None else f"has {record.size} bytes"
                raise InvalidCheckpoint(
                    f"its pickle speaks of storage {ref.key} with {ref.size} bytes, which {there}"
                )

    @property
    def tree(self) -> Any:
        return self._tree

    @property
    def records(self) -> Mapping[str, Record]:
        return self._records

    @property
    def mentions(self) -> Sequence[StorageRef]:
        return self._mentions

    def assemble(self, storages: Storages, *, weights_only: bool) -> Any:
        """Has `torch.load` read a file without tensor data, and hands it the storages when it asks where they go.

        So everything that torch can load is loaded, by torch, exactly as it would.
        """
        mentioned = deque(self._mentions)
        given: set[str] = set()

        def hand_over(empty: Any, location: str) -> Any:
            # Torch asks once for a storage that has an address, and every time for one that has none.
            while (ref := mentioned.popleft()).key in given:
                pass
            if (empty.nbytes(), location) != (ref.size, ref.location):
                raise InvalidCheckpoint(
                    f"torch asks for {empty.nbytes()} bytes of {location}, the pickle has {ref.size} of {ref.location}"
                )
            storage = storages[ref.key]
            if storage.data_ptr() != 0:
                given.add(ref.key)
            return storage

        with torch.serialization.skip_data():
            return torch.load(
                self._without_data(), map_location=hand_over, weights_only=weights_only
            )

    def _without_data(self) -> io.BytesIO:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr("archive/data.pkl", self._pickle)
            archive.writestr("archive/byteorder", sys.byteorder)
            archive.writestr("archive/version", "3\n")
        file.seek(0)
        return file


class _SafetensorsFile(CheckpointFile):
    def __init__(self, window: Window) -> None:
        size = window.meta.size
        length = header_bytes(window.read(0, min(8, size)), size=size)
        entries = parse_header(window.read(0, length), size=size)
        self._records = {e.name: Record(e.name, e.start, e.stop - e.start) for e in entries}
        self._tree = {
            entry.name: TensorSpec(
                StorageRef(entry.name, "cpu", entry.stop - entry.start, entry.dtype),
                entry.dtype,
                0,
                entry.shape,
                row_major(entry.shape),
            )
            for entry in entries
        }

    @property
    def tree(self) -> dict[str, TensorSpec]:
        return self._tree

    @property
    def records(self) -> Mapping[str, Record]:
        return self._records

    @property
    def mentions(self) -> Sequence[StorageRef]:
        return [spec.storage for spec in self._tree.values()]

    def assemble(self, storages: Storages, *, weights_only: bool) -> dict[str, torch.Tensor]:
        del weights_only
        return {name: view_of(storages[name], spec) for name, spec in self._tree.items()}


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    strides = []
    step = 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(1, length)
    return tuple(reversed(strides))


def view_of(storage: torch.UntypedStorage, spec: TensorSpec) -> torch.Tensor:
    """The tensor that the spec describes, over that storage."""
    empty = torch.empty(0, dtype=spec.dtype, device=storage.device)
    return empty.set_(storage, spec.offset, spec.shape, spec.stride)
