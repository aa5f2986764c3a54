"""HTTP/1.1 as FaultProxy sees it: heads, bodies, where in a body a fault strikes, the log's rows.

Pure; `_proxy_process.py` does the I/O.
"""

import re
from typing import Protocol
from urllib.parse import unquote

HEAD_END = b"\r\n\r\n"

Piece = tuple[bytes, bool]
"""Bytes of a body as they travel, and whether they are payload rather than chunk framing."""

_SECRETS = re.compile(
    r"(?i)(^|&)(x-(?:amz|goog)-(?:signature|credential|security-token)"
    r"|sig|signature|googleaccessid|awsaccesskeyid)=[^&]*"
)
_RANGE = re.compile(rb"bytes=(\d*)-(\d*)")


class Head:
    """Start line and headers of a request or response; `raw` is what gets forwarded, as it came."""

    __slots__ = ("headers", "raw", "start")

    def __init__(self, raw: bytes) -> None:
        lines = raw[: -len(HEAD_END)].split(b"\r\n")
        self.raw = raw
        self.start = lines[0].split(b" ", 2)
        self.headers: dict[bytes, bytes] = {}
        for line in lines[1:]:
            name, _, value = line.partition(b":")
            self.headers[name.lower()] = value.strip()
        if len(self.start) < 2:
            raise ValueError(f"not an HTTP start line: {lines[0][:80]!r}")

    @property
    def closes(self) -> bool:
        """Whether its sender means the connection to end with this message."""
        connection = self.headers.get(b"connection", b"").lower()
        old = b"HTTP/1.0" in (self.start[0], self.start[-1])
        return b"close" in connection or (old and b"keep-alive" not in connection)

    def without_connection(self) -> bytes:
        """The head less its Connection header, so that upstream connections outlive their client's."""
        lines = self.raw.split(b"\r\n")
        return b"\r\n".join(line for line in lines if not line.lower().startswith(b"connection:"))


class Body(Protocol):
    """Finds the end of a body in a byte stream, and its payload between the framing."""

    length: int | None
    done: bool

    def feed(self, data: bytes) -> tuple[list[Piece], bytes]:
        """The pieces of the body in `data`, and the bytes that lie beyond its end."""


class SizedBody:
    """A body whose Content-Length says where it ends; nothing at all when that is 0."""

    __slots__ = ("_left", "done", "length")

    def __init__(self, length: int) -> None:
        self.length: int | None = length
        self.done = length == 0
        self._left = length

    def feed(self, data: bytes) -> tuple[list[Piece], bytes]:
        size = len(data)
        if size < self._left:
            self._left -= size
            return [(data, True)], b""
        body, beyond = data, b""
        if size > self._left:
            body, beyond = data[: self._left], data[self._left :]
        self._left = 0
        self.done = True
        return [(body, True)], beyond


class OpenBody:
    """A response body that ends when the connection does."""

    __slots__ = ("done", "length")

    def __init__(self) -> None:
        self.length: int | None = None
        self.done = False

    def feed(self, data: bytes) -> tuple[list[Piece], bytes]:
        return [(data, True)] if data else [], b""


class ChunkedBody:
    """Chunked transfer coding; framing lines are passed on whole, trailers among them."""

    __slots__ = ("_held", "_left", "_line", "done", "length")

    def __init__(self) -> None:
        self.length: int | None = None
        self.done = False
        self._held = b""
        self._left = 0
        self._line = "size"

    def feed(self, data: bytes) -> tuple[list[Piece], bytes]:
        data = self._held + data
        pieces: list[Piece] = []
        at = 0
        while not self.done and at < len(data):
            if self._left:
                payload = data[at : at + self._left]
                pieces.append((payload, True))
                at += len(payload)
                self._left -= len(payload)
                continue
            end = data.find(b"\r\n", at)
            if end < 0:
                break
            self._read_line(data[at:end])
            pieces.append((data[at : end + 2], False))
            at = end + 2
        self._held = b"" if self.done else data[at:]
        return pieces, data[at:] if self.done else b""

    def _read_line(self, line: bytes) -> None:
        if self._line == "size":
            self._left = int(line.partition(b";")[0], 16)
            self._line = "after payload" if self._left else "trailer"
        elif self._line == "after payload":
            self._line = "size"
        else:
            self.done = not line


