"""Penstock carries data from any object store to PyTorch, and checkpoints back."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock._version import __version__
from penstock.config import (
    AccessKey,
    AccountKey,
    BearerToken,
    Credentials,
    RetryConfig,
    SasToken,
    StoreConfig,
    TransferConfig,
)
from penstock.errors import PenstockError
from penstock.listing import Index, list_objects
from penstock.store import ObjectMeta, Store, open_store
from penstock.transfer import open_reader, open_writer

if TYPE_CHECKING:
    from penstock.checkpoint import CheckpointManager, load, save
    from penstock.data import (
        DataLoader,
        IterableDataset,
        MapDataset,
        ParquetDataset,
        Sample,
        TarDataset,
    )

__all__ = [
    "AccessKey",
    "AccountKey",
    "BearerToken",
    "CheckpointManager",
    "Credentials",
    "DataLoader",
    "Index",
    "IterableDataset",
    "MapDataset",
    "ObjectMeta",
    "ParquetDataset",
    "PenstockError",
    "RetryConfig",
    "Sample",
    "SasToken",
    "Store",
    "StoreConfig",
    "TarDataset",
    "TransferConfig",
    "__version__",
    "list_objects",
    "load",
    "open_reader",
    "open_store",
    "open_writer",
    "save",
]

# What needs torch is imported when it is first used: the store layer does without.
_LATER = {
    "CheckpointManager": "penstock.checkpoint",
    "DataLoader": "penstock.data",
    "IterableDataset": "penstock.data",
    "MapDataset": "penstock.data",
    "ParquetDataset": "penstock.data",
    "Sample": "penstock.data",
    "TarDataset": "penstock.data",
    "load": "penstock.checkpoint",
    "save": "penstock.checkpoint",
}


def __getattr__(name: str) -> Any:
    """Imports the part of penstock that has `name`."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
