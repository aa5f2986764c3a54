"""Copies one object, and tells whether two have the same content. `copy_run.py` decides when."""

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from crc32c import crc32c

from penstock.config import TransferConfig
from penstock.errors import PenstockError
from penstock.store import PartUpload
from penstock.transfer.budget import ByteBudget, Share, shared_budget
from penstock.transfer.copy_ends import End, PartSource, StoreEnd
from penstock.transfer.copy_local import LocalEnd
from penstock.transfer.copy_plan import Entry, Task, parts_of
from penstock.transfer.copy_progress import CopyProgress
from penstock.transfer.plan import ByteRange
from penstock.transfer.threads import part_threads

__all__ = ["Copier", "Mover", "Preview", "Stopped", "same_content"]

_LARGEST_SERVER_COPY_BYTES = 5 << 30


class Stopped(Exception):
    """The copy was told to stop before this object was done."""


class Mover(Protocol):
    """Copies one object, in the thread that calls it."""

    def held_bytes(self, task: Task) -> int | None:
        """The memory that it takes; None where it is a large object, which takes its own from the budget."""
        ...

    def __call__(self, task: Task, progress: CopyProgress) -> None: ...


class Preview(Mover):
    """Copies nothing."""

    def held_bytes(self, task: Task) -> int | None:
        del task
        return 0

    def __call__(self, task: Task, progress: CopyProgress) -> None:
        progress.moved(task.source.size)


class Copier(Mover):
    """Copies from one end to the other."""

    def __init__(
        self, source: End, target: End, *, config: TransferConfig, stop: threading.Event
    ) -> None:
        self._source = source
        self._target = target
        self._config = config
        self._stop = stop
        # Not all of the budget, so that small objects pass large ones by.
        self._large = ByteBudget(config.budget_bytes * 3 // 4)

    def held_bytes(self, task: Task) -> int | None:
        if self._server_side(task) is not None:
            return 0
        return task.source.size if task.source.size <= self._config.part_bytes else None

    def __call__(self, task: Task, progress: CopyProgress) -> None:
        ends = self._server_side(task)
        if ends is not None:
            source, target = ends
            source.store.copy(source.prefix + task.source.name, target.prefix + task.target)
            progress.moved(task.source.size)
        elif self.held_bytes(task) is not None:
            self._target.write(task.target, self._source.read(task.source))
            progress.moved(task.source.size)
        else:
            self._copy_parts(task, progress)

    def _server_side(self, task: Task) -> tuple[StoreEnd, StoreEnd] | None:
        """Both ends, where one store is asked to copy by itself, which it does for up to 5 GiB."""
        source, target = self._source, self._target
        if not (isinstance(source, StoreEnd) and isinstance(target, StoreEnd)):
            return None
        is_one = (source.store.url, source.store.config) == (target.store.url, target.store.config)
        return (
            (source, target) if is_one and task.source.size <= _LARGEST_SERVER_COPY_BYTES else None
        )

    def _copy_parts(self, task: Task, progress: CopyProgress) -> None:
        counted = _Counted(progress)
        with self._source.open_parts(task.source) as reading:
            writing = self._target.open_upload(task.target)
            try:
                crc = self._pump(task.source, reading, writing, counted)
                reading.check(crc)
                writing.complete(size=task.source.size, crc32c=crc)
            except BaseException:
                counted.take_back()
                # What went wrong first is what is worth telling.
                with suppress(PenstockError):
                    writing.abort()
                raise

    def _pump(
        self, entry: Entry, reading: PartSource, writing: PartUpload, counted: "_Counted"
    ) -> int:
        """Reads and writes the parts side by side; the checksum follows in order, from the buffers."""
        ahead: deque[_Part] = deque()
        spare: list[bytearray] = []
        parts = parts_of(entry.size, first_bytes=self._config.part_bytes)
        crc = 0
        with (
            Share(self._large) as large,
            Share(shared_budget(self._config)) as share,
        ):
            room = _Room(large, share)
            try:
                for number, span in enumerate(parts):
                    if self._stop.is_set():
                        raise Stopped
                    while not room.try_acquire(len(span)):
                        if not ahead:
                            room.acquire(len(span))
                            break
                        crc = ahead.popleft().finish(crc, spare, room)
                    part = _Part(number, span, _buffer(spare, len(span)))
                    part.job = part_threads().submit(part.carry, reading, writing, counted)
                    ahead.append(part)
                    while ahead and ahead[0].is_done:
                        crc = ahead.popleft().finish(crc, spare, room)
                while ahead:
                    crc = ahead.popleft().finish(crc, spare, room)
            finally:
                _give_up(ahead)
        return crc


@dataclass(frozen=True, slots=True)
class _Room:
    """What one large object holds of the memory for large ones, and of everybody's."""

    large: Share
    all: Share

    def try_acquire(self, size: int) -> bool:
        if not self.large.try_acquire(size):
            return False
        if self.all.try_acquire(size):
            return True
        self.large.release(size)
        return False

    def acquire(self, size: int) -> None:
        self.large.acquire(size)
        self.all.acquire(size)

    def release(self, size: int) -> None:
        self.all.release(size)
        self.large.release(size)


class _Part:
    def __init__(self, number: int, span: ByteRange, buffer: bytearray) -> None:
        self._number = number
        self._span = span
        self._buffer = buffer
        self.job: Future[None]

    @property
    def is_done(self) -> bool:
        return self.job.done()

    def carry(self, reading: PartSource, writing: PartUpload, counted: "_Counted") -> None:
        with memoryview(self._buffer) as whole, whole[: len(self._span)] as view:
            reading.read_into(view, start=self._span.start)
            writing.put_part(self._number, view, offset=self._span.start)
            counted.add(len(view))

    def finish(self, crc: int, spare: list[bytearray], room: _Room) -> int:
        """Waits for the part, and gives its memory back."""
        try:
            self.job.result()
            with memoryview(self._buffer) as view:
                return int(crc32c(view[: len(self._span)], crc))
        finally:
            # Kept for the next part: touching fresh memory costs as much as sending it.
            spare.append(self._buffer)
            room.release(len(self._span))


class _Counted:
    """What one object has added to the progress."""

    def __init__(self, progress: CopyProgress) -> None:
        self._progress = progress
        self._lock = threading.Lock()
        self._size = 0

    def add(self, size: int) -> None:
        with self._lock:
            self._size += size
        self._progress.moved(size)

    def take_back(self) -> None:
        self._progress.moved(-self._size)


def _buffer(spare: list[bytearray], size: int) -> bytearray:
    buffer = spare.pop() if spare else bytearray(size)
    return buffer if len(buffer) >= size else bytearray(size)


def _give_up(parts: Sequence[_Part] | deque[_Part]) -> None:
    jobs = [part.job for part in parts]
    for job in jobs:
        job.cancel()
    wait(jobs)


def same_content(source: End, target: End, task: Task) -> bool:
    """Whether both ends have the same bytes, by what a listing says, then by a checksum each. Costs no transfer."""
    present = task.present
    if present is None or present.size != task.source.size:
        return False
    if source.has_etag(task.source, present.etag) or target.has_etag(present, task.source.etag):
        return True
    pairs = [(source, task.source), (target, present)]
    found: set[int] = set()
    # Stores first: they are asked for nothing but a header, and may not know.
    for end, entry in sorted(pairs, key=lambda pair: isinstance(pair[0], LocalEnd)):
        crc = end.crc32c(entry)
        if crc is None:
            return False
        found.add(crc)
    return len(found) == 1
