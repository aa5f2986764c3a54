"""Second requests for the slow tail: sent when the first takes longer than 95 % do, within a small allowance."""

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

from penstock import metrics
from penstock.config import TransferConfig
from penstock.errors import PenstockError
from penstock.transfer.threads import Job, hedge_threads
from penstock.transfer.tuning import Limiter

__all__ = ["Hedge"]

_T = TypeVar("_T")
_SLOW_SHARE = 0.95


class Hedge:
    """Runs a read, and runs it again beside the first if that is slow. The first good answer wins.

    The other one is let run out and its answer dropped, for the engine cannot be interrupted.
    """

    def __init__(self, limiter: Limiter, config: TransferConfig) -> None:
        self._limiter = limiter
        self._share = config.hedge_share
        self._lock = threading.Lock()
        self._asked = 0
        self._hedged = 0

    def first(self, read: Callable[[], _T]) -> _T:
        """The first good answer of one or two reads; the last error if there is none."""
        slow_s = self._limiter.slow_s(_SLOW_SHARE)
        with self._lock:
            self._asked += 1
        if slow_s is None:
            return read()
        answers: queue.SimpleQueue[Job[_T]] = queue.SimpleQueue()

        def ask() -> None:
            job = Job(read)
            job.run()
            answers.put(job)

        hedge_threads().submit(ask)
        try:
            return answers.get(timeout=slow_s).result()
        except queue.Empty:
            hedged = self._allowed()
        if hedged:
            metrics.count_hedge()
            hedge_threads().submit(ask)
        winner = answers.get()
        try:
            return winner.result()
        except PenstockError:
            if not hedged:
                raise
        return answers.get().result()

    def _allowed(self) -> bool:
        with self._lock:
            if self._hedged + 1 > self._share * self._asked:
                return False
            self._hedged += 1
            return True
