"""Streams objects, one sample each, hundreds in flight, in an order that is the same for any number of workers."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self, Unpack

from penstock.config import StoreConfig
from penstock.data.bad import handle
from penstock.data.elastic import ElasticDataset, StreamOptions
from penstock.data.lanes import Lane
from penstock.data.objects import Objects, Url, from_index, from_objects, from_prefix
from penstock.data.order import Shuffle
from penstock.data.sample import Sample
from penstock.listing import Index
from penstock.store import StoredObject
from penstock.transfer.ahead import Task, read_ahead

__all__ = ["IterableDataset", "Transform"]

Transform = Callable[[Sample], Any]


class IterableDataset(ElasticDataset[Any]):
    """Every object once an epoch, shared evenly by ranks and workers.

    `transform` takes a `Sample` and returns anything; without one you get the `Sample`. The other options are those
    of `StreamOptions`.
    """

    def __init__(
        self,
        objects: Objects,
        *,
        transform: Transform | None = None,
        **options: Unpack[StreamOptions],
    ) -> None:
        super().__init__(**options)
        self._objects = objects
        self.transform = transform

    @classmethod
    def from_prefix(
        cls,
        url: Url,
        *,
        config: StoreConfig | None = None,
        suffix: str | tuple[str, ...] | None = None,
        transform: Transform | None = None,
        **options: Unpack[StreamOptions],
    ) -> Self:
        """Every object whose key starts with the URL's path. Lists once, on rank 0; a worker never lists."""
        return cls(from_prefix(url, config, suffix), transform=transform, **options)

    @classmethod
    def from_objects(
        cls,
        urls: Iterable[Url],
        *,
        config: StoreConfig | None = None,
        transform: Transform | None = None,
        **options: Unpack[StreamOptions],
    ) -> Self:
        """The objects at these URLs, which may come from a generator. Makes no request."""
        return cls(from_objects(urls, config), transform=transform, **options)

    @classmethod
    def from_index(
        cls,
        index: Index,
        *,
        config: StoreConfig | None = None,
        transform: Transform | None = None,
        **options: Unpack[StreamOptions],
    ) -> Self:
        """The objects of an index, at the versions that were listed."""
        return cls(from_index(index, config), transform=transform, **options)

    def _total(self) -> int:
        return len(self._objects)

    def _read(self, lane: Lane, *, skip: int, epoch: int) -> Iterator[tuple[Any, int]]:
        objects = self._objects
        order = Shuffle(len(objects), seed=self.seed, epoch=epoch) if self.shuffle else None
        positions = lane.positions(skip=skip)
        asked: deque[str] = deque()

        def tasks() -> Iterator[Task[StoredObject]]:
            for position in positions:
                index = position if order is None else order(position)
                asked.append(objects.key(index))
                yield objects.task(index)

        for job in read_ahead(objects.store, tasks()):
            key = asked.popleft()
            try:
                sample = Sample(key, bytes(job.result().data))
                value = sample if self.transform is None else self.transform(sample)
            except Exception as exc:  # noqa: BLE001 - a bad sample is the user's to judge
                value = handle(self.on_error, objects.store.url, key, exc)
            yield value, 1
