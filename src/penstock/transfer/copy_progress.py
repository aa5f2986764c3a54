"""How far a copy is. Written by its threads, read by whoever shows it."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

from penstock.transfer.copy_plan import Task

__all__ = ["CopyCounts", "CopyProgress"]


@dataclass(frozen=True, slots=True)
class CopyCounts:
    """A copy at one moment. `objects` and `bytes` shrink by what turns out to be there already, or fails."""

    objects: int = 0
    """To be copied, as far as is known."""
    objects_copied: int = 0
    bytes: int = 0
    """To be copied, as far as is known."""
    bytes_copied: int = 0
    """Acknowledged by the store, or written to the disk; a large object counts part by part."""
    identical: int = 0
    """Left alone, for they are there already."""
    failed: int = 0


class CopyProgress:
    """Pass one to `copy_objects`, and read `counts` from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = CopyCounts()

    @property
    def counts(self) -> CopyCounts:
        """The numbers now."""
        return self._counts

    def planned(self, tasks: Sequence[Task], *, identical: int, failed: int) -> None:
        """These are to be copied or compared; of the others it is known what became of them."""
        with self._lock:
            size = sum(task.source.size for task in tasks)
            self._counts = CopyCounts(len(tasks), 0, size, 0, identical, failed)

    def moved(self, size: int) -> None:
        """So many bytes have arrived; a negative number takes back those of an object that failed."""
        with self._lock:
            self._counts = replace(self._counts, bytes_copied=self._counts.bytes_copied + size)

    def copied(self) -> None:
        """One object is where it should be."""
        with self._lock:
            self._counts = replace(self._counts, objects_copied=self._counts.objects_copied + 1)

    def dropped(self, size: int, *, identical: int = 0, failed: int = 0) -> None:
        """One object will not be copied."""
        with self._lock:
            now = self._counts
            self._counts = replace(
                now,
                objects=now.objects - 1,
                bytes=now.bytes - size,
                identical=now.identical + identical,
                failed=now.failed + failed,
            )
