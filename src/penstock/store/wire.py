"""Speaks to S3 and GCS over plain connections, where the engine copies too much or has no word for it.

Reads land in the caller's memory; uploads go part by part with a checksum each; orphaned uploads can be found.
Retries, deadlines and errors are those of the engine's requests: the same RetryConfig, the same translation.
"""

import base64
import random
import re
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self, TypeVar
from urllib.parse import urlsplit

from crc32c import crc32c

from penstock import metrics
from penstock.config import StoreConfig
from penstock.errors import IntegrityError, PenstockError
from penstock.store.connection import Connection, Head, ProtocolError
from penstock.store.sigv4 import canonical_path, canonical_query
from penstock.store.translate import Failure, Target, code_in, translate

__all__ = ["Answer", "Authorise", "PastTheEnd", "Wire"]

Authorise = Callable[[str, str, str, Mapping[str, str]], Mapping[str, str]]
"""From method, path, query and headers to the headers that authorise the request."""

_IDLE_CONNECTIONS = 256
_RETRIED = {None, 408, 429, 500, 502, 503, 504}
_RETRIED_CODES = {"BadDigest", "RequestTimeout", "ConditionalRequestConflict"}
_T = TypeVar("_T")


class PastTheEnd(Exception):
    """A range began at or after the end of the object."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A final response."""

    status: int
    headers: Mapping[str, str]
    body: memoryview


@dataclass(slots=True)
class _Read:
    """A read under way; it survives a broken connection, and then goes on in the version that it began with.

    `view` is None until the first response tells how much memory a whole object needs.
    """

    key: str
    start: int
    stop: int | None
    etag: str | None
    view: memoryview | None
    head: Head | None = None
    done: int = 0


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    key: str
    query: Sequence[tuple[str, str]] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    body: memoryview | None = None
    send_again: bool = True


class _Rejected(Exception):
    """An answer that is an error; `retry_after_s` where the store asked for a pause.

    It can be made of its text alone: so is the copy without secrets that becomes the cause of our error.
    """

    def __init__(self, text: str, *, status: int = 0, retry_after_s: float = 0.0) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.code = code_in(text)
        self.retry_after_s = retry_after_s

    @classmethod
    def of(cls, head: Head, body: bytes) -> Self:
        after = head.headers.get("retry-after", "")
        return cls(
            body.decode(errors="replace"),
            status=head.status,
            retry_after_s=float(after) if after.isdecimal() else 0.0,
        )


