"""Takes a state apart as `torch.save` would: a pickle, and the storages that it refers to. No tensor is copied."""

import io
import pickle
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from penstock.checkpoint.torchfile import Archive, plan_archive

__all__ = ["Captured", "capture"]


@dataclass(frozen=True, slots=True)
class Captured:
    """A state taken apart: the file that it makes, and the storages by the name of their record in it.

    The pickle is a snapshot; the storages are the live ones.
    """

    archive: Archive
    storages: Mapping[str, torch.UntypedStorage]


class _Done(Exception):
    """Ends `torch.save` when it has pickled, before it writes."""


class _Nowhere(io.RawIOBase):
    def write(self, data: Any, /) -> int:
        return len(data)


def capture(obj: object) -> Captured:
    """Has `torch.save` pickle `obj`, with all that it knows about tensors, and stops it there.

    Its `pickle_module` argument is the way in: torch derives from the Pickler given and adds the method that names
    storages, and that method is listened to.
    """
    storages: dict[str, torch.UntypedStorage] = {}
    pickled: list[bytes] = []
    nowhere: Any = _Nowhere()

    class Listener(pickle.Pickler):
        def __init__(self, file: io.BytesIO, *, protocol: int) -> None:
            super().__init__(file, protocol=protocol)
            self._file = file

        def __init_subclass__(cls) -> None:
            name_storage = cls.persistent_id

            def persistent_id(self: Any, item: Any) -> Any:
                name = name_storage(self, item)
                if name is not None:
                    storages[f"archive/data/{name[2]}"] = _untyped(item)
                return name

            cls.persistent_id = persistent_id  # type: ignore[method-assign]  # that is the purpose

        def dump(self, item: object, /) -> None:
            super().dump(item)
            pickled.append(self._file.getvalue())
            raise _Done

    with suppress(_Done):
        torch.save(obj, nowhere, pickle_module=SimpleNamespace(Pickler=Listener, __name__="pickle"))
    sizes = [(name.rpartition("/")[2], storage.nbytes()) for name, storage in storages.items()]
    archive = plan_archive(pickled[0], sizes, byteorder=sys.byteorder)
    return Captured(archive, storages)


def _untyped(storage: Any) -> torch.UntypedStorage:
    if isinstance(storage, torch.UntypedStorage):
        return storage
    inner: torch.UntypedStorage = storage._untyped_storage  # noqa: SLF001 - `untyped()` warns of its own end
    return inner
