"""One HTTP/1.1 connection that receives into the caller's memory. Knows nothing of stores; `wire.py` does.

Written by hand because a large read costs a third of the engine's CPU this way: one send, one parse of the head, one
`recv` of the body into its destination. See docs/decisions/0005-direct-transfers.md.
"""

import re
import socket
import ssl
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Connection", "Head", "ProtocolError"]

_HEAD_BYTES = 4096
_LARGEST_HEAD_BYTES = 64 << 10
_LARGEST_BODY_BYTES = 1 << 44
_WITHOUT_BODY = {204, 304}
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(;.*)?")


class ProtocolError(ConnectionError):
    """The other side broke off or does not speak HTTP."""


@dataclass(frozen=True, slots=True)
class Head:
    """Status and headers of a response, names in lower case. `length` is None where only the end will tell."""

    status: int
    headers: Mapping[str, str]
    length: int | None
    chunked: bool
    keep_alive: bool


class Connection:
    """For one thread at a time. After an exception, or a body not read to its end, only `close` is left."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None,
        connect_timeout_s: float,
        read_timeout_s: float,
        request_timeout_s: float,
    ) -> None:
        self._request_timeout_s = request_timeout_s
        self._deadline = time.monotonic() + request_timeout_s
        plain = socket.create_connection((host, port), timeout=connect_timeout_s)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self._socket: socket.socket = tls.wrap_socket(plain, server_hostname=host)
            self._socket.settimeout(read_timeout_s)
            self._wait_all = 0
        else:
            # The kernel's own timeout: Python's would ask for readiness before every call.
            plain.settimeout(None)
            timeout = struct.pack("ll", int(read_timeout_s), int(read_timeout_s % 1 * 1e6))
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
            self._socket = plain
            self._wait_all = socket.MSG_WAITALL
        self._scratch = bytearray(_HEAD_BYTES)
        self._rest = memoryview(b"")
        self._left: int | None = 0

    def send(self, head: bytes, body: memoryview | None) -> None:
        """Sends a request, which has its time from now on."""
        self._deadline = time.monotonic() + self._request_timeout_s
        try:
            if body is not None and len(body) <= _HEAD_BYTES:
                self._socket.sendall(head + bytes(body))
            else:
                self._socket.sendall(head)
                if body is not None:
                    self._socket.sendall(body)
        except BlockingIOError as exc:
            raise TimeoutError("timed out") from exc

    def receive_head(self, method: str) -> Head:
        """Waits for the answer to a request of that method."""
        while True:
            raw = self._receive_until_blank_line()
            head = _parse(raw, method)
            if head.status >= 200:
                break
        self._left = head.length
        return head

    def receive_into(self, view: memoryview) -> int:
        """Receives up to `len(view)` bytes of a body of known length; 0 at its end."""
        if self._left is not None:
            view = view[: self._left]
        if not view:
            return 0
        if self._rest:
            got = min(len(view), len(self._rest))
            view[:got] = self._rest[:got]
            self._rest = self._rest[got:]
        else:
            got = self._receive(view, self._wait_all)
            if not got and self._left is not None:
                raise ProtocolError(f"the connection ended {self._left} bytes before the body did")
        if self._left is not None:
            self._left -= got
        return got

    def receive_all(self, head: Head) -> bytes:
        """Receives the whole body."""
        if head.chunked:
            return self._receive_chunks()
        if head.length is not None:
            body = bytearray(head.length)
            self.fill(memoryview(body))
            return bytes(body)
        pieces = bytearray(self._rest)
        piece = memoryview(bytearray(_LARGEST_HEAD_BYTES))
        while got := self._receive(piece, 0):
            pieces += piece[:got]
        return bytes(pieces)

    def fill(self, view: memoryview) -> None:
        """Receives exactly `len(view)` bytes of a body of known length."""
        done = 0
        while done < len(view):
            done += self.receive_into(view[done:])

    def close(self) -> None:
        """Ends the connection."""
        self._socket.close()

    def _receive(self, view: memoryview, flags: int) -> int:
        if time.monotonic() > self._deadline:
            raise TimeoutError("timed out")
        try:
            return self._socket.recv_into(view, 0, flags)
        except BlockingIOError as exc:
            raise TimeoutError("timed out") from exc

    def _receive_until_blank_line(self) -> bytes:
        held = bytearray(self._rest)
        self._rest = memoryview(b"")
        scratch = memoryview(self._scratch)
        while True:
            end = held.find(b"\r\n\r\n")
            if end >= 0:
                self._rest = memoryview(bytes(held[end + 4 :]))
                return bytes(held[:end])
            if len(held) > _LARGEST_HEAD_BYTES:
                raise ProtocolError("the head of the response is longer than 64 KiB")
            got = self._receive(scratch, 0)
            if not got:
                raise ProtocolError("the connection ended before the response began")
            held += scratch[:got]

    def _receive_chunks(self) -> bytes:
        body = bytearray()
        while True:
            line = self._receive_line()
            match = _CHUNK_SIZE.fullmatch(line)
            if match is None:
                raise ProtocolError(f"a chunk of the body has the size {line[:20]!r}")
            size = int(match[1], 16)
            if size == 0:
                while self._receive_line():
                    pass
                return bytes(body)
            start = len(body)
            body += bytes(size)
            self._left = size
            with memoryview(body) as view:
                self.fill(view[start:])
            if self._receive_line():
                raise ProtocolError("a chunk of the body is longer than it says")

    def _receive_line(self) -> bytes:
        line = bytearray()
        one = memoryview(bytearray(1))
        while not line.endswith(b"\r\n"):
            if len(line) > _HEAD_BYTES:
                raise ProtocolError("a line between the chunks of the body is longer than 4 KiB")
            self._left = 1
            self.fill(one)
            line += one
        return bytes(line[:-2])


def _parse(raw: bytes, method: str) -> Head:
    lines = raw.decode("latin-1").split("\r\n")
    version, _, rest = lines[0].partition(" ")
    status = rest[:3]
    if not version.startswith("HTTP/1.") or len(status) < 3 or not status.isdecimal():
        raise ProtocolError(f"the answer begins with {lines[0][:40]!r}, which is not HTTP")
    fields = [line.partition(":") for line in lines[1:]]
    headers = {name.lower(): value.strip() for name, _, value in fields}
    chunked = headers.get("transfer-encoding", "").lower() == "chunked"
    connection = headers.get("connection", "").lower()
    keep_alive = connection != "close" and (version != "HTTP/1.0" or connection == "keep-alive")
    length: int | None = None
    if method == "HEAD" or int(status) in _WITHOUT_BODY or int(status) < 200:
        length, chunked = 0, False
    elif not chunked and headers.get("content-length", "").isdecimal():
        length = int(headers["content-length"])
        if length > _LARGEST_BODY_BYTES:
            raise ProtocolError(f"the answer is said to have {length} bytes")
    elif not chunked:
        keep_alive = False
    return Head(int(status), headers, length, chunked, keep_alive)
