"""Lists a prefix with threads that take work from each other; parts.py decides what and when.

The walk begins as a plain listing: one thread, one request after the other. Once enough full pages have come, a
second thread takes half of what is left, and so on while the requests that this may waste stay affordable.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar

from penstock.listing.parts import Part, Parts
from penstock.store import Page, Pages

__all__ = ["walk"]


class Collects(Protocol):
    """Takes the pages of one part, one after the other."""

    def add(self, page: Page) -> None:
        """Takes a page, which is not empty."""


_C = TypeVar("_C", bound=Collects)


def walk(
    pages: Pages,
    prefix: str,
    *,
    threads: int,
    collector: Callable[[], _C],
    on_progress: Callable[[int], None] | None,
) -> list[_C]:
    """Collectors with all pages of the prefix, in the store's order, each key in exactly one of them.

    At most 1.3 requests per 1,000 keys, and exactly one per page while there are fewer than 4,000. The first error
    ends all threads and is raised; pages are retried below, in the store. `on_progress` gets the number of keys so
    far, in the thread that read the page. Raises `OutOfOrder` where a store cannot be walked with many.
    """
    return _Walk(pages, prefix, threads, collector, on_progress).run()


class _Walk(Generic[_C]):
    def __init__(
        self,
        pages: Pages,
        prefix: str,
        threads: int,
        collector: Callable[[], _C],
        on_progress: Callable[[int], None] | None,
    ) -> None:
        self._pages = pages
        self._prefix = prefix
        self._collector = collector
        self._on_progress = on_progress
        self._max_helpers = threads - 1
        self._pool = ThreadPoolExecutor(threads, "penstock-list")
        self._changed = threading.Condition()
        # What follows is read and written under the lock of `_changed` only.
        self._parts = Parts(prefix)
        self._collected = {part: collector() for part in self._parts.all}
        self._helpers = 0
        self._error: BaseException | None = None

    def run(self) -> list[_C]:
        try:
            self._work(self._parts.all[0])
            with self._changed:
                self._changed.wait_for(lambda: self._helpers == 0)
        except BaseException as exc:
            self._stop(exc)
            raise
        finally:
            self._pool.shutdown()
        if self._error is not None:
            raise self._error
        return [self._collected[part] for part in self._parts.all]

    def _help(self) -> None:
        try:
            if self._parts.order is None:
                order = self._pages.order()
                with self._changed:
                    self._parts.set_order(order)
            self._work(self._steal())
        except BaseException as exc:  # noqa: BLE001 - raised again by run(), in the caller's thread
            self._stop(exc)
        finally:
            with self._changed:
                self._helpers -= 1
                self._changed.notify_all()

    def _stop(self, error: BaseException) -> None:
        with self._changed:
            self._error = self._error or error

    def _work(self, part: Part | None) -> None:
        while part is not None:
            at_end = self._list(part)
            with self._changed:
                self._parts.close(part, at_end=at_end)
            part = self._steal()

    def _steal(self) -> Part | None:
        with self._changed:
            part = self._parts.split() if self._error is None else None
            if part is not None:
                self._collected[part] = self._collector()
            return part

    def _list(self, part: Part) -> bool:
        """Reads the part; returns whether the store had no more keys, rather than only the part."""
        start_after = None if part.after is None else self._parts.key(part.after)
        for page in self._pages.pages(self._prefix, start_after=start_after):
            with self._changed:
                own, is_last = self._parts.read(part, page)
                count = self._parts.keys
                is_over = is_last or self._error is not None
                wants_help = not is_over and self._helpers < self._max_helpers
                wants_help = wants_help and self._parts.may_split()
                self._helpers += wants_help
            if wants_help:
                self._pool.submit(self._help)
            if own.keys:
                self._collected[part].add(own)
            if self._on_progress is not None:
                self._on_progress(count)
            if is_over:
                return False
        return True
