"""Writes: an object of any length in bounded memory, its parts going up while the caller still writes."""

from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass

from crc32c import crc32c

from penstock.errors import PenstockError
from penstock.store import ObjectMeta, PartUpload, Store
from penstock.store.protocol import Buffer
from penstock.transfer.budget import Share, shared_budget
from penstock.transfer.plan import upload_part_bytes
from penstock.transfer.threads import part_threads

__all__ = ["Upload"]

_SPARES = 2


@dataclass(frozen=True, slots=True)
class _Part:
    number: int
    offset: int
    buffer: bytearray
    filled: int
    reserved: int


class Upload:
    """One object on its way up. It appears, whole and verified, when `close` returns; never after `abort`.

    Parts are sent as they fill; at most the byte budget is held. What fits into one part is a single put. Not for
    use by several threads at once.
    """

    def __init__(self, store: Store, key: str, *, if_absent: bool = False) -> None:
        self._store = store
        self._key = key
        self._if_absent = if_absent
        self._share = Share(shared_budget(store.config.transfer))
        self._upload: PartUpload | None = None
        self._sent: list[Future[None]] = []
        self._spare: list[bytearray] = []
        self._buffer = bytearray()
        self._filled = 0
        self._part_bytes = self._size_of(0)
        self._reserved = 0
        self._crc = 0
        self._size = 0
        self._meta: ObjectMeta | None = None
        self._open = True

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._size

    @property
    def crc32c(self) -> int:
        """The checksum of the bytes written so far."""
        return self._crc

    @property
    def closed(self) -> bool:
        """Whether the upload was closed or aborted."""
        return not self._open

    def write(self, data: Buffer) -> int:
        """Takes all of `data`, which may change once this returns. Waits where the budget is full.

        A failure, of an earlier part too, aborts, and is raised.
        """
        if not self._open:
            raise ValueError(f"{self._name}: write to a closed upload")
        view = memoryview(data).cast("B")
        try:
            self._raise_failure()
            self._crc = crc32c(view, self._crc)
            self._size += len(view)
            rest = view
            while rest:
                rest = rest[self._append(rest) :]
        except BaseException:
            self._abort_quietly()
            raise
        return len(view)

    def close(self) -> ObjectMeta:
        """Sends the rest, publishes the object and returns what the store says of it. Closing again is harmless.

        A failure aborts, and is raised.
        """
        if self._meta is not None:
            return self._meta
        if not self._open:
            raise ValueError(f"{self._name}: the upload was aborted, so there is nothing to close")
        try:
            self._meta = self._publish()
        except BaseException:
            self._abort_quietly()
            raise
        self._finish()
        return self._meta

    def abort(self) -> None:
        """Forgets everything; nothing appears. Harmless after `close`."""
        if not self._open:
            return
        for future in self._sent:
            future.cancel()
        wait(self._sent)
        try:
            if self._upload is not None:
                self._upload.abort()
        finally:
            self._finish()

    def _abort_quietly(self) -> None:
        # What an abort that fails leaves behind is invisible, and `sweep` finds it; the first error counts.
        with suppress(PenstockError):
            self.abort()

    @property
    def _name(self) -> str:
        return f"{self._store.url.rstrip('/')}/{self._key}"

    def _size_of(self, number: int) -> int:
        return upload_part_bytes(number, first_bytes=self._store.config.transfer.part_bytes)

    def _append(self, data: memoryview) -> int:
        """Copies what fits into the part that is being filled. A full one is sent when there is more to come."""
        if self._filled == self._part_bytes:
            self._send()
        wanted = min(len(data), self._part_bytes - self._filled)
        self._make_room(self._filled + wanted)
        with memoryview(self._buffer) as buffer:
            buffer[self._filled : self._filled + wanted] = data[:wanted]
        self._filled += wanted
        return wanted

    def _make_room(self, size: int) -> None:
        """Has `size` bytes of buffer, counted in the budget: a whole part, unless this may be a small object."""
        if size <= self._reserved:
            return
        want = (
            self._part_bytes
            if self._sent or self._spare
            else min(self._part_bytes, max(2 * size, 64 << 10))
        )
        self._share.acquire(want - self._reserved, idle_bytes=self._reserved)
        self._reserved = want
        if not self._buffer and self._spare:
            self._buffer = self._spare.pop()
        if len(self._buffer) < want:
            self._buffer.extend(bytes(want - len(self._buffer)))

    def _send(self) -> None:
        if self._upload is None:
            self._upload = self._store.open_upload(self._key, if_absent=self._if_absent)
        part = _Part(
            len(self._sent), self._size_before(), self._buffer, self._filled, self._reserved
        )
        self._sent.append(part_threads().submit(self._send_part, self._upload, part))
        self._buffer, self._filled, self._reserved = bytearray(), 0, 0
        self._part_bytes = self._size_of(len(self._sent))

    def _size_before(self) -> int:
        return sum(self._size_of(number) for number in range(len(self._sent)))

    def _send_part(self, upload: PartUpload, part: _Part) -> None:
        try:
            with memoryview(part.buffer) as view:
                upload.put_part(part.number, view[: part.filled], offset=part.offset)
        finally:
            # Kept for the next part: touching fresh memory costs as much as sending it. Not many: what is spare is
            # not in the budget.
            if len(self._spare) < _SPARES:
                self._spare.append(part.buffer)
            self._share.release(part.reserved)

    def _publish(self) -> ObjectMeta:
        if not self._sent:
            with memoryview(self._buffer) as view:
                return self._store.put(self._key, view[: self._filled], if_absent=self._if_absent)
        if self._filled:
            self._send()
        wait(self._sent)
        self._raise_failure()
        upload = self._upload
        assert upload is not None
        return upload.complete(size=self._size, crc32c=self._crc)

    def _raise_failure(self) -> None:
        for future in self._sent:
            if (
                future.done()
                and not future.cancelled()
                and (error := future.exception()) is not None
            ):
                raise error

    def _finish(self) -> None:
        self._open = False
        self._share.close()
        self._buffer = bytearray()
        self._spare.clear()
        self._sent.clear()
