"""The result of a listing: keys, sizes and ETags of many objects in columns."""

import os
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import translate
from itertools import accumulate, chain, islice, pairwise
from operator import lt
from typing import TYPE_CHECKING, Any, Self, overload

from penstock.config import StoreConfig
from penstock.listing.columns import Strings, numbers
from penstock.store import ObjectMeta, Page

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["Builder", "Index", "assemble"]


class Index(Sequence[ObjectMeta]):
    """Objects of one store, sorted by the UTF-8 bytes of their keys. Immutable, about 100 bytes an object.

    `open_store(index.url).get(index.keys[0])` reads the first: keys are relative to `url`, the bucket's root or, on
    a local disk, the folder that was listed. `index[i]` is an `ObjectMeta`, `index[a:b]` an `Index` that shares the
    memory. Forked workers share it too, for nothing in it is written again, not even a reference count an object.
    """

    __slots__ = ("_etags", "_keys", "_sizes", "_url")

    def __init__(self, url: str, keys: Strings, sizes: memoryview, etags: Strings) -> None:
        self._url = url
        self._keys = keys
        self._sizes = sizes
        self._etags = etags

    @classmethod
    def of(cls, url: str, objects: Iterable[ObjectMeta]) -> Self:
        """An index of objects that were found otherwise; they are sorted, and each key may come once."""
        metas = sorted(objects, key=lambda meta: meta.key)
        for one, other in pairwise(metas):
            if one.key == other.key:
                raise ValueError(f"{url}: {one.key!r} is there twice; give every key once")
        return cls(
            url,
            Strings.of(meta.key for meta in metas),
            numbers(meta.size for meta in metas),
            Strings.of(meta.etag or "" for meta in metas),
        )

    @classmethod
    def load(cls, url: str | os.PathLike[str], *, config: StoreConfig | None = None) -> Self:
        """Reads what `save` has written. One request; refuses a version it does not know."""
        from penstock.listing.files import load

        return cls(*load(url, config))

    def save(self, url: str | os.PathLike[str], *, config: StoreConfig | None = None) -> None:
        """Writes a table of `key`, `size`, `etag` that other programs can read too, in one request.

        Parquet where the URL ends with `.parquet`, Arrow IPC where it ends with `.arrow`; both need
        `penstock[parquet]`.
        """
        from penstock.listing.files import save

        save(self, url, config)

    @classmethod
    def from_rank_zero(
        cls, make: "Callable[[], Index]", *, group: "ProcessGroup | None" = None
    ) -> "Index":
        """What `make` returns on rank 0 of the group, on every rank; the others do not call it.

        What it raises on rank 0 is raised on every rank. Without an initialised process group `make` is called.
        """
        from penstock.listing.broadcast import from_rank_zero

        return from_rank_zero(make, group)

    @property
    def url(self) -> str:
        """The store that the keys belong to."""
        return self._url

    @property
    def keys(self) -> Strings:
        """The keys: a sequence that decodes what is asked for."""
        return self._keys

    @property
    def sizes(self) -> memoryview:
        """The sizes in bytes, unsigned 64-bit; `numpy.asarray(index.sizes)` copies nothing."""
        return self._sizes

    @property
    def etags(self) -> Strings:
        """The ETags, with `""` where the store gave none."""
        return self._etags

    @property
    def total_bytes(self) -> int:
        """All sizes together."""
        return sum(self._sizes)

    def filter(
        self,
        *,
        suffix: str | tuple[str, ...] | None = None,
        glob: str | None = None,
        min_bytes: int | None = None,
        max_bytes: int | None = None,
    ) -> "Index":
        """The objects for which all of what is given holds, both sizes included.

        The glob is for the whole key, and its `*` crosses slashes: `train/*.jpg` also takes `train/a/b.jpg`.
        """
        rows: Iterable[int] = range(len(self))
        if min_bytes is not None:
            rows = (row for row in rows if self._sizes[row] >= min_bytes)
        if max_bytes is not None:
            rows = (row for row in rows if self._sizes[row] <= max_bytes)
        if suffix is not None:
            endings = (suffix,) if isinstance(suffix, str) else suffix
            encoded = tuple(ending.encode() for ending in endings)
            rows = (row for row in rows if self._keys.bytes_at(row).endswith(encoded))
        if glob is not None:
            matches = re.compile(translate(glob)).match
            rows = (row for row in rows if matches(self._keys[row]))
        return self.take([*rows])

    def take(self, rows: Sequence[int]) -> "Index":
        """The objects at these rows, which must rise; a `range` with step 1 shares the memory."""
        if isinstance(rows, range) and rows.step == 1:
            sizes = self._sizes[rows.start : max(rows.start, rows.stop)]
        else:
            sizes = numbers(self._sizes[row] for row in rows)
        return Index(self._url, self._keys.take(rows), sizes, self._etags.take(rows))

    def __len__(self) -> int:
        return len(self._sizes)

    @overload
    def __getitem__(self, index: int) -> ObjectMeta: ...
    @overload
    def __getitem__(self, index: slice) -> "Index": ...
    def __getitem__(self, index: int | slice) -> "ObjectMeta | Index":
        if isinstance(index, slice):
            rows = range(len(self))[index]
            # Sorted whatever the step: an index is.
            return self.take(rows if rows.step > 0 else rows[::-1])
        return ObjectMeta(self._keys[index], self._sizes[index], self._etags[index] or None)

    def __iter__(self) -> Iterator[ObjectMeta]:
        for key, size, etag in zip(self._keys, self._sizes, self._etags, strict=True):
            yield ObjectMeta(key, size, etag or None)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Index):
            return NotImplemented
        return (
            self._url == other.url
            and self._sizes == other.sizes
            and self._keys == other.keys
            and self._etags == other.etags
        )

    __hash__ = None  # type: ignore[assignment]  # a million objects are no dictionary key

    def __repr__(self) -> str:
        return f"<Index of {self._url!r}: {len(self)} objects, {self.total_bytes} bytes>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _index, (self._url, self._keys, bytes(self._sizes), self._etags)


