"""Executes a plan: keeps as many objects under way as the store takes, and collects what became of each."""

import errno
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from penstock.errors import (
    BucketNotFound,
    ConfigError,
    CredentialsExpired,
    NotFound,
    PenstockError,
    StoreUnavailable,
    Throttled,
    Unsupported,
)
from penstock.store import Store
from penstock.transfer.budget import shared_budget
from penstock.transfer.copy_ends import End, StoreEnd
from penstock.transfer.copy_local import LocalEnd
from penstock.transfer.copy_move import Copier, Mover, Preview, Stopped, same_content
from penstock.transfer.copy_plan import CopyPlan, Failure, Task, Verdict
from penstock.transfer.copy_progress import CopyProgress
from penstock.transfer.threads import object_threads
from penstock.transfer.tuning import limiter_for

__all__ = ["CopyRun"]

_LARGE_AT_ONCE = 4
_GRACE_S = 10.0
_LOST_IN_A_ROW = 20
_HOPELESS = (BucketNotFound, ConfigError, CredentialsExpired, Unsupported)
_HOPELESS_ERRNO = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}


class CopyRun:
    """One copy. The thread that calls `execute` hands out the work and alone writes the results."""

    def __init__(self, source: End, target: End, *, dry_run: bool, progress: CopyProgress) -> None:
        self.copied: list[Task] = []
        self.identical = 0
        self.not_tried = 0
        self.failures: list[Failure] = []
        self._source = source
        self._target = target
        self._progress = progress
        self._store = _store_of(source, target)
        self._budget = shared_budget(self._store.config.transfer)
        self._limiter = limiter_for(self._store)
        self._stop = threading.Event()
        config = self._store.config.transfer
        self._move: Mover = (
            Preview() if dry_run else Copier(source, target, config=config, stop=self._stop)
        )
        self._outcomes: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._running = 0
        self._running_large = 0
        self._changed = threading.Condition()
        self._busy = 0
        self._lost_in_a_row = 0

    def execute(self, plan: CopyPlan) -> None:
        """Returns when every object is copied, was there already or has failed."""
        for entry, reason in plan.refused:
            self.failures.append(Failure(self._source.url(entry.name), reason))
        todo = [task for task in plan.tasks if task.verdict is not Verdict.SAME]
        self.identical = len(plan.tasks) - len(todo)
        self._progress.planned(todo, identical=self.identical, failed=len(plan.refused))
        small = deque(task for task in todo if self._move.held_bytes(task) is not None)
        large = deque(task for task in todo if self._move.held_bytes(task) is None)
        try:
            while True:
                self._start(small, large)
                if not self._running:
                    break
                self._outcomes.get()()
        except BaseException:
            self._stop.set()
            self._wait_a_while()
            raise
        finally:
            if isinstance(self._target, LocalEnd):
                self._target.remove_staged()
        self.not_tried += len(small) + len(large)

    def _start(self, small: deque[Task], large: deque[Task]) -> None:
        while large and self._running_large < _LARGE_AT_ONCE and not self._stop.is_set():
            self._running_large += 1
            self._running += 1
            object_threads().submit(partial(self._work, large.popleft(), self._copy, large=1))
        room = self._limiter.limit + self._running_large
        while small and self._running < room and not self._stop.is_set():
            self._running += 1
            object_threads().submit(partial(self._work, small.popleft(), self._copy_small, large=0))

    def _wait_a_while(self) -> None:
        """Until what is under way is undone; a request cannot be interrupted, so not for ever."""
        with self._changed:
            self._changed.wait_for(lambda: self._busy == 0, timeout=_GRACE_S)

    def _work(self, task: Task, copy: Callable[[Task], bool], *, large: int) -> None:
        """Copies one object, in a worker's thread, and hands what became of it to the caller's."""
        # Counted here and not where the work is handed out, where Ctrl-C may strike between any two steps.
        with self._changed:
            self._busy += 1
        try:
            settle = self._outcome(task, copy)
        finally:
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()
        self._outcomes.put(partial(self._settle, settle, large))

    def _outcome(self, task: Task, copy: Callable[[Task], bool]) -> Callable[[], None]:
        try:
            had_to = copy(task)
        except BaseException as exc:  # noqa: BLE001 - judged, and raised again if need be, in the caller's thread
            if not isinstance(exc, Stopped):
                failed = 0 if _is_placeholder(task, exc) else 1
                self._progress.dropped(task.source.size, failed=failed)
            return partial(self._settle_failed, task, exc)
        if had_to:
            self._progress.copied()
        else:
            self._progress.dropped(task.source.size, identical=1)
        return partial(self._settle_done, task, had_to=had_to)

    def _copy(self, task: Task) -> bool:
        """Whether it had to be copied."""
        if self._stop.is_set():
            raise Stopped
        if task.verdict is Verdict.COMPARE and same_content(self._source, self._target, task):
            return False
        self._move(task, self._progress)
        return True

    def _copy_small(self, task: Task) -> bool:
        held = self._move.held_bytes(task) or 0
        self._budget.acquire(held)
        began = time.monotonic()
        try:
            had_to = self._copy(task)
        except Throttled:
            self._limiter.throttled()
            raise
        finally:
            self._budget.release(held)
        self._limiter.answered(time.monotonic() - began)
        return had_to

    def _settle(self, settle: Callable[[], None], large: int) -> None:
        self._running -= 1
        self._running_large -= large
        settle()

    def _settle_done(self, task: Task, *, had_to: bool) -> None:
        self._lost_in_a_row = 0
        if had_to:
            self.copied.append(task)
        else:
            self.identical += 1

    def _settle_failed(self, task: Task, error: BaseException) -> None:
        if isinstance(error, Stopped):
            self.not_tried += 1
        elif _is_placeholder(task, error):
            return
        elif isinstance(error, PenstockError | OSError):
            url = self._source.url(task.source.name)
            self.failures.append(Failure(url, _reason(error, url)))
            self._lost_in_a_row += isinstance(error, StoreUnavailable)
            if _is_hopeless(error) or self._lost_in_a_row >= _LOST_IN_A_ROW:
                self._stop.set()
        else:
            raise error


def _is_placeholder(task: Task, error: BaseException) -> bool:
    """Whether the object is what a console creates for a folder: empty, and listed without the slash at its end."""
    is_gone = isinstance(error, NotFound) and not isinstance(error, BucketNotFound)
    return is_gone and task.source.size == 0


def _store_of(source: End, target: End) -> Store:
    """The store whose limits count: the one that is written to, where both are stores."""
    for end in (target, source):
        if isinstance(end, StoreEnd):
            return end.store
    raise Unsupported("both ends of the copy are on this disk; use cp")


def _is_hopeless(error: Exception) -> bool:
    """Whether all other objects would fail alike."""
    if isinstance(error, PenstockError):
        return isinstance(error, _HOPELESS)
    return isinstance(error, OSError) and error.errno in _HOPELESS_ERRNO


def _reason(error: Exception, url: str) -> str:
    if isinstance(error, OSError) and not isinstance(error, PenstockError):
        where = (
            f"{error.filename}: " if error.filename is not None and error.filename != url else ""
        )
        return f"{where}{error.strerror or error}"
    return str(error).removeprefix(f"{url}: ")
