"""Where a storage goes: what `map_location` means, as `torch.load` has it."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from torch.serialization import default_restore_location

from penstock.checkpoint.memory import allocate

__all__ = ["MapLocation", "device_for", "place"]

MapLocation: TypeAlias = (
    str
    | torch.device
    | Mapping[str, str]
    | Callable[[torch.UntypedStorage, str], torch.UntypedStorage | None]
    | None
)


def device_for(map_location: MapLocation, location: str) -> torch.device | None:
    """The device that a storage saved at `location` goes to; None where only calling the function tells.

    Raises, as torch does, for a device that this machine does not have; nothing was read by then.
    """
    if callable(map_location):
        return None
    return place(allocate(0), map_location, location).device


def place(
    storage: torch.UntypedStorage, map_location: MapLocation, location: str
) -> torch.UntypedStorage:
    """A storage on the CPU, moved to where it belongs."""
    if callable(map_location):
        moved = map_location(storage, location)
        return moved if moved is not None else _restore(storage, location)
    if isinstance(map_location, Mapping):
        return _restore(storage, map_location.get(location, location))
    if map_location is not None:
        return _restore(storage, str(map_location))
    return _restore(storage, location)


def _restore(storage: torch.UntypedStorage, location: str) -> torch.UntypedStorage:
    moved: torch.UntypedStorage = default_restore_location(storage, location)  # type: ignore[no-untyped-call]
    return moved
