"""The objects a dataset is made of, and where they came from: a prefix, a list, or an index."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from penstock.config import StoreConfig
from penstock.errors import ConfigError, NotFound
from penstock.listing import Index, list_objects
from penstock.store import ObjectMeta, Store, StoredObject, open_object, open_store
from penstock.store.composing import COMPOSED_PREFIX
from penstock.transfer.ahead import Task, read_ahead

__all__ = ["Objects", "Url", "from_index", "from_objects", "from_prefix"]

Url = str | os.PathLike[str]

_GUESS_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class Objects:
    """A store and an order of objects in it.

    A key alone is read at whatever version it has, an entry of an index at the version that was listed.
    """

    store: Store
    items: Sequence[ObjectMeta] | Sequence[str]

    def __len__(self) -> int:
        return len(self.items)

    def key(self, index: int) -> str:
        """The key of one object."""
        item = self.items[index]
        return item if isinstance(item, str) else item.key

    def metas(self) -> list[ObjectMeta]:
        """All with size and version. One request for each that is known by its key alone, many at a time."""
        known = [item for item in self.items if isinstance(item, ObjectMeta)]
        tasks = (
            Task(1, partial(self.store.head, item)) for item in self.items if isinstance(item, str)
        )
        return known or [job.result() for job in read_ahead(self.store, tasks)]

    def task(self, index: int) -> Task[StoredObject]:
        """The read of one object, as a whole."""
        item = self.items[index]
        if isinstance(item, str):
            return Task(_GUESS_BYTES, partial(self.store.get_object, item))
        read = partial(
            self.store.get_object, item.key, if_match=item.etag, expected_bytes=item.size
        )
        return Task(item.size, read)


def from_prefix(
    url: Url, config: StoreConfig | None, suffix: str | tuple[str, ...] | None
) -> Objects:
    """Lists once: on rank 0 where there is a process group, and then tells the others. An empty result is an error."""
    index = Index.from_rank_zero(lambda: _samples(list_objects(url, config=config)))
    if suffix is not None:
        index = index.filter(suffix=suffix)
    if not len(index):
        ending = "" if suffix is None else f" ending with {suffix}"
        raise NotFound(f"{url}: no objects{ending} there; check the prefix with `penstock ls`")
    return from_index(index, config)


def _samples(index: Index) -> Index:
    """Without what composed reads of another process may have left, which is nobody's sample."""
    if not index.url.startswith("gs://"):
        return index
    left = [row for row, key in enumerate(index.keys) if not key.startswith(COMPOSED_PREFIX)]
    return index if len(left) == len(index) else index.take(left)


def from_index(index: Index, config: StoreConfig | None) -> Objects:
    """The objects of an index, in its order."""
    return Objects(open_store(index.url, config), index)


def from_objects(urls: Iterable[Url], config: StoreConfig | None) -> Objects:
    """The objects at these URLs, in their order, once for every epoch even if they come from a generator."""
    if isinstance(urls, str | os.PathLike):
        raise ConfigError(
            f"from_objects takes a list of URLs; for everything below {urls} use from_prefix"
        )
    found = [open_object(url, config) for url in urls]
    if not found:
        raise ConfigError(
            "from_objects was given no URL; a generator that was used before is empty"
        )
    roots = {store.url for store, _ in found}
    if len(roots) > 1:
        raise ConfigError(
            f"all objects must be of one bucket, got {', '.join(sorted(roots))}; make a dataset for each and join them "
            "with torch.utils.data.ConcatDataset or ChainDataset"
        )
    return Objects(found[0][0], [key for _, key in found])