def request_body(head: Head) -> Body:
    if b"chunked" in head.headers.get(b"transfer-encoding", b"").lower():
        return ChunkedBody()
    return SizedBody(int(head.headers.get(b"content-length", b"0")))


def response_body(head: Head, method: str, status: int) -> Body:
    if method == "HEAD" or status in (204, 304):
        return SizedBody(0)
    if b"chunked" in head.headers.get(b"transfer-encoding", b"").lower():
        return ChunkedBody()
    length = head.headers.get(b"content-length")
    return OpenBody() if length is None else SizedBody(int(length))


class Strike(Protocol):
    """A fault in one body."""

    def apply(self, pieces: list[Piece], *, done: bool) -> tuple[list[Piece], bool]:
        """The pieces to send on, and whether they are the last; `done` where the body ends here."""


class _Aimed:
    """Counts payload up to `offset`, kept inside the body so that a fault is never void.

    None is the middle of the body, or of its first piece where the length is not known.
    """

    __slots__ = ("_offset", "_passed")

    def __init__(self, offset: int | None, length: int | None) -> None:
        if length is not None:
            offset = length // 2 if offset is None else min(offset, length - 1)
        self._offset = offset
        self._passed = 0

    def _distance(self, data: bytes) -> int:
        """How far into `data`, the next payload, the offset lies."""
        if self._offset is None:
            self._offset = len(data) // 2
        return self._offset - self._passed


class Cut(_Aimed):
    """Ends the stream before the payload byte at the offset, at the latest before the body's end."""

    __slots__ = ()

    def apply(self, pieces: list[Piece], *, done: bool) -> tuple[list[Piece], bool]:
        kept: list[Piece] = []
        for data, payload in pieces:
            if payload:
                room = self._distance(data)
                if len(data) > room:
                    kept.append((data[:room], True))
                    return kept, True
                self._passed += len(data)
            kept.append((data, payload))
        while done and kept and not kept[-1][1]:
            kept.pop()
        return kept, done


class Flip(_Aimed):
    """Flips the lowest bit of the payload byte at the offset."""

    __slots__ = ()

    def apply(
        self,
        pieces: list[Piece],
        *,
        done: bool,  # noqa: ARG002  Strike's signature
    ) -> tuple[list[Piece], bool]:
        kept = pieces.copy()
        for index, (data, payload) in enumerate(pieces):
            if payload:
                at = self._distance(data)
                self._passed += len(data)
                if 0 <= at < len(data):
                    kept[index] = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], True
        return kept, False


class Row:
    """One line of the log, filled in as the request goes on; kept raw until someone reads it."""

    __slots__ = ("_range", "fault", "finished", "method", "sent", "started", "status", "target")

    def __init__(self, head: Head, started: float) -> None:
        headers = head.headers
        self.target = head.start[1]
        self._range = headers.get(b"range") or headers.get(b"x-ms-range")
        self.method = head.start[0].decode("latin-1")
        self.started = started
        self.status: int | None = None
        self.fault: str | None = None
        self.sent = 0
        self.finished: float | None = None

    def export(self, bucket_segments: int) -> list[object]:
        """The fields of a LoggedRequest, in its order."""
        query = self.target.decode("latin-1").partition("?")[2]
        return [
            self.method,
            *split_path(self.target, bucket_segments),
            _SECRETS.sub(r"\1\2=REDACTED", query),
            parse_range(self._range),
            self.status,
            self.fault,
            self.sent,
            self.started,
            self.finished,
        ]


def split_path(target: bytes, bucket_segments: int) -> tuple[str, str]:
    """Bucket and key of a request target, percent-decoded; the key of a bucket request is empty."""
    path = target.decode("latin-1").partition("?")[0]
    if not path.startswith("/"):
        path = "/" + path.partition("://")[2].partition("/")[2]
    segments = path[1:].split("/", bucket_segments)
    key = segments[bucket_segments] if len(segments) > bucket_segments else ""
    return unquote(segments[:bucket_segments][-1]), unquote(key)


def parse_range(value: bytes | None) -> tuple[int, int | None] | None:
    """Half-open; a suffix range of n bytes is `(-n, None)`, as a slice would say it."""
    match = _RANGE.fullmatch(value or b"")
    if match is None or not any(match.groups()):
        return None
    first, last = match.groups()
    if not first:
        return -int(last), None
    return int(first), int(last) + 1 if last else None