class Wire:
    """Connections to one bucket, shared by the threads of one process."""

    def __init__(
        self,
        base_url: str,
        *,
        bucket_url: str,
        config: StoreConfig,
        authorise: Authorise,
        whole_read_headers: Mapping[str, str],
    ) -> None:
        parts = urlsplit(base_url)
        self._tls = _tls_context(config) if parts.scheme == "https" else None
        self._address = (parts.hostname or "", parts.port or (443 if self._tls else 80))
        self._host = parts.netloc
        self._path = parts.path.rstrip("/")
        self._where = f"{parts.scheme}://{parts.netloc}"
        self._bucket_url = bucket_url
        self._config = config
        self._authorise = authorise
        self._whole_read_headers = whole_read_headers
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        weakref.finalize(self, _close_all, self._idle)

    def call(
        self,
        verb: str,
        method: str,
        key: str,
        *,
        query: Sequence[tuple[str, str]] = (),
        headers: Mapping[str, str] | None = None,
        body: memoryview | None = None,
        send_again: bool = True,
    ) -> Answer:
        """Sends one request and returns its answer; `verb` is for the counters.

        Tried again as the config says, but a request that must not be sent twice (`send_again=False`) is not when
        its connection was lost: the store may have done it.
        """
        request = _Request(method, key, query, headers or {}, body, send_again)
        written = len(body) if body is not None else 0
        return self._with_retries(
            verb,
            key,
            lambda: self._exchange(request),
            lambda _: (0, written),
            send_again=send_again,
        )

    def read(self, key: str, *, start: int, stop: int | None, etag: str | None) -> Answer:
        """The object's bytes from `start` to `stop` (None: its end). Raises `PastTheEnd`."""
        read = _Read(key, start, stop, etag, None)
        return self._with_retries(
            "get", key, lambda: self._receive(read), lambda got: (len(got.body), 0)
        )

    def read_into(self, key: str, view: memoryview, *, start: int, etag: str | None) -> int:
        """Fills `view` with the object's bytes from `start` on and returns how many there were.

        What turns out to be the whole object is compared with the checksum that came along.
        """
        read = _Read(key, start, start + len(view), etag, view)
        try:
            self._with_retries("get", key, lambda: self._receive(read), lambda _: (read.done, 0))
        except PastTheEnd:
            return 0
        self._verify(read)
        return read.done

    def _verify(self, read: _Read) -> None:
        if read.start or read.head is None or read.view is None:
            return
        size = read.head.headers.get("content-range", "").rpartition("/")[2]
        if size != str(read.done) or not self._config.verify_checksums:
            return
        stored, found = _stored_checksum(read.head.headers), crc32c(read.view[: read.done])
        if stored is not None and found != stored:
            raise IntegrityError(
                f"{self._bucket_url}/{read.key}: {read.done} bytes arrived with CRC32C {found:08x}, stored was "
                f"{stored:08x}; read it again, and if it happens again restore the object"
            )

    def _receive(self, read: _Read) -> Answer:
        first = read.start + read.done
        headers: dict[str, str] = {}
        if first or read.stop is not None:
            headers["range"] = f"bytes={first}-{'' if read.stop is None else read.stop - 1}"
        else:
            headers.update(self._whole_read_headers)
        if read.etag is not None:
            headers["if-match"] = read.etag
        connection, head = self._send(_Request("GET", read.key, (), headers))
        try:
            self._raise_for(connection, head)
            _check_range_answer(head, first)
            chunks = memoryview(connection.receive_all(head)) if head.chunked else None
            length = len(chunks) if chunks is not None else head.length or 0
            if read.view is None:
                read.view = memoryview(bytearray(length))
            if read.head is None:
                read.head, read.etag = head, read.etag or head.headers.get("etag")
            stop = min(len(read.view), read.done + length)
            clean = chunks is not None or stop - read.done == length
            if chunks is not None:
                read.view[read.done : stop] = chunks[: stop - read.done]
                read.done = stop
            while read.done < stop:
                read.done += connection.receive_into(read.view[read.done : stop])
        except BaseException:
            connection.close()
            raise
        self._give_back(connection, head, clean=clean)
        return Answer(read.head.status, read.head.headers, read.view[: read.done])

    def _exchange(self, request: _Request) -> Answer:
        connection, head = self._send(request)
        try:
            self._raise_for(connection, head)
            body = connection.receive_all(head)
        except BaseException:
            connection.close()
            raise
        self._give_back(connection, head, clean=True)
        return Answer(head.status, head.headers, memoryview(body))

    def _send(self, request: _Request) -> tuple[Connection, Head]:
        path = canonical_path(f"{self._path}/{request.key}" if request.key else self._path or "/")
        query = canonical_query(request.query) if request.query else ""
        headers = {"host": self._host, **self._config.headers, **request.headers}
        if self._config.requester_pays:
            headers["x-amz-request-payer"] = "requester"
        try:
            headers.update(self._authorise(request.method, path, query, headers))
        except Exception as exc:
            failure = Failure("Credentials", None, None, None, str(exc), exc)
            raise translate(failure, self._target(request.method, request.key), exc) from exc
        headers["user-agent"] = self._config.user_agent
        if request.body is not None:
            headers["content-length"] = str(len(request.body))
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        target = f"{path}?{query}" if query else path
        raw = f"{request.method} {target} HTTP/1.1\r\n{lines}\r\n".encode()
        fresh = not request.send_again
        while True:
            connection, reused = self._take(fresh=fresh)
            try:
                connection.send(raw, request.body)
                return connection, connection.receive_head(request.method)
            except TimeoutError:
                connection.close()
                raise
            except OSError:
                connection.close()
                # The store may have closed an idle connection meanwhile; that is no failed attempt, once.
                if not reused:
                    raise
                fresh = True

    @staticmethod
    def _raise_for(connection: Connection, head: Head) -> None:
        if head.status == 416:
            raise PastTheEnd
        if head.status >= 300:
            raise _Rejected.of(head, connection.receive_all(head))

    def _take(self, *, fresh: bool) -> tuple[Connection, bool]:
        with self._lock:
            if self._idle and not fresh:
                return self._idle.pop(), True
        host, port = self._address
        config = self._config
        connection = Connection(
            host,
            port,
            tls=self._tls,
            connect_timeout_s=config.connect_timeout_s,
            read_timeout_s=config.read_timeout_s,
            request_timeout_s=config.request_timeout_s,
        )
        return connection, False

    def _give_back(self, connection: Connection, head: Head, *, clean: bool) -> None:
        if clean and head.keep_alive:
            with self._lock:
                if len(self._idle) < _IDLE_CONNECTIONS:
                    self._idle.append(connection)
                    return
        connection.close()

    def _with_retries(
        self,
        verb: str,
        key: str,
        attempt: Callable[[], _T],
        count: Callable[[_T], tuple[int, int]],
        *,
        send_again: bool = True,
    ) -> _T:
        retry = self._config.retry
        began = time.monotonic()
        pause_s = retry.backoff_initial_s
        tries = 0
        while True:
            tries += 1
            try:
                answer = attempt()
            except PenstockError:
                raise
            except (_Rejected, OSError) as exc:
                failed = exc
            else:
                seconds = time.monotonic() - began
                read, written = count(answer)
                metrics.record(metrics.Request(verb, self._host, seconds, read, written, tries - 1))
                return answer
            asked_s = failed.retry_after_s if isinstance(failed, _Rejected) else 0.0
            wait_s = max(asked_s, random.uniform(0.5, 1.0) * pause_s)
            late = time.monotonic() + wait_s - began > retry.deadline_s
            if (
                tries >= retry.max_attempts
                or late
                or not _is_passing(failed, send_again=send_again)
            ):
                break
            time.sleep(wait_s)
            pause_s = min(2 * pause_s, retry.backoff_max_s)
        error = translate(_failure(failed, tries), self._target(verb, key), None)
        seconds, name = time.monotonic() - began, type(error).__name__
        metrics.record(metrics.Request(verb, self._host, seconds, retries=tries - 1, error=name))
        raise error

    def _target(self, verb: str, key: str) -> Target:
        url = f"{self._bucket_url}/{key}" if key else self._bucket_url
        return Target(verb, url, self._bucket_url, self._where, self._config)


