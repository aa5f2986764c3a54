"""The threads of this process that wait for stores: for objects, for the parts of objects, for second requests."""

import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

__all__ = ["Job", "hedge_threads", "object_threads", "part_threads"]

_PARTS = 64
_OBJECTS = 1024
_HEDGED = 2 * _OBJECTS
_T = TypeVar("_T")


class Job(Generic[_T]):
    """A call that a worker makes. What a `Future` does, at a tenth of its cost: it counts, for 100 KiB objects."""

    __slots__ = ("_call", "_done", "_error", "_value")

    def __init__(self, call: Callable[[], _T]) -> None:
        self._call: Callable[[], _T] | None = call
        self._done = threading.Lock()
        self._done.acquire()
        self._error: BaseException | None = None
        self._value: _T | None = None

    def cancel(self) -> None:
        """Does not begin, unless it has begun. `result` must not be asked for any more."""
        self._call = None

    def run(self) -> None:
        """Makes the call, in a worker's thread."""
        call, self._call = self._call, None
        if call is not None:
            try:
                self._value = call()
            except BaseException as exc:  # noqa: BLE001 - raised again in `result`
                self._error = exc
        self._done.release()

    def result(self) -> _T:
        """Waits for the call; returns or raises what it did."""
        with self._done:
            if self._error is not None:
                raise self._error
            value: Any = self._value
            return value  # type: ignore[no-any-return]  # None is a value where _T allows it


class _Workers:
    """Threads that make calls, started when there are more calls than idle threads. They end with the process."""

    def __init__(self, maximum: int, *, of: str) -> None:
        self._maximum = maximum
        self._of = of
        self._jobs: queue.SimpleQueue[Job[Any]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._started = 0

    def submit(self, call: Callable[[], _T]) -> Job[_T]:
        job = Job(call)
        with self._lock:
            start = self._idle <= 0 and self._started < self._maximum
            self._idle -= 1
            self._started += start
        self._jobs.put(job)
        if start:
            threading.Thread(
                target=self._work, name=f"penstock-{self._of}-{self._started}", daemon=True
            ).start()
        return job

    def _work(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
            self._jobs.get().run()


_lock = threading.Lock()
_workers: _Workers | None = None
_hedged: _Workers | None = None
_parts: ThreadPoolExecutor | None = None


def object_threads() -> _Workers:
    """Threads for whole objects; a limiter, not the pool, decides how many are used."""
    global _workers
    with _lock:
        if _workers is None:
            _workers = _Workers(_OBJECTS, of="object")
        return _workers


def hedge_threads() -> _Workers:
    """Threads for reads that may be made twice. Apart from the objects', which wait for them."""
    global _hedged
    with _lock:
        if _hedged is None:
            _hedged = _Workers(_HEDGED, of="hedge")
        return _hedged


def part_threads() -> ThreadPoolExecutor:
    """Threads for the parts of one object. Apart from the objects', whose work may wait for parts."""
    global _parts
    with _lock:
        if _parts is None:
            _parts = ThreadPoolExecutor(_PARTS, thread_name_prefix="penstock-part")
        return _parts


def _forget() -> None:
    # The parent's threads do not exist here; its pools would take work and never do it.
    global _lock, _workers, _hedged, _parts
    _lock = threading.Lock()
    _workers = _hedged = _parts = None


os.register_at_fork(after_in_child=_forget)
