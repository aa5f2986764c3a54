"""Puts credentials onto requests that go over the wire directly; `credentials.py` says where they come from."""

import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock.config import AccessKey
from penstock.store.credentials import EngineOptions, Provider
from penstock.store.sigv4 import sign
from penstock.store.wire import Authorise

__all__ = ["gcs_authorise", "s3_authorise"]

_RENEW_BEFORE = timedelta(minutes=1)


def s3_authorise(options: EngineOptions, region: str) -> Authorise:
    """Signs with what `s3_options` found: a key, a provider of keys, or nothing."""
    if options.get("skip_signature"):
        return _nothing
    fresh = _Fresh(options)

    def authorise(
        method: str, path: str, query: str, headers: Mapping[str, str]
    ) -> Mapping[str, str]:
        found = fresh()
        key = AccessKey(
            found["access_key_id"],
            found["secret_access_key"],
            found.get("token") or found.get("session_token"),
        )
        return sign(method, path, query, headers, key=key, region=region, now=datetime.now(UTC))

    return authorise


def gcs_authorise(options: EngineOptions) -> Authorise:
    """Sends the bearer token that `gcs_options` found."""
    if options.get("skip_signature"):
        return _nothing
    fresh = _Fresh(options)

    def authorise(_: str, __: str, ___: str, ____: Mapping[str, str]) -> Mapping[str, str]:
        found = fresh()
        return {"authorization": f"Bearer {found.get('token') or found['bearer_token']}"}

    return authorise


def _nothing(_: str, __: str, ___: str, ____: Mapping[str, str]) -> Mapping[str, str]:
    return {}


class _Fresh:
    """Fixed credentials, or those of a provider, asked again a minute before they expire."""

    def __init__(self, options: EngineOptions) -> None:
        self._provider: Provider | None = options.get("credential_provider")
        self._found: Mapping[str, Any] = {} if self._provider is not None else options
        self._lock = threading.Lock()

    def __call__(self) -> Mapping[str, Any]:
        if self._provider is None:
            return self._found
        with self._lock:
            expires = self._found.get("expires_at")
            stale = expires is not None and expires - _RENEW_BEFORE < datetime.now(UTC)
            if not self._found or stale:
                self._found = self._provider()
            return self._found
