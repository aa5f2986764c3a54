"""Objects by number: a whole batch in flight at once, in one worker."""

from collections.abc import Iterable, Sequence
from typing import Any, Self, overload

from torch.utils.data import Dataset

from penstock.config import StoreConfig
from penstock.data.bad import SKIPPED, OnError, check_on_error, handle
from penstock.data.composed import check_composing, read_each
from penstock.data.iterable import Transform
from penstock.data.objects import Objects, Url, from_index, from_objects, from_prefix
from penstock.data.sample import Sample
from penstock.errors import BadSample
from penstock.listing import Index
from penstock.store import ObjectMeta

__all__ = ["MapDataset"]


class MapDataset(Dataset[Any]):
    """`dataset[i]` is the object `i`, as a `Sample` or what `transform` makes of it; `dataset[a:b]` a smaller dataset.

    A loader asks for whole batches (`__getitems__`), which are fetched concurrently. With `on_error="skip"` a batch
    has fewer samples where some are bad; `dataset[i]` of a bad one always raises. `max_composite_bytes` reads small
    objects of a `gs://` bucket in groups of up to so many bytes, which pays only where few requests can be in flight;
    0 is off.
    """

    def __init__(
        self,
        objects: Objects,
        *,
        transform: Transform | None = None,
        on_error: OnError = "raise",
        max_composite_bytes: int = 0,
    ) -> None:
        check_on_error(on_error)
        check_composing(objects, max_composite_bytes)
        self._objects = objects
        self.transform = transform
        self.on_error: OnError = on_error
        self.max_composite_bytes = max_composite_bytes

    @classmethod
    def from_prefix(
        cls,
        url: Url,
        *,
        config: StoreConfig | None = None,
        suffix: str | tuple[str, ...] | None = None,
        transform: Transform | None = None,
        on_error: OnError = "raise",
        max_composite_bytes: int = 0,
    ) -> Self:
        """Every object whose key starts with the URL's path. Lists once, on rank 0; a worker never lists."""
        return cls(
            from_prefix(url, config, suffix),
            transform=transform,
            on_error=on_error,
            max_composite_bytes=max_composite_bytes,
        )

    @classmethod
    def from_objects(
        cls,
        urls: Iterable[Url],
        *,
        config: StoreConfig | None = None,
        transform: Transform | None = None,
        on_error: OnError = "raise",
        max_composite_bytes: int = 0,
    ) -> Self:
        """The objects at these URLs, which may come from a generator. Makes no request."""
        return cls(
            from_objects(urls, config),
            transform=transform,
            on_error=on_error,
            max_composite_bytes=max_composite_bytes,
        )

    @classmethod
    def from_index(
        cls,
        index: Index,
        *,
        config: StoreConfig | None = None,
        transform: Transform | None = None,
        on_error: OnError = "raise",
        max_composite_bytes: int = 0,
    ) -> Self:
        """The objects of an index, at the versions that were listed."""
        return cls(
            from_index(index, config),
            transform=transform,
            on_error=on_error,
            max_composite_bytes=max_composite_bytes,
        )

    @property
    def objects(self) -> Sequence[ObjectMeta] | Sequence[str]:
        """What `[i]` reads: an `Index` with sizes, or the keys that were given."""
        return self._objects.items

    def __len__(self) -> int:
        return len(self._objects)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> "MapDataset": ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            part = Objects(self._objects.store, self._objects.items[index])
            return MapDataset(
                part,
                transform=self.transform,
                on_error=self.on_error,
                max_composite_bytes=self.max_composite_bytes,
            )
        on_error: OnError = "raise" if self.on_error == "skip" else self.on_error
        return self._get([index], on_error)[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Many at once, in their order. What a loader calls with the indices of a batch."""
        values = [value for value in self._get(indices, self.on_error) if value is not SKIPPED]
        if indices and not values:
            raise BadSample(
                f"{self._objects.store.url}: all {len(indices)} samples of a batch are bad, the first is "
                f"{self._objects.key(self._number(indices[0]))}; on_error='skip' has none to go on with"
            )
        return values

    def _get(self, indices: Sequence[int], on_error: OnError) -> list[Any]:
        objects = self._objects
        numbers = [self._number(index) for index in indices]
        jobs = read_each(objects, numbers, max_composite_bytes=self.max_composite_bytes)
        values = []
        for number, job in zip(numbers, jobs, strict=True):
            key = objects.key(number)
            try:
                sample = Sample(key, bytes(job.result().data))
                values.append(sample if self.transform is None else self.transform(sample))
            except Exception as exc:  # noqa: BLE001 - a bad sample is the user's to judge
                values.append(handle(on_error, objects.store.url, key, exc))
        return values

    def _number(self, index: int) -> int:
        number = index + len(self) if index < 0 else index
        if not 0 <= number < len(self):
            raise IndexError(
                f"{self._objects.store.url}: sample {index} of {len(self)} does not exist"
            )
        return number
