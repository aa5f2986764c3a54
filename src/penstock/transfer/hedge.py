"""Second requests for the slow tail: sent when the first takes longer than 95 % do, within a small allowance."""

import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, wait
from typing import TypeVar

from penstock import metrics
from penstock.config import TransferConfig
from penstock.transfer.threads import part_threads
from penstock.transfer.tuning import Limiter

__all__ = ["Hedge"]

_T = TypeVar("_T")
_SLOW_SHARE = 0.95


class Hedge:
    """Runs a read, and runs it again beside the first if that is slow. The first good answer wins.

    A second request that has not begun is cancelled; one that has is let run out and its answer dropped, for the
    engine cannot be interrupted.
    """

    def __init__(self, limiter: Limiter, config: TransferConfig) -> None:
        self._limiter = limiter
        self._share = config.hedge_share
        self._lock = threading.Lock()
        self._asked = 0
        self._hedged = 0

    def first(self, read: Callable[[], _T]) -> _T:
        """The first good answer of one or two reads; the first error if there is none."""
        slow_s = self._limiter.slow_s(_SLOW_SHARE)
        with self._lock:
            self._asked += 1
        if slow_s is None:
            return read()
        first = part_threads().submit(read)
        if wait([first], timeout=slow_s).done or not self._allowed():
            return first.result()
        second = part_threads().submit(read)
        metrics.count_hedge()
        done, running = wait([first, second], return_when=FIRST_COMPLETED)
        winner = done.pop()
        if winner.exception() is not None and running:
            return running.pop().result()
        for late in running:
            late.cancel()
        return winner.result()

    def _allowed(self) -> bool:
        with self._lock:
            if self._hedged + 1 > self._share * self._asked:
                return False
            self._hedged += 1
            return True
