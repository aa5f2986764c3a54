"""Columns of a million strings or numbers in one piece of memory each: they fork without copying, pickle as bytes."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Self, overload

__all__ = ["Strings", "numbers"]


class Strings(Sequence[str]):
    """Immutable strings, UTF-8 in one `bytes`. A slice with step 1 shares the memory."""

    __slots__ = ("_base", "_bounds", "_data")

    def __init__(self, data: bytes, bounds: memoryview, base: int = 0) -> None:
        """String i is `data` from `bounds[i] - base` to `bounds[i + 1] - base`."""
        self._data = data
        self._bounds = bounds
        self._base = base

    @classmethod
    def of(cls, strings: Iterable[str]) -> Self:
        """Packs strings."""
        return cls.of_bytes([string.encode() for string in strings])

    @classmethod
    def of_bytes(cls, encoded: Sequence[bytes]) -> Self:
        """Packs strings that are UTF-8 already."""
        return cls(b"".join(encoded), numbers(accumulate(map(len, encoded), initial=0)))

    @property
    def data(self) -> bytes:
        """The bytes of these strings alone."""
        first, last = self._bounds[0] - self._base, self._bounds[-1] - self._base
        return self._data if last - first == len(self._data) else self._data[first:last]

    @property
    def bounds(self) -> memoryview:
        """Where each string begins, and where the last one ends, counted from `base` before `data`."""
        return self._bounds

    @property
    def base(self) -> int:
        """What to take off `bounds` to index into `data`."""
        return int(self._bounds[0])

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def bytes_at(self, index: int) -> bytes:
        """The string as UTF-8, without decoding it; `index` must not be negative."""
        bounds, base = self._bounds, self._base
        return self._data[bounds[index] - base : bounds[index + 1] - base]

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> "Strings": ...
    def __getitem__(self, index: int | slice) -> "str | Strings":
        if isinstance(index, slice):
            return self.take(range(len(self))[index])
        return self.bytes_at(range(len(self))[index]).decode()

    def take(self, rows: Sequence[int]) -> "Strings":
        """These rows; a `range` with step 1 costs nothing."""
        if isinstance(rows, range) and rows.step == 1:
            stop = max(rows.start, rows.stop)
            return Strings(self._data, self._bounds[rows.start : stop + 1], self._base)
        return Strings.of_bytes([self.bytes_at(row) for row in rows])

    def __iter__(self) -> Iterator[str]:
        data, base = self._data, self._base
        start = self._bounds[0] - base
        for bound in self._bounds[1:]:
            yield data[start : bound - base].decode()
            start = bound - base

    def __contains__(self, value: object) -> bool:
        return any(value == string for string in self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Strings):
            return NotImplemented
        same = len(self) == len(other) and self.data == other.data
        if self.base == other.base:
            return same and self._bounds == other.bounds
        shift = self.base - other.base
        return same and all(a - b == shift for a, b in zip(self._bounds, other.bounds, strict=True))

    __hash__ = None  # type: ignore[assignment]  # a million strings are no dictionary key

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self[:3]))
        return f"Strings([{shown}{', …' if len(self) > 3 else ''}], {len(self)} in all)"

    def __reduce__(self) -> tuple[Any, ...]:
        return _strings, (self.data, bytes(self._bounds))


def numbers(values: Iterable[int]) -> memoryview:
    """Unsigned 64-bit numbers, read-only; `numpy.asarray` takes the view as it is."""
    return _view(array("Q", values).tobytes())


def _view(data: bytes) -> memoryview:
    return memoryview(data).cast("Q")


def _strings(data: bytes, bounds: bytes) -> Strings:
    view = _view(bounds)
    return Strings(data, view, view[0])
