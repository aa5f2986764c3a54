"""Penstock carries data from any object store to PyTorch, and checkpoints back."""

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
from penstock.store import ObjectMeta, Store, open_store
from penstock.transfer import open_reader, open_writer

__all__ = [
    "AccessKey",
    "AccountKey",
    "BearerToken",
    "Credentials",
    "ObjectMeta",
    "PenstockError",
    "RetryConfig",
    "SasToken",
    "Store",
    "StoreConfig",
    "TransferConfig",
    "__version__",
    "open_reader",
    "open_store",
    "open_writer",
]
