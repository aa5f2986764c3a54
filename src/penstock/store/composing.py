"""Composes objects of a GCS bucket on the server's side, the one thing that only the JSON API offers us.

Through google-cloud-storage, with the endpoint, the credentials and the retries of the store's config. The composed
objects are meant to live for a moment: all have names of one kind, by which those left behind are found.
"""

import os
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from penstock import metrics
from penstock.config import StoreConfig
from penstock.errors import ConfigError, NotFound
from penstock.store import engine
from penstock.store.authorise import gcs_authorise
from penstock.store.clients import endpoint_of
from penstock.store.credentials import gcs_options
from penstock.store.protocol import ObjectMeta
from penstock.store.translate import Failure, Target, translate
from penstock.store.wire import Authorise
from penstock.url import Location

__all__ = ["COMPOSED_PREFIX", "MAX_SOURCES", "Composer"]

MAX_SOURCES = 32
"""How many objects GCS composes at a time."""

COMPOSED_PREFIX = "penstock-composed/"
_NAME = re.compile(rf"{COMPOSED_PREFIX}[0-9a-f]{{32}}")
_CONNECTIONS = 128
_VARIABLES = ("GOOGLE_", "STORAGE_EMULATOR_HOST")
_KINDS = {404: "NotFound", 403: "PermissionDenied", 401: "Unauthenticated", 412: "Precondition"}
_T = TypeVar("_T")


class Composer:
    """Joins objects of one bucket into another, and removes it. Keys are relative to the bucket.

    It pickles and forks as its recipe, as a store does.
    """

    def __init__(self, url: str, config: StoreConfig) -> None:
        location = Location.parse(url)
        if location.scheme != "gs":
            raise ConfigError(
                f"{url}: only Google Cloud Storage composes objects; give a gs:// URL, or leave "
                "max_composite_bytes at 0"
            )
        try:
            import google.cloud.storage  # noqa: F401 - now, and not in a thread while another one forks
        except ImportError as exc:
            raise ConfigError(
                f"{url}: composing objects needs google-cloud-storage; pip install 'penstock[gcs]'"
            ) from exc
        self._location = replace(location, key="")
        self._config = config

    @property
    def bucket_url(self) -> str:
        """The bucket, as `gs://name`."""
        return self._location.root

    @property
    def prefix_url(self) -> str:
        """Where the composed objects are."""
        return str(self._location.join(COMPOSED_PREFIX))

    @staticmethod
    def new_name() -> str:
        """A key for a composed object that nothing else has."""
        return f"{COMPOSED_PREFIX}{uuid.uuid4().hex}"

    def compose(self, sources: Sequence[str], into: str) -> None:
        """Writes the bytes of the sources, in their order, as one object. One request, and no byte comes here."""

        def join(bucket: Any, options: Mapping[str, Any]) -> None:
            bucket.blob(into).compose([bucket.blob(key) for key in sources], **options)

        self._run("compose", into, join)

    def delete(self, key: str) -> None:
        """Removes an object; one that is not there is fine."""
        try:
            self._run("delete", key, lambda bucket, options: bucket.blob(key).delete(**options))
        except NotFound:
            return

    def left_behind(self) -> list[ObjectMeta]:
        """Every composed object that exists now, in use or not."""

        def find(bucket: Any, options: Mapping[str, Any]) -> list[ObjectMeta]:
            return [
                ObjectMeta(blob.name, int(blob.size), blob.etag, blob.time_created)
                for blob in bucket.list_blobs(prefix=COMPOSED_PREFIX, **options)
                # Somebody may keep objects of their own there.
                if _NAME.fullmatch(blob.name)
            ]

        return self._run("list", COMPOSED_PREFIX, find)

    def _run(self, verb: str, key: str, call: Callable[[Any, Mapping[str, Any]], _T]) -> _T:
        """Makes one call of the client: the only place where calls are counted and errors translated."""
        from google.api_core.exceptions import GoogleAPIError
        from requests import RequestException

        began = time.monotonic()
        failed: Exception
        try:
            found = call(self._bucket(), self._options())
        except (GoogleAPIError, RequestException, _NoCredentials) as exc:
            failed = exc
        else:
            seconds = time.monotonic() - began
            metrics.record(metrics.Request(verb, self._location.bucket, seconds))
            return found
        where = endpoint_of(self._location, self._config) or "the store"
        target = Target(verb, str(self._location.join(key)), self.bucket_url, where, self._config)
        chain = failed.__cause__ if isinstance(failed, _NoCredentials) else None
        error = translate(
            _failure(failed, verb), target, chain if isinstance(chain, Exception) else None
        )
        seconds, name = time.monotonic() - began, type(error).__name__
        metrics.record(metrics.Request(verb, self._location.bucket, seconds, error=name))
        raise error

    def _options(self) -> dict[str, Any]:
        from google.cloud.storage.retry import DEFAULT_RETRY

        config = self._config
        delays = {"initial": config.retry.backoff_initial_s, "maximum": config.retry.backoff_max_s}
        # Every request may be sent twice: a name is used once, and for the same sources.
        retry = DEFAULT_RETRY.with_timeout(config.retry.deadline_s).with_delay(**delays)
        return {"retry": retry, "timeout": (config.connect_timeout_s, config.read_timeout_s)}

    def _bucket(self) -> Any:
        environ = {name: value for name, value in os.environ.items() if name.startswith(_VARIABLES)}
        recipe = ("composer", self._location, self._config, frozenset(environ.items()))
        client = engine.client(recipe, lambda: self._client(environ))
        return client.bucket(self._location.bucket)

    def _client(self, environ: Mapping[str, str]) -> Any:
        import requests
        from google.auth.credentials import AnonymousCredentials
        from google.cloud.storage import Client
        from requests.adapters import HTTPAdapter

        config = self._config
        session = requests.Session()
        for scheme in ("http://", "https://"):
            session.mount(scheme, HTTPAdapter(pool_maxsize=_CONNECTIONS))
        session.auth = _signing(gcs_authorise(gcs_options(config, environ)))
        session.verify = config.ca_file or config.verify_tls
        session.headers.update(config.headers)
        endpoint = endpoint_of(self._location, config, environ)
        return Client(
            project=None,
            credentials=AnonymousCredentials(),  # type: ignore[no-untyped-call]  # google's
            client_options={"api_endpoint": endpoint} if endpoint is not None else None,
            _http=session,
        )


class _NoCredentials(Exception):
    """The credential chain failed; its own exception is the cause."""


def _signing(authorise: Authorise) -> Callable[[Any], Any]:
    """The store's own way to authorise a request, for `requests`."""

    def sign(request: Any) -> Any:
        try:
            request.headers.update(authorise(request.method, request.url, "", {}))
        except Exception as exc:
            raise _NoCredentials(str(exc)) from exc
        return request

    return sign


def _failure(failed: Exception, verb: str) -> Failure:
    """What happened, in the engine's words, so that one table translates both."""
    # A RetryError has given up, and holds what it gave up on.
    cause: Exception = getattr(failed, "cause", None) or failed
    status: int | None = getattr(cause, "code", None)
    text = str(cause) if status is not None else f'kind: Connect, message: "{cause}"'
    # What a listing does not find is the bucket.
    known = status is not None and not (status == 404 and verb == "list")
    return Failure(
        _KINDS.get(status or 0, "Generic") if known else "Generic", status, None, None, text, cause
    )
