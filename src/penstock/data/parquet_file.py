"""Files of which only some bytes are there, for pyarrow to read: the end, or what was fetched beforehand."""

import io
from collections.abc import Sequence

from penstock.store import ObjectMeta, Store
from penstock.store.protocol import WritableBuffer

__all__ = ["TAIL_BYTES", "Pieces", "Tail"]

TAIL_BYTES = 64 << 10


class _Sparse(io.RawIOBase):
    """A file of which only some bytes are there."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._position = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[
            whence
        ] + offset
        return self._position

    def readinto(self, buffer: WritableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        wanted = max(0, min(len(view), self._size - self._position))
        if not wanted:
            return 0
        data = self._bytes(self._position, self._position + wanted)
        view[:wanted] = data
        self._position += wanted
        return wanted

    def _bytes(self, start: int, stop: int) -> memoryview:
        raise NotImplementedError


class Pieces(_Sparse):
    """Some ranges of a file, read beforehand."""

    def __init__(self, size: int, buffers: Sequence[tuple[int, bytearray]]) -> None:
        super().__init__(size)
        self._buffers = buffers

    def _bytes(self, start: int, stop: int) -> memoryview:
        for first, buffer in self._buffers:
            if first <= start and stop <= first + len(buffer):
                return memoryview(buffer)[start - first : stop - first]
        raise ValueError(f"bytes {start} to {stop} were not read beforehand")


class Tail(_Sparse):
    """The end of a file, read when it is asked for, and once more if the footer is longer."""

    def __init__(self, store: Store, meta: ObjectMeta) -> None:
        super().__init__(meta.size)
        self._store = store
        self._meta = meta
        self._start = meta.size
        self._data = memoryview(b"")

    def _bytes(self, start: int, stop: int) -> memoryview:
        if start < self._start:
            self._start = max(0, min(start, self._meta.size - TAIL_BYTES))
            self._data = self._store.get(
                self._meta.key, start=self._start, if_match=self._meta.etag
            )
        return self._data[start - self._start : stop - self._start]
