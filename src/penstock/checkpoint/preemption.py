"""`preemption_guard`: turns the signal that announces the end of a machine into a flag the training loop looks at."""

import signal
import threading
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any, Self

__all__ = ["PreemptionGuard", "preemption_guard"]


class PreemptionGuard:
    """Between entering and leaving, a first SIGTERM sets `should_stop`; a second one does what it would have done.

    For the main thread of a process. In a distributed run each rank sees its own signal: agree on stopping before
    acting on it.
    """

    def __init__(self, signals: Sequence[signal.Signals] = (signal.SIGTERM,)) -> None:
        self._signals = tuple(signals)
        self._before: dict[signal.Signals, Any] = {}
        self._stop = threading.Event()

    @property
    def should_stop(self) -> bool:
        """Whether the signal has come."""
        return self._stop.is_set()

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(
                "a preemption guard needs the main thread, where signals are handled; enter it there"
            )
        for number in self._signals:
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._restore()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._stop.set()
        self._restore()

    def _restore(self) -> None:
        while self._before:
            number, before = self._before.popitem()
            signal.signal(number, before if before is not None else signal.SIG_DFL)


def preemption_guard() -> PreemptionGuard:
    """For a `with` statement around the training loop; at each step, save and leave if its `should_stop` is set."""
    return PreemptionGuard()
