"""Speaks to S3 and GCS over plain sockets, where the engine copies too much or has no word for it.

Reads land in the caller's memory; uploads go part by part with a checksum each; orphaned uploads can be found.
Retries, deadlines and errors are those of the engine's requests: the same RetryConfig, the same translation.
"""

import http.client
import random
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from penstock import metrics
from penstock.config import StoreConfig
from penstock.store.sigv4 import canonical_path, canonical_query
from penstock.store.translate import Failure, Target, code_in, translate

__all__ = ["Answer", "Authorise", "Wire"]

Authorise = Callable[[str, str, str, Mapping[str, str]], Mapping[str, str]]
"""From method, path, query and headers to the headers that authorise the request."""

_ERROR_BODY_BYTES = 64 << 10
_IDLE_CONNECTIONS = 64
_RECEIVE_BYTES = 4 << 20
_RETRIED = {None, 408, 429, 500, 502, 503, 504}
_LOST = (OSError, http.client.HTTPException)


@dataclass(frozen=True, slots=True)
class Answer:
    """A final response. `body` is empty where the bytes went into the caller's buffer."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(slots=True)
class _Fill:
    """A buffer on its way to being full; survives a broken connection."""

    view: memoryview
    start: int
    etag: str | None
    done: int = 0
    ended: bool = False


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    key: str
    query: Sequence[tuple[str, str]] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    body: memoryview | None = None


class _Rejected(Exception):
    """An answer that is an error; `retry_after_s` where the store asked for a pause."""

    def __init__(self, status: int, body: bytes, retry_after_s: float | None) -> None:
        super().__init__(status)
        self.status = status
        self.text = body.decode(errors="replace")
        self.retry_after_s = retry_after_s


class Wire:
    """Connections to one bucket, shared by the threads of one process."""

    def __init__(
        self,
        base_url: str,
        *,
        bucket_url: str,
        config: StoreConfig,
        authorise: Authorise,
    ) -> None:
        parts = urlsplit(base_url)
        self._secure = parts.scheme == "https"
        self._host = parts.netloc
        self._path = parts.path.rstrip("/")
        self._where = f"{parts.scheme}://{parts.netloc}"
        self._bucket_url = bucket_url
        self._config = config
        self._authorise = authorise
        self._tls = _tls_context(config) if self._secure else None
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []

    def call(
        self,
        verb: str,
        method: str,
        key: str,
        *,
        query: Sequence[tuple[str, str]] = (),
        headers: Mapping[str, str] | None = None,
        body: memoryview | None = None,
    ) -> Answer:
        """Sends one request and returns its answer, trying again as the config says; `verb` is for the counters."""
        request = _Request(method, key, query, headers or {}, body)
        written = len(body) if body is not None else 0
        return self._with_retries(verb, request, lambda: self._exchange(request), written=written)

    def read_into(self, key: str, view: memoryview, *, start: int, etag: str | None) -> int:
        """Fills `view` from byte `start` on; a broken response is continued, pinned to the version it had."""
        fill = _Fill(view, start, etag)
        request = _Request("GET", key)

        def attempt() -> Answer:
            while fill.done < len(view) and not fill.ended:
                self._receive(key, fill)
            return Answer(206, {})

        self._with_retries("get", request, attempt, read=lambda: fill.done)
        return fill.done

    def _receive(self, key: str, fill: _Fill) -> None:
        first = fill.start + fill.done
        headers = {"range": f"bytes={first}-{fill.start + len(fill.view) - 1}"}
        if fill.etag is not None:
            headers["if-match"] = fill.etag
        connection, response = self._send(_Request("GET", key, (), headers))
        clean = False
        try:
            if response.status == 416:
                response.read()
                fill.ended = clean = True
                return
            self._raise_for(response)
            length = int(response.headers.get("content-length", "-1"))
            if response.status != 206 and (first > 0 or length != len(fill.view)):
                raise http.client.HTTPException(f"asked for a range, answered {response.status}")
            fill.etag = fill.etag or response.headers.get("etag")
            expected = min(length, len(fill.view) - fill.done)
            stop = fill.done + expected
            while fill.done < stop:
                got = response.readinto(
                    fill.view[fill.done : min(stop, fill.done + _RECEIVE_BYTES)]
                )
                if not got:
                    raise http.client.IncompleteRead(b"", stop - fill.done)
                fill.done += got
            fill.ended = fill.done < len(fill.view)
            clean = response.isclosed() or not response.length
        finally:
            self._give_back(connection, response, clean=clean)

    def _exchange(self, request: _Request) -> Answer:
        connection, response = self._send(request)
        clean = False
        try:
            self._raise_for(response)
            body = response.read()
            clean = True
        finally:
            self._give_back(connection, response, clean=clean)
        return Answer(response.status, {k.lower(): v for k, v in response.headers.items()}, body)

    def _send(
        self, request: _Request
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        path = canonical_path(f"{self._path}/{request.key}" if request.key else self._path or "/")
        query = canonical_query(request.query)
        headers = {"host": self._host, **self._config.headers, **request.headers}
        if self._config.requester_pays:
            headers["x-amz-request-payer"] = "requester"
        try:
            headers |= self._authorise(request.method, path, query, headers)
        except Exception as exc:
            failure = Failure("Credentials", None, None, None, str(exc), exc)
            raise translate(failure, self._target(request.method, request.key), exc) from exc
        headers["user-agent"] = self._config.user_agent
        target = f"{path}?{query}" if query else path
        while True:
            connection, reused = self._take()
            try:
                connection.request(request.method, target, request.body, headers)
                return connection, connection.getresponse()
            except _LOST:
                connection.close()
                # An idle connection may have been closed by the store meanwhile; that is no failed attempt.
                if not reused:
                    raise

    @staticmethod
    def _raise_for(response: http.client.HTTPResponse) -> None:
        if response.status < 300:
            return
        after = response.headers.get("retry-after", "")
        raise _Rejected(
            response.status,
            response.read(_ERROR_BODY_BYTES),
            float(after) if after.isdigit() else None,
        )

    def _take(self) -> tuple[http.client.HTTPConnection, bool]:
        with self._lock:
            if self._idle:
                return self._idle.pop(), True
        connection: http.client.HTTPConnection
        if self._tls is not None:
            connection = http.client.HTTPSConnection(
                self._host, timeout=self._config.connect_timeout_s, context=self._tls
            )
        else:
            connection = http.client.HTTPConnection(
                self._host, timeout=self._config.connect_timeout_s
            )
        connection.connect()
        connection.sock.settimeout(self._config.read_timeout_s)
        return connection, False

    def _give_back(
        self,
        connection: http.client.HTTPConnection,
        response: http.client.HTTPResponse,
        *,
        clean: bool,
    ) -> None:
        if clean and not response.will_close:
            response.close()
            with self._lock:
                if len(self._idle) < _IDLE_CONNECTIONS:
                    self._idle.append(connection)
                    return
        connection.close()

    def _with_retries(
        self,
        verb: str,
        request: _Request,
        attempt: Callable[[], Answer],
        *,
        read: Callable[[], int] = lambda: 0,
        written: int = 0,
    ) -> Answer:
        retry = self._config.retry
        began = time.monotonic()
        pause_s = retry.backoff_initial_s
        tries = 0
        while True:
            tries += 1
            try:
                answer = attempt()
            except (_Rejected, *_LOST) as exc:
                failed = exc
            else:
                seconds = time.monotonic() - began
                metrics.record(
                    metrics.Request(verb, self._host, seconds, read(), written, retries=tries - 1)
                )
                return answer
            status, asked_s = (
                getattr(failed, "status", None),
                getattr(failed, "retry_after_s", None),
            )
            wait_s = max(asked_s or 0.0, random.uniform(0.5, 1.0) * pause_s)
            late = time.monotonic() + wait_s - began > retry.deadline_s
            if tries >= retry.max_attempts or late or status not in _RETRIED:
                break
            time.sleep(wait_s)
            pause_s = min(2 * pause_s, retry.backoff_max_s)
        error = translate(_failure(failed, tries), self._target(verb, request.key), None)
        seconds, name = time.monotonic() - began, type(error).__name__
        metrics.record(metrics.Request(verb, self._host, seconds, retries=tries - 1, error=name))
        raise error

    def _target(self, verb: str, key: str) -> Target:
        url = f"{self._bucket_url}/{key}" if key else self._bucket_url
        return Target(verb, url, self._bucket_url, self._where, self._config)


def _failure(failed: Exception, tries: int) -> Failure:
    """What happened, in the engine's words, so that one table translates both."""
    if isinstance(failed, _Rejected):
        kinds = {
            404: "NotFound",
            412: "Precondition",
            403: "PermissionDenied",
            401: "Unauthenticated",
        }
        kind, status, text = kinds.get(failed.status, "Generic"), failed.status, failed.text
    else:
        kind, status, text = "Generic", None, _in_words(failed)
    return Failure(kind, status, code_in(text), tries - 1, text, failed)


def _in_words(lost: Exception) -> str:
    if isinstance(lost, TimeoutError):
        return "TimedOut"
    if isinstance(lost, http.client.HTTPException | ConnectionResetError | BrokenPipeError):
        return f"body error: {type(lost).__name__}"
    reason = lost.strerror if isinstance(lost, OSError) else None
    return f'kind: Connect, message: "{reason or type(lost).__name__}"'


def _tls_context(config: StoreConfig) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if config.ca_file is not None:
        context.load_verify_locations(config.ca_file)
    if not config.verify_tls:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
