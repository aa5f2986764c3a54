"""`open_writer`: a writable binary file over an upload."""

import io
import os
from contextlib import suppress
from types import TracebackType

from penstock.config import StoreConfig
from penstock.errors import PenstockError
from penstock.store import ObjectMeta, Store, open_object
from penstock.store.protocol import Buffer, WritableBuffer
from penstock.transfer.upload import Upload

__all__ = ["ObjectWriter", "open_writer"]


class ObjectWriter(io.RawIOBase):
    """Bytes written here become the object when it is closed, and not before.

    Left by an exception, Ctrl-C included, or dropped without being closed, it publishes nothing.
    """

    def __init__(self, store: Store, key: str, *, if_absent: bool) -> None:
        super().__init__()
        self._store = store
        self._key = key
        self._if_absent = if_absent
        self._upload: Upload | None = None
        self._aborted = False
        self.meta: ObjectMeta | None = None
        """What the store says of the object, once it is closed."""

    @property
    def name(self) -> str:
        """The object's URL."""
        return f"{self._store.url.rstrip('/')}/{self._key}"

    @property
    def crc32c(self) -> int:
        """The checksum of the bytes written so far."""
        return self._upload.crc32c if self._upload is not None else 0

    def writable(self) -> bool:
        return True

    def readinto(self, buffer: WritableBuffer, /) -> int:
        del buffer
        raise io.UnsupportedOperation(f"{self.name}: opened for writing, not for reading")

    def tell(self) -> int:
        return self._upload.size if self._upload is not None else 0

    def write(self, data: Buffer, /) -> int:
        if self.closed:
            raise ValueError(f"{self.name}: write to a closed file")
        return self._begun().write(data)

    def close(self) -> None:
        """Publishes the object. Closing again is harmless."""
        if self.closed:
            return
        try:
            if not self._aborted:
                self.meta = self._begun().close()
        finally:
            super().close()

    def abort(self) -> None:
        """Publishes nothing, and closes."""
        self._aborted = True
        try:
            if self._upload is not None:
                self._upload.abort()
        finally:
            self.close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._abort_quietly()

    def __del__(self) -> None:
        # The inherited one closes, which would publish half an object.
        if not self.closed:
            self._abort_quietly()

    def _abort_quietly(self) -> None:
        # What an abort that fails leaves behind is invisible, and `sweep` finds it; the first error counts.
        with suppress(PenstockError):
            self.abort()

    def __reduce__(self) -> tuple[object, ...]:
        if self._upload is not None or self.closed:
            raise TypeError(
                f"{self.name}: a writer travels to another process only before its first write"
            )
        return _rebuild, (self._store, self._key, self._if_absent)

    def _begun(self) -> Upload:
        if self._upload is None:
            self._upload = Upload(self._store, self._key, if_absent=self._if_absent)
        return self._upload


def _rebuild(store: Store, key: str, if_absent: bool) -> ObjectWriter:  # noqa: FBT001 - pickle's call
    return ObjectWriter(store, key, if_absent=if_absent)


def open_writer(
    url: str | os.PathLike[str], *, config: StoreConfig | None = None, if_absent: bool = False
) -> ObjectWriter:
    """A binary file that becomes the object at `url` when it is closed; use it in a `with` statement.

    `if_absent` raises `AlreadyExists` at the end if there is an object by then, and early if there is one now.
    """
    store, key = open_object(url, config)
    return ObjectWriter(store, key, if_absent=if_absent)
