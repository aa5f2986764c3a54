"""Bounds the bytes a process holds in flight: one number, shared by all who read ahead, stage or upload."""

import os
import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

from penstock.config import TransferConfig

__all__ = ["ByteBudget", "Share", "shared_budget"]

_PATIENCE_S = 1.0


class ByteBudget:
    """A limit that is never exceeded, but by one item that is larger than it and then travels alone.

    First come, first served: a large item is not starved by small ones that would fit.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._in_use = 0
        self._waiting: deque[tuple[int, threading.Event]] = deque()

    @property
    def in_use_bytes(self) -> int:
        """What is held now."""
        return self._in_use

    def try_acquire(self, size: int) -> bool:
        """Takes `size` bytes if that needs no waiting."""
        with self._lock:
            if self._waiting or not self._fits(size):
                return False
            self._in_use += size
            return True

    def acquire(
        self,
        size: int,
        *,
        timeout_s: float | None = None,
        hopeless: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Takes `size` bytes, waiting for its turn; False if that did not come in time and seems `hopeless`."""
        with self._lock:
            if not self._waiting and self._fits(size):
                self._in_use += size
                return True
            mine = (size, threading.Event())
            self._waiting.append(mine)
        try:
            while not mine[1].wait(timeout_s) and not hopeless():
                pass
        except BaseException:
            # Ctrl-C while it waits: what nobody will take must not be granted.
            if self._leave(mine):
                self.release(size)
            raise
        return self._leave(mine)

    def take(self, size: int) -> None:
        """Takes `size` bytes at once, whatever is in use. Only `Share` knows when that is right."""
        with self._lock:
            self._in_use += size

    def release(self, size: int) -> None:
        """Gives back what was taken."""
        with self._lock:
            self._in_use -= size
            self._admit()

    def _leave(self, mine: tuple[int, threading.Event]) -> bool:
        """Gives up one's place in the queue; True if the turn had come before."""
        with self._lock:
            if mine[1].is_set():
                return True
            self._waiting.remove(mine)
            self._admit()
            return False

    def _fits(self, size: int) -> bool:
        return self._in_use == 0 or self._in_use + size <= self.limit_bytes

    def _admit(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            size, granted = self._waiting.popleft()
            self._in_use += size
            granted.set()


class Share:
    """One stream's hold on the budget: what it has acquired and not released yet.

    A stream with nothing on its way waits for a second at most and then goes ahead with one item: whoever fills the
    budget may be the very thread that waits here, with other streams open and idle, and then nobody would release.
    """

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._lock = threading.Lock()
        self._held = 0

    def acquire(self, size: int, *, idle_bytes: int = 0) -> None:
        """Waits until `size` more bytes fit. `idle_bytes` of what is held are not on their way to a release."""
        if not self._budget.acquire(
            size, timeout_s=_PATIENCE_S, hopeless=lambda: self._held <= idle_bytes
        ):
            self._budget.take(size)
        with self._lock:
            self._held += size

    def try_acquire(self, size: int) -> bool:
        """Takes `size` bytes if they fit now."""
        granted = self._budget.try_acquire(size)
        if granted:
            with self._lock:
                self._held += size
        return granted

    def release(self, size: int) -> None:
        """Gives back `size` bytes."""
        with self._lock:
            self._held -= size
        self._budget.release(size)

    def close(self) -> None:
        """Gives back what is left."""
        with self._lock:
            left, self._held = self._held, 0
        if left:
            self._budget.release(left)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


_budgets: dict[int, ByteBudget] = {}


def shared_budget(config: TransferConfig) -> ByteBudget:
    """This process's budget of that size; all who use the same limit share it."""
    return _budgets.setdefault(config.budget_bytes, ByteBudget(config.budget_bytes))


# What a parent had in flight is not in flight in its child, and its locks may be held by nobody.
os.register_at_fork(after_in_child=_budgets.clear)
