"""What this process asked of its stores: counters that every request passes through, and a hook to export them.

A forked child starts from zero.
"""

import os
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

__all__ = [
    "Hook",
    "Request",
    "Snapshot",
    "add_hook",
    "count_bad_sample",
    "count_hedge",
    "note_concurrency",
    "record",
    "remove_hook",
    "snapshot",
]


@dataclass(frozen=True, slots=True)
class Request:
    """One finished call to a store, as a hook sees it. `error` is the class name of what was raised."""

    verb: str
    store: str
    seconds: float
    bytes_read: int = 0
    bytes_written: int = 0
    retries: int = 0
    error: str | None = None


class Hook(Protocol):
    """Receives every finished call, in the thread that made it. Keep it short, and let it raise nothing."""

    def __call__(self, request: Request) -> None:
        """Sees one finished call."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The counters at one moment. Subtract two to measure what lies between them."""

    requests: Mapping[str, int]
    """Calls by verb: get, put, head, list (one per page), delete, copy."""
    bytes_read: int
    bytes_written: int
    retries: int
    """Attempts beyond the first, as far as they are known: the engine tells of those of a call that failed."""
    errors: Mapping[str, int]
    """Failed calls by error class."""
    wait_s: float
    """Time spent inside calls, summed over threads."""
    hedges: int
    """Second requests sent because the first was slow."""
    bad_samples: int
    """Samples of datasets that could not be read or decoded, whatever was done about them."""
    concurrency: Mapping[str, int]
    """Requests that the tuning keeps in flight now, by store."""

    def __sub__(self, earlier: "Snapshot") -> "Snapshot":
        return Snapshot(
            MappingProxyType(dict(Counter(self.requests) - Counter(earlier.requests))),
            self.bytes_read - earlier.bytes_read,
            self.bytes_written - earlier.bytes_written,
            self.retries - earlier.retries,
            MappingProxyType(dict(Counter(self.errors) - Counter(earlier.errors))),
            self.wait_s - earlier.wait_s,
            self.hedges - earlier.hedges,
            self.bad_samples - earlier.bad_samples,
            self.concurrency,
        )


class _Counters:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.requests: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.bytes_read = 0
        self.bytes_written = 0
        self.retries = 0
        self.wait_s = 0.0
        self.hedges = 0
        self.bad_samples = 0
        self.concurrency: dict[str, int] = {}


_counters = _Counters()
_hooks: tuple[Hook, ...] = ()


def record(request: Request) -> None:
    """Counts one finished call. The store adapters call this; nothing else should."""
    counters = _counters
    with counters.lock:
        counters.requests[request.verb] += 1
        counters.bytes_read += request.bytes_read
        counters.bytes_written += request.bytes_written
        counters.wait_s += request.seconds
        if request.error is not None:
            counters.errors[request.error] += 1
        counters.retries += request.retries
    for hook in _hooks:
        hook(request)


def snapshot() -> Snapshot:
    """The counters of this process now."""
    counters = _counters
    with counters.lock:
        return Snapshot(
            MappingProxyType(dict(counters.requests)),
            counters.bytes_read,
            counters.bytes_written,
            counters.retries,
            MappingProxyType(dict(counters.errors)),
            counters.wait_s,
            counters.hedges,
            counters.bad_samples,
            MappingProxyType(dict(counters.concurrency)),
        )


def count_hedge() -> None:
    """Counts one second request."""
    counters = _counters
    with counters.lock:
        counters.hedges += 1


def count_bad_sample() -> None:
    """Counts one sample that could not be used."""
    counters = _counters
    with counters.lock:
        counters.bad_samples += 1


def note_concurrency(store: str, limit: int) -> None:
    """Notes how many requests the tuning keeps in flight."""
    counters = _counters
    with counters.lock:
        counters.concurrency[store] = limit


def add_hook(hook: Hook) -> None:
    """Calls `hook` with every request from now on; an OpenTelemetry meter's counters fit in five lines."""
    global _hooks
    _hooks = (*_hooks, hook)


def remove_hook(hook: Hook) -> None:
    """Undoes `add_hook`; a hook that is not there is fine."""
    global _hooks
    _hooks = tuple(h for h in _hooks if h != hook)


def _start_from_zero() -> None:
    # A new object rather than a reset: the parent's lock may be held by a thread that does not exist here.
    global _counters
    _counters = _Counters()


os.register_at_fork(after_in_child=_start_from_zero)
