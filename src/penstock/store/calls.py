"""Makes calls of the engine: the one place where they are counted and their errors translated."""

import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

from penstock import metrics
from penstock.config import StoreConfig
from penstock.errors import PenstockError
from penstock.store import engine
from penstock.store.clients import endpoint_of, open_client
from penstock.store.credentials import Provider
from penstock.store.translate import Failure, Target, translate
from penstock.url import Location

__all__ = ["EngineCalls", "PastTheEnd"]

_T = TypeVar("_T")


class PastTheEnd(PenstockError):
    """A range began at or after the end: an empty result, not an error, to those who read."""


class EngineCalls:
    """Calls about one location. Opens this process's client on first use."""

    def __init__(self, location: Location, config: StoreConfig) -> None:
        self._location = location
        self._config = config
        self._url = f"{str(location).removesuffix('/')}/"
        self._opened: tuple[int, Any, Provider | None] | None = None

    def _client(self) -> tuple[Any, Provider | None]:
        opened = self._opened
        if opened is None or opened[0] != os.getpid():
            client, provider = open_client(self._location, self._config)
            self._opened = opened = (os.getpid(), client, provider)
        return opened[1], opened[2]

    def run(
        self,
        verb: str,
        key: str,
        call: Callable[[Any, Any], _T],
        *,
        size_read: Callable[[_T], int] | None = None,
        size_written: int = 0,
    ) -> _T:
        """What `call` returns, given the engine and this process's client. `key` is for the message of an error."""
        obstore = engine.obstore()
        client, provider = self._client()
        began = time.perf_counter()
        try:
            result = call(obstore, client)
        except Exception as exc:  # noqa: BLE001 - whatever the engine raises is translated below
            failed = exc
        else:
            seconds = time.perf_counter() - began
            read = size_read(result) if size_read is not None else 0
            metrics.record(
                metrics.Request(verb, self._location.bucket, seconds, read, size_written)
            )
            return result
        # Raised outside the except block, so that the engine's own text is not carried along as context.
        raise self._failed(Failure.of(failed), verb, key, time.perf_counter() - began, provider)

    def _failed(
        self, failure: Failure, verb: str, key: str, seconds: float, provider: Provider | None
    ) -> PenstockError:
        if verb == "get" and failure.past_the_end:
            metrics.record(metrics.Request(verb, self._location.bucket, seconds))
            return PastTheEnd(key)
        where = endpoint_of(self._location, self._config) or "the store"
        target = Target(verb, f"{self._url}{key}", self._location.root, where, self._config)
        error = translate(failure, target, provider.failure if provider is not None else None)
        request = metrics.Request(
            verb,
            self._location.bucket,
            seconds,
            retries=failure.retries or 0,
            error=type(error).__name__,
        )
        metrics.record(request)
        return error
