"""Reads ahead: many reads under way, their results in order, the bytes within the budget."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from penstock.errors import Throttled
from penstock.store import Store
from penstock.transfer.budget import Share, shared_budget
from penstock.transfer.hedge import Hedge
from penstock.transfer.threads import Job, object_threads
from penstock.transfer.tuning import Limiter, limiter_for

__all__ = ["Task", "read_ahead"]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Task(Generic[_T]):
    """A read, and about how many bytes it will hold."""

    size: int
    read: Callable[[], _T]


def read_ahead(store: Store, tasks: Iterable[Task[_T]]) -> Iterator[Job[_T]]:
    """Makes the reads, as many at a time as pay off, and gives their jobs in order, each when it is its turn.

    A job's result is counted in the budget until the next one is asked for. What is under way when the caller stops
    is given up.
    """
    config = store.config.transfer
    limiter = limiter_for(store)
    hedge = Hedge(limiter, config) if config.hedge else None
    ahead: deque[tuple[Job[_T], int]] = deque()
    coming = iter(tasks)
    held: Task[_T] | None = None
    with Share(shared_budget(config)) as share:
        try:
            while True:
                while len(ahead) < limiter.limit:
                    task = held if held is not None else next(coming, None)
                    held = None
                    if task is None:
                        break
                    if not share.try_acquire(task.size):
                        if ahead:
                            held = task
                            break
                        share.acquire(task.size)
                    job = object_threads().submit(partial(_observed, task.read, limiter, hedge))
                    ahead.append((job, task.size))
                if not ahead:
                    return
                job, size = ahead.popleft()
                yield job
                share.release(size)
        finally:
            for job, _ in ahead:
                job.cancel()


def _observed(read: Callable[[], _T], limiter: Limiter, hedge: Hedge | None) -> _T:
    began = time.monotonic()
    try:
        found = read() if hedge is None else hedge.first(read)
    except Throttled:
        limiter.throttled()
        raise
    limiter.answered(time.monotonic() - began)
    return found
