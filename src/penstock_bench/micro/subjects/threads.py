"""Threads for subjects whose calls block: as many as asked, each taking the next item when it is free."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["Crew"]

T = TypeVar("T")


class Crew:
    """A pool whose threads start with the first work and stay for the next."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads)

    def each(self, items: Iterable[T], work: Callable[[T], object]) -> None:
        """Calls `work` for every item, once, and returns when all are done; the first error is raised."""
        # next() on a built-in iterator is one step under the GIL: no lock, and no future per item.
        source = iter(items)

        def drain(_: int) -> None:
            for item in source:
                work(item)

        for _ in self._pool.map(drain, range(self._threads)):
            pass

    def close(self) -> None:
        self._pool.shutdown()
