"""`open_reader`: a seekable binary file over range reads, with a read-ahead that follows its use."""

import io
import os
from functools import partial

from crc32c import crc32c

from penstock.config import StoreConfig
from penstock.store import ObjectMeta, Store, open_object
from penstock.store.protocol import WritableBuffer
from penstock.transfer.fetch import check_stored, fetch
from penstock.transfer.threads import Job, object_threads

__all__ = ["ObjectReader", "open_reader"]

_FIRST_BYTES = 1 << 20
_RANDOM_BYTES = 128 << 10
_LARGEST_BYTES = 16 << 20
_DIRECT_BYTES = 2 << 20
_BUFFER_BYTES = 64 << 10


class _RangeReader(io.RawIOBase):
    """The unbuffered file. All its reads are of the version it met first.

    It keeps one window of the object and, while it is read in order, has the next one on its way; windows double
    as long as that goes on, and shrink to 128 KiB when it is read here and there. Large reads bypass them and
    land in the caller's memory. Who reads all of it in order is told by the last read if it was not what is stored.
    """

    def __init__(self, store: Store, key: str) -> None:
        super().__init__()
        self._store = store
        self._key = key
        self._meta: ObjectMeta | None = None
        self._position = 0
        self._window = memoryview(b"")
        self._window_start = 0
        self._window_bytes = _FIRST_BYTES
        self._next: tuple[int, Job[memoryview], int] | None = None
        self._crc = 0
        self._summed = 0

    @property
    def name(self) -> str:
        return f"{self._store.url.rstrip('/')}/{self._key}"

    @property
    def meta(self) -> ObjectMeta:
        """Size and ETag of the object; the first use reads its beginning, which tells."""
        if self._meta is None:
            first = self._store.get_object(self._key, start=0, stop=_FIRST_BYTES)
            self._meta, self._window, self._window_start = first.meta, first.data, 0
        return self._meta

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        match whence:
            case io.SEEK_SET:
                target = offset
            case io.SEEK_CUR:
                target = self._position + offset
            case io.SEEK_END:
                target = self.meta.size + offset
            case _:
                raise ValueError(f"{self.name}: whence must be 0, 1 or 2, got {whence}")
        if target < 0:
            raise ValueError(f"{self.name}: cannot seek to {target}, before the beginning")
        self._position = target
        return target

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: WritableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        wanted = min(len(view), self.meta.size - self._position)
        if wanted <= 0:
            return 0
        got = self._read_some(view[:wanted])
        self._sum_up(view[:got])
        self._position += got
        return got

    def readall(self) -> bytes:
        """The rest, by parallel ranges into the very bytes that are returned."""
        # Bytes can be written in place only here; `getvalue` then hands them over without a copy.
        rest = io.BytesIO(bytes(max(0, self.meta.size - self._position)))
        with rest.getbuffer() as view:
            done = 0
            while got := self.readinto(view[done:]):
                done += got
        return rest.getvalue()[:done]

    def _read_some(self, view: memoryview) -> int:
        inside = self._position - self._window_start
        if not 0 <= inside < len(self._window):
            if len(view) >= _DIRECT_BYTES:
                return fetch(
                    self._store, self._key, view, start=self._position, etag=self.meta.etag
                )
            self._move_window()
            inside = self._position - self._window_start
        got = min(len(view), len(self._window) - inside)
        view[:got] = self._window[inside : inside + got]
        self._read_ahead(self._position + got)
        return got

    def close(self) -> None:
        self._forget_next()
        self._window = memoryview(b"")
        super().close()

    def _sum_up(self, data: memoryview) -> None:
        """Keeps the checksum of what was read in order from the beginning, and compares it at the end."""
        size = self.meta.size
        if (
            self._position != self._summed
            or size <= _FIRST_BYTES
            or not self._store.config.verify_checksums
        ):
            # The store has compared what came whole in one answer.
            return
        crc = crc32c(data, self._crc)
        if self._summed + len(data) == size:
            stored = self._store.checksum(self._key)
            if stored.crc32c is not None and stored.meta.etag == self.meta.etag:
                check_stored(self._store, self._key, crc, stored.crc32c)
        self._crc, self._summed = crc, self._summed + len(data)

    def _move_window(self) -> None:
        in_order = self._position == self._window_start + len(self._window)
        if in_order:
            self._window_bytes = min(_LARGEST_BYTES, 2 * self._window_bytes)
        else:
            self._window_bytes = _RANDOM_BYTES
        ready, self._next = self._next, None
        if ready is not None and ready[0] == self._position and ready[2] == os.getpid():
            self._window = ready[1].result()
        else:
            if ready is not None:
                ready[1].cancel()
            self._window = self._read(self._position, self._window_bytes)
        self._window_start = self._position

    def _read_ahead(self, position: int) -> None:
        """Asks for the next window when this one is half read, if it was reached in order."""
        end = self._window_start + len(self._window)
        half_read = 2 * (end - position) < len(self._window)
        if (
            self._next is not None
            or not half_read
            or end >= self.meta.size
            or self._window_bytes <= _FIRST_BYTES
        ):
            return
        size = min(_LARGEST_BYTES, 2 * self._window_bytes)
        self._next = (end, object_threads().submit(partial(self._read, end, size)), os.getpid())

    def _read(self, start: int, size: int) -> memoryview:
        return self._store.get(self._key, start=start, stop=start + size, if_match=self.meta.etag)

    def _forget_next(self) -> None:
        if self._next is not None:
            self._next[1].cancel()
            self._next = None


class ObjectReader(io.BufferedReader):
    """A buffered file over an object. Travels to another process until it is first used."""

    def __init__(self, store: Store, key: str) -> None:
        self._recipe = (store, key)
        self._ranges = _RangeReader(store, key)
        super().__init__(self._ranges, _BUFFER_BYTES)

    @property
    def meta(self) -> ObjectMeta:
        """Size and ETag of the version that is read."""
        return self._ranges.meta

    def __reduce__(self) -> tuple[object, ...]:
        if self.closed or self.tell() or self._ranges._meta is not None:  # noqa: SLF001 - its other half
            raise TypeError(
                f"{self._ranges.name}: a reader travels to another process only before its first use"
            )
        return ObjectReader, self._recipe


def open_reader(url: str | os.PathLike[str], *, config: StoreConfig | None = None) -> ObjectReader:
    """The object at `url` as a seekable binary file. Makes no request before the first read.

    A small object costs one GET. Works with `torch.load`, `zipfile`, `tarfile`, PIL, pyarrow and safetensors.
    All of an object read in order is compared with its checksum, which costs a large one a HEAD at the end.
    """
    return ObjectReader(*open_object(url, config))
