"""A save on its way: futures for "the state may change" and for "it is committed"."""

import threading
from concurrent.futures import Future
from typing import TypeVar

from penstock.checkpoint.manifest import Manifest

__all__ = ["PendingSave"]

_T = TypeVar("_T")


class _Seen(Future[_T]):
    """Knows whether somebody has asked for its outcome, so that a failure is told to somebody, and once."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = threading.Event()

    def result(self, timeout: float | None = None) -> _T:
        try:
            return super().result(timeout)
        finally:
            self._note()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        try:
            return super().exception(timeout)
        finally:
            self._note()

    def _note(self) -> None:
        if self.done():
            self.seen.set()


class PendingSave:
    """What `CheckpointManager.save` returns."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.staged: Future[None] = Future()
        """Done when the state may change; it is when `save` returns."""
        self.durable: _Seen[Manifest] = _Seen()
        """Done when the checkpoint is committed; raises what went wrong."""

    def result(self, timeout_s: float | None = None) -> Manifest:
        """Waits until the checkpoint is committed and returns its manifest, or raises what went wrong."""
        return self.durable.result(timeout_s)

    def done(self) -> bool:
        """Whether the save has succeeded or failed."""
        return self.durable.done()

    @property
    def unseen_failure(self) -> BaseException | None:
        """What went wrong, if nobody has asked for it yet."""
        if not self.durable.done() or self.durable.seen.is_set():
            return None
        return self.durable.exception()

    def __repr__(self) -> str:
        state = "on its way"
        if self.durable.done():
            # Not `exception()`: looking at it is not being told.
            state = "failed" if self.durable._exception is not None else "durable"  # noqa: SLF001 - see above
        return f"<PendingSave step {self.step}: {state}>"
