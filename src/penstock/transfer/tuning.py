"""Finds how many requests to keep in flight: grows while throughput does, backs off when the store slows down."""

import os
import threading
import time
from collections import deque

from penstock import metrics
from penstock.config import StoreConfig
from penstock.store import Store

__all__ = ["Limiter", "limiter_for"]

_FIRST = 16
_GAIN = 1.05
_UP = 1.25
_DOWN = 0.8
_QUEUED = 4.0
_FADING = 1.01
_SLOWER = 2.0
_MEMORY = 0.3
_HOLD_ROUNDS = 8
_ROUND_S = 0.02
_SAMPLES = 256


class Limiter:
    """A number of requests in flight, moved after every round of about that many answers.

    It doubles while each doubling brings throughput. A step that brings nothing is taken back, and tried again, as
    a small one, some rounds later. Where answers take several times as long as the best did, most of that is waiting
    in a queue: then a step down is tried in turn, and kept if it costs no throughput. The limit falls by a fifth when
    answers suddenly take twice as long as they lately did, and by half when the store says "slow down".
    """

    def __init__(self, store: str, maximum: int) -> None:
        self._store = store
        self._maximum = maximum
        self._lock = threading.Lock()
        self._limit = float(min(_FIRST, maximum))
        self._before_step = self._limit
        self._factor = 2.0
        self._holding = 0
        self._last_rate = 0.0
        self._usual_s: float | None = None
        self._best_s = float("inf")
        self._round_began = time.monotonic()
        self._answers = 0
        self._waited_s = 0.0
        self._seen: deque[float] = deque(maxlen=_SAMPLES)

    @property
    def limit(self) -> int:
        """How many requests may be in flight now."""
        return int(self._limit)

    def answered(self, seconds: float, *, now: float | None = None) -> None:
        """Notes one good answer, and moves the limit at the end of a round."""
        now = time.monotonic() if now is None else now
        with self._lock:
            self._answers += 1
            self._waited_s += seconds
            self._seen.append(seconds)
            lasted = now - self._round_began
            if self._answers >= self._limit and lasted >= _ROUND_S:
                self._move(self._answers / lasted, self._waited_s / self._answers)
                self._round_began, self._answers, self._waited_s = now, 0, 0.0
                metrics.note_concurrency(self._store, self.limit)

    def throttled(self) -> None:
        """Halves the limit: the store has had enough."""
        with self._lock:
            self._limit = max(1.0, self._limit / 2)
            self._hold()

    def slow_s(self, share: float) -> float | None:
        """The time that this share of recent answers stayed below; None while there are too few to tell."""
        with self._lock:
            if len(self._seen) < 20:
                return None
            ordered = sorted(self._seen)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    def _move(self, rate: float, mean_s: float) -> None:
        usual_s = self._usual_s if self._usual_s is not None else mean_s
        self._usual_s = usual_s + _MEMORY * (mean_s - usual_s)
        self._best_s = min(mean_s, _FADING * self._best_s)
        if self._holding:
            self._holding -= 1
            self._last_rate = rate
            if mean_s > _SLOWER * usual_s:
                self._limit = max(1.0, 0.8 * self._limit)
            elif not self._holding:
                queued = mean_s > _QUEUED * self._best_s
                self._factor = _DOWN if queued and self._factor > 1 else _UP
                self._step()
        elif self._pays_off(rate):
            self._step()
        else:
            self._limit = self._before_step
            self._hold()

    def _pays_off(self, rate: float) -> bool:
        if self._factor > 1:
            better, self._last_rate = rate > _GAIN * self._last_rate, rate
            return better
        # Compared with the rate before the first step down, lest small losses add up.
        return rate * _GAIN > self._last_rate and self._limit > 1

    def _step(self) -> None:
        self._before_step = self._limit
        wanted = self._factor * self._limit
        wanted = max(self._limit + 1, wanted) if self._factor > 1 else wanted
        self._limit = min(float(self._maximum), max(1.0, wanted))

    def _hold(self) -> None:
        self._holding = _HOLD_ROUNDS


_limiters: dict[tuple[str, StoreConfig], Limiter] = {}


def limiter_for(store: Store) -> Limiter:
    """This process's limiter for a store and its config, shared by all who read from it."""
    return _limiters.setdefault(
        (store.url, store.config), Limiter(store.url, store.config.transfer.max_concurrency)
    )


os.register_at_fork(after_in_child=_limiters.clear)
