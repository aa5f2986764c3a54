"""`open_reader`: a seekable binary file over range reads, with a read-ahead that follows its use."""

import io
import os
from functools import partial

from penstock.config import StoreConfig
from penstock.store import ObjectMeta, Store, open_object
from penstock.store.protocol import WritableBuffer
from penstock.transfer.fetch import fetch
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
    land in the caller's memory.
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
        inside = self._position - self._window_start
        if not 0 <= inside < len(self._window):
            if wanted >= _DIRECT_BYTES:
                return self._read_directly(view[:wanted])
            self._move_window()
            inside = self._position - self._window_start
        got = min(wanted, len(self._window) - inside)
        view[:got] = self._window[inside : inside + got]
        self._position += got
        self._read_ahead()
        return got

    def close(self) -> None:
        self._forget_next()
        self._window = memoryview(b"")
        super().close()

    def _read_directly(self, view: memoryview) -> int:
        got = fetch(self._store, self._key, view, start=self._position, etag=self.meta.etag)
        self._position += got
        return got

    def _move_window(self) -> None:
        in_order = self._position == self._window_start + len(self._window)
        if in_order:
            self._window_bytes = min(_LARGEST_BYTES, 2 * self._window_bytes)
        else:
            self._window_bytes = _RANDOM_BYTES
        ready = self._next
        if ready is not None and ready[0] == self._position and ready[2] == os.getpid():
            self._window = ready[1].result()
            self._next = None
        else:
            self._forget_next()
            self._window = self._read(self._position, self._window_bytes)
        self._window_start = self._position

    def _read_ahead(self) -> None:
        """Asks for the next window when this one is half read, if it was reached in order."""
        end = self._window_start + len(self._window)
        half_read = 2 * (end - self._position) < len(self._window)
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
    """
    return ObjectReader(*open_object(url, config))
