"""Turns a URL into a store."""

import os

from penstock.config import StoreConfig
from penstock.errors import ConfigError
from penstock.store.adapter import ObjectStore
from penstock.store.direct import DirectStore
from penstock.store.local import LocalStore
from penstock.store.memory import MemoryStore
from penstock.store.protocol import Store
from penstock.store.web import WebStore
from penstock.url import Location, check_key

__all__ = ["open_object", "open_prefix", "open_store"]


def open_store(url: str | os.PathLike[str], config: StoreConfig | None = None) -> Store:
    """The store behind a URL; keys are relative to the URL's path. Makes no request and opens no connection.

    Takes `s3://bucket/prefix`, `gs://` (or `gcs://`), `az://` (or `abfs://`), `file://`, a plain path,
    `memory://name` and, for reading, `http(s)://`. Without a config the environment decides.
    """
    if config is not None and not isinstance(config, StoreConfig):
        raise ConfigError(f"config must be a penstock.StoreConfig, got {type(config).__name__}")
    location = Location.parse(url)
    kind = _KINDS.get(location.scheme, ObjectStore)
    return kind(location, config or StoreConfig())


_KINDS: dict[str, type[MemoryStore | ObjectStore]] = {
    "memory": MemoryStore,
    "s3": DirectStore,
    "gs": DirectStore,
    "file": LocalStore,
    "http": WebStore,
    "https": WebStore,
}


def open_object(
    url: str | os.PathLike[str], config: StoreConfig | None = None
) -> tuple[Store, str]:
    """The store that holds the object at `url`, and the object's key in it. Makes no request."""
    location = Location.parse(url)
    check_key(location.key, of=str(location))
    return open_store(location.root, config), location.key


def open_prefix(
    url: str | os.PathLike[str], config: StoreConfig | None = None
) -> tuple[Store, str]:
    """The store to list for a URL that may end inside a path segment, and the prefix to list there.

    The store is the whole bucket, so that keys found under several of its URLs go together. On a local disk it is
    the folder, or for what is no folder the one around it. Makes no request.
    """
    location = Location.parse(url)
    root, prefix = location.root, location.key
    if location.scheme == "file":
        folder, _, name = location.key.rpartition("/")
        if name and location.path().is_dir():
            folder, name = location.key, ""
        root, prefix = f"/{folder}", name
    return open_store(root, config), prefix