def _index(url: str, keys: Strings, sizes: bytes, etags: Strings) -> Index:
    return Index(url, keys, memoryview(sizes).cast("Q"), etags)


class Builder:
    """Collects pages in the order in which a store lists them; `assemble` makes an index of several."""

    def __init__(self) -> None:
        self.keys = bytearray()
        self.key_bytes = array("I")
        self.sizes = array("Q")
        self.etags = bytearray()
        self.etag_bytes = array("I")
        self.rises = True
        self.first = ""
        self.last = ""

    def add(self, page: Page) -> None:
        """Appends a page that is not empty."""
        encoded = [key.encode() for key in page.keys]
        self.keys += b"".join(encoded)
        self.key_bytes.extend(map(len, encoded))
        self.sizes.extend(page.sizes)
        etags = [(etag or "").encode() for etag in page.etags]
        self.etags += b"".join(etags)
        self.etag_bytes.extend(map(len, etags))
        self.first = self.first or page.keys[0]
        self.rises = self.rises and self.last < page.keys[0]
        self.rises = self.rises and all(map(lt, page.keys, islice(page.keys, 1, None)))
        self.last = page.keys[-1]


def assemble(url: str, builders: Sequence[Builder]) -> Index:
    """An index of what was collected, part after part in the store's order.

    Leaves out the empty objects named `folder/` that consoles create, whose slash the engine drops: such a one comes
    right before an object of its folder.
    """
    filled = [builder for builder in builders if builder.sizes]
    keys = _column([builder.keys for builder in filled], [builder.key_bytes for builder in filled])
    sizes = numbers(chain.from_iterable(builder.sizes for builder in filled))
    etags = _column(
        [builder.etags for builder in filled], [builder.etag_bytes for builder in filled]
    )
    index = Index(url, keys, sizes, etags)
    dropped = {row for row, size in enumerate(sizes) if size == 0 and _is_placeholder(keys, row)}
    rises = all(builder.rises for builder in filled)
    if not dropped and rises and all(a.last < b.first for a, b in pairwise(filled)):
        return index
    rows = [row for row in range(len(keys)) if row not in dropped]
    return index.take(sorted(rows, key=keys.bytes_at))


def _column(data: Sequence[bytearray], lengths: Sequence["array[int]"]) -> Strings:
    bounds = numbers(accumulate(chain.from_iterable(lengths), initial=0))
    return Strings(b"".join(data), bounds)


def _is_placeholder(keys: Strings, row: int) -> bool:
    if row + 1 == len(keys):
        return False
    key, following = keys.bytes_at(row), keys.bytes_at(row + 1)
    # Twice the same: two parts of a walk met at a placeholder.
    return following.startswith(key + b"/") or following == key
