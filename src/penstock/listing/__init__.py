"""Keys found: where to cut (`partition`, pure), threads that list the parts (`walk`), what they fill (`index`)."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace

from penstock.config import RetryConfig, StoreConfig
from penstock.errors import ConfigError
from penstock.listing.index import Builder, Index, assemble
from penstock.listing.parts import OutOfOrder
from penstock.listing.walk import walk
from penstock.store import Lists, ObjectMeta, open_prefix

__all__ = ["Index", "list_objects"]


def list_objects(
    url: str | os.PathLike[str],
    *,
    config: StoreConfig | None = None,
    retry: RetryConfig | None = None,
    threads: int = 32,
    on_progress: Callable[[int], None] | None = None,
) -> Index:
    """Every object whose key starts with the URL's path, which may end inside a path segment, sorted.

    One request per 1,000 keys where there are fewer than 4,000, at most 1.3 with up to `threads` at a time where
    there are more; Azure, local disk and memory are listed by one. `retry` replaces that of `config` for the
    listing alone. `on_progress` gets the number of keys so far, after every page, in the thread that read it.
    """
    if threads < 1:
        raise ConfigError(f"threads must be at least 1, got {threads}")
    if retry is not None:
        config = replace(config or StoreConfig(), retry=retry)
    store, prefix = open_prefix(url, config)
    parts = store.parts()
    if parts is None:
        return Index.of(store.url, _counted(store, prefix, on_progress))
    try:
        built = walk(parts, prefix, threads=threads, collector=Builder, on_progress=on_progress)
    except OutOfOrder:
        built = walk(parts, prefix, threads=1, collector=Builder, on_progress=on_progress)
    return assemble(store.url, built)


def _counted(
    store: Lists, prefix: str, on_progress: Callable[[int], None] | None
) -> Iterator[ObjectMeta]:
    count = 0
    for count, meta in enumerate(store.list(prefix), start=1):
        yield meta
        if on_progress is not None and count % 1000 == 0:
            on_progress(count)
    if on_progress is not None:
        on_progress(count)