def _check_range_answer(head: Head, first: int) -> None:
    said = head.headers.get("content-range", "none")
    endless = head.length is None and not head.chunked
    elsewhere = head.status == 206 and not said.startswith(f"bytes {first}-")
    if endless or elsewhere or (first and head.status != 206):
        raise ProtocolError(
            f"asked for bytes from {first} on, answered {head.status}, range {said}, length {head.length}"
        )


def _stored_checksum(headers: Mapping[str, str]) -> int | None:
    """The CRC32C of the whole object, where a response to a range tells it."""
    for name, value in headers.items():
        if name.endswith("-meta-penstockcrc32c"):
            return int(value, 16)
    hashes = headers.get("x-goog-hash", "")
    found = re.search(r"\bcrc32c=([\w+/]{6}==)", hashes)
    plain = headers.get("x-goog-stored-content-encoding", "identity") == "identity"
    return int.from_bytes(base64.b64decode(found[1]), "big") if found and plain else None


def _is_passing(failed: "_Rejected | OSError", *, send_again: bool) -> bool:
    """Whether the same request may succeed later, and may be sent again."""
    if isinstance(failed, _Rejected):
        return failed.status in _RETRIED or failed.code in _RETRIED_CODES
    if isinstance(failed, ssl.SSLCertVerificationError):
        return False
    return send_again or isinstance(failed, ConnectionRefusedError)


def _failure(failed: "_Rejected | OSError", tries: int) -> Failure:
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


def _in_words(lost: OSError) -> str:
    if isinstance(lost, TimeoutError):
        return "TimedOut"
    if isinstance(lost, ProtocolError | ConnectionResetError | BrokenPipeError | ssl.SSLEOFError):
        return f"body error: {type(lost).__name__}"
    return f'kind: Connect, message: "{lost.strerror or type(lost).__name__}"'


def _close_all(connections: list[Connection]) -> None:
    for connection in connections:
        connection.close()


def _tls_context(config: StoreConfig) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if config.ca_file is not None:
        context.load_verify_locations(config.ca_file)
    if not config.verify_tls:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
