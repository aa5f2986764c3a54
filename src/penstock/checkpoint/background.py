"""Lets a program that ends without closing its manager finish the save that is on its way."""

import sys
import threading
import traceback
import weakref
from typing import Protocol

__all__ = ["finish_before_exit"]


class Waits(Protocol):
    """Has work on its way."""

    def close(self) -> None:
        """Waits for it, and raises if it failed."""
        ...


_open: "weakref.WeakSet[Waits]" = weakref.WeakSet()
_lock = threading.Lock()
_registered = False


def finish_before_exit(manager: Waits) -> None:
    """Closes `manager` when the interpreter ends, if it is still there then, and shows what went wrong."""
    global _registered
    with _lock:
        _open.add(manager)
        if _registered:
            return
        _registered = True
    # `atexit` comes too late: by then the thread pools that an upload needs refuse work.
    threading._register_atexit(_finish)  # type: ignore[attr-defined]  # noqa: SLF001 - what concurrent.futures itself uses


def _finish() -> None:
    for manager in [*_open]:
        try:
            manager.close()
        except Exception as exc:  # noqa: BLE001 - nobody is left to raise it to
            traceback.print_exception(exc, file=sys.stderr)
