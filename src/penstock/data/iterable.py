"""Streams objects, one sample each, hundreds in flight, in an order that is the same for any number of workers."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self, Unpack

from penstock.config import StoreConfig
from penstock.data.bad import handle
from penstock.data.composed import check_composing, read_each
from penstock.data.elastic import ElasticDataset, StreamOptions
from penstock.data.lanes import Lane
from penstock.data.objects import Objects, Url, from_index, from_objects, from_prefix
from penstock.data.order import Shuffle
from penstock.data.sample import Sample
from penstock.listing import Index

__all__ = ["IterableDataset", "Transform"]

Transform = Callable[[Sample], Any]


class IterableDataset(ElasticDataset[Any]):
    """Every object once an epoch, shared evenly by ranks and workers.

    `transform` takes a `Sample` and returns anything; without one you get the `Sample`. The other options are those
    of `StreamOptions`. `max_composite_bytes` reads small objects of a `gs://` bucket in groups of up to so many bytes,
    which pays only where few requests can be in flight; 0 is off.
    """

    def __init__(
        self,
        objects: Objects,
        *,
        transform: Transform | None = None,
        max_composite_bytes: int = 0,
        **options: Unpack[StreamOptions],
    ) -> None:
        super().__init__(**options)
        check_composing(objects, max_composite_bytes)
        self._objects = objects
        self.transform = transform
        self.max_composite_bytes = max_composite_bytes

    @classmethod
    def from_prefix(
        cls,
        url: Url,
        *,
        config: StoreConfig | None = None,
        suffix: str | tuple[str, ...] | None = None,
        transform: Transform | None = None,
        max_composite_bytes: int = 0,
        **options: Unpack[StreamOptions],
    ) -> Self:
        """Every object whose key starts with the URL's path. Lists once, on rank 0; a worker never lists."""
        return cls(
            from_prefix(url, config, suffix),
            transform=transform,
            max_composite_bytes=max_composite_bytes,
            **options,
        )

    @classmethod
    def from_objects(
        cls,
        urls: Iterable[Url],
        *,
        config: StoreConfig | None = None,
        transform: Transform | None = None,
        max_composite_bytes: int = 0,
        **options: Unpack[StreamOptions],
    ) -> Self:
        """The objects at these URLs, which may come from a generator. Makes no request."""
        return cls(
            from_objects(urls, config),
            transform=transform,
            max_composite_bytes=max_composite_bytes,
            **options,
        )

    @classmethod
    def from_index(
        cls,
        index: Index,
        *,
        config: StoreConfig | None = None,
        transform: Transform | None = None,
        max_composite_bytes: int = 0,
        **options: Unpack[StreamOptions],
    ) -> Self:
        """The objects of an index, at the versions that were listed."""
        return cls(
            from_index(index, config),
            transform=transform,
            max_composite_bytes=max_composite_bytes,
            **options,
        )

    def _total(self) -> int:
        return len(self._objects)

    def _read(self, lane: Lane, *, skip: int, epoch: int) -> Iterator[tuple[Any, int]]:
        objects = self._objects
        order = Shuffle(len(objects), seed=self.seed, epoch=epoch) if self.shuffle else None
        positions = lane.positions(skip=skip)
        asked: deque[str] = deque()

        def numbers() -> Iterator[int]:
            for position in positions:
                index = position if order is None else order(position)
                asked.append(objects.key(index))
                yield index

        for job in read_each(objects, numbers(), max_composite_bytes=self.max_composite_bytes):
            key = asked.popleft()
            try:
                sample = Sample(key, bytes(job.result().data))
                value = sample if self.transform is None else self.transform(sample)
            except Exception as exc:  # noqa: BLE001 - a bad sample is the user's to judge
                value = handle(self.on_error, objects.store.url, key, exc)
            yield value, 1
