"""One request and its response, between a client, the store and the fault that strikes them."""

import asyncio
import sys
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING

from penstock.testing._proxy_flow import Bucket, Flow, Peer
from penstock.testing._proxy_http import (
    HEAD_END,
    Body,
    Cut,
    Flip,
    Head,
    OpenBody,
    Piece,
    Strike,
    request_body,
    response_body,
)
from penstock.testing.proxy import Fault

if TYPE_CHECKING:
    from penstock.testing._proxy_process import Proxy

_MAX_HEAD_BYTES = 1 << 18
_DELIVERY_TIMEOUT_S = 5.0
_NEVER = sys.maxsize


class Upstream(Peer):
    """A connection to the store, serving one exchange at a time, or waiting in the pool for one."""

    def __init__(self, proxy: "Proxy") -> None:
        self._proxy = proxy
        self.exchange: Exchange | None = None

    def data_received(self, data: bytes) -> None:
        if self.exchange is None:
            self.transport.abort()
        else:
            self.exchange.take_response(data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  asyncio's signature
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.lose_upstream()
        elif self in self._proxy.idle:
            self._proxy.idle.remove(self)


class Client(Peer):
    """A connection from a client. One request at a time; a pipelined one waits in `held`."""

    def __init__(self, proxy: "Proxy") -> None:
        self._proxy = proxy
        self._exchange: Exchange | None = None
        self.held = b""

    def data_received(self, data: bytes) -> None:
        if self._exchange is not None and not self._exchange.body.done:
            self._exchange.take_request(data)
            return
        self.held += data
        if self._exchange is None:
            self.next_request()
        else:
            self.transport.pause_reading()

    def next_request(self) -> None:
        self._exchange = None
        if self.transport.is_closing():
            return
        self.transport.resume_reading()
        end = self.held.find(HEAD_END)
        if end < 0:
            if len(self.held) > _MAX_HEAD_BYTES:
                self.transport.close()
            return
        try:
            head = Head(self.held[: end + 4])
            body = request_body(head)
        except ValueError:
            self.transport.close()
            return
        rest, self.held = self.held[end + 4 :], b""
        self._exchange = Exchange(self._proxy, self, head, body)
        self._exchange.start(rest)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  asyncio's signature
        if self._exchange is not None:
            self._exchange.abandon()


class Exchange:
    """One request and its response, from the client's head to the last byte either side gets."""

    def __init__(self, proxy: "Proxy", client: Client, head: Head, body: Body) -> None:
        self._proxy = proxy
        self._client = client
        self._head = head
        self.body = body
        self._uploads = not body.done
        self._row, self._fault = proxy.admit(head)
        self._kind = self._fault.name if self._fault else ""
        self._offset = self._fault.offset if self._fault else None
        self._buckets = [proxy.bucket]
        if self._fault is not None and self._fault.mibs is not None:
            self._buckets.append(Bucket(self._fault.mibs))
        self._held = b""
        self._timer: asyncio.TimerHandle | None = None
        self._consume: Callable[[bytes], None] | None = None
        self._upstream: Upstream | None = None
        self._reused = False
        self._body_sent = False
        self._up: Flow | None = None
        self._down: Flow | None = None
        self._request_strike: Strike | None = None
        self._response_strike: Strike | None = None
        self._response: Head | None = None
        self._response_body: Body = OpenBody()
        self._response_held = b""
        self._over = False

    def start(self, rest: bytes) -> None:
        """Begins after the latency; `rest` came with the head."""
        if self.body.done:
            self._client.held = rest
        else:
            self._held = rest
        delay_s = self._proxy.latency_s + (self._fault.delay_ms / 1000 if self._fault else 0.0)
        if delay_s:
            self._timer = self._proxy.loop.call_later(delay_s, self._begin)
        else:
            self._begin()

    def _begin(self) -> None:
        mute = self._kind == "stall" and self._offset is None
        if not mute and self._kind not in ("status", "reset_before"):
            upstream = self._proxy.take_idle()
            self._reused = upstream is not None
            if upstream is None:
                self._proxy.connect(self)
            else:
                self.attach(upstream)
        elif self.body.done or (self._kind == "reset_before" and self._expects_continue):
            self._act()
        else:
            if self._expects_continue:
                self._client.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._feed(self._drain)

    @property
    def _expects_continue(self) -> bool:
        return b"expect" in self._head.headers

    def take_request(self, data: bytes) -> None:
        """More of the request's body."""
        if self._consume is None:
            self._held += data
            self._client.transport.pause_reading()
        else:
            self._consume(data)

    def _feed(self, consume: Callable[[bytes], None]) -> None:
        self._consume = consume
        self._client.transport.resume_reading()
        held, self._held = self._held, b""
        if held:
            consume(held)

    def _drain(self, data: bytes) -> None:
        _, self._client.held = self.body.feed(data)
        if self.body.done:
            self._act()

    def _act(self) -> None:
        """Does what the faults do that need no upstream; a mute stall does nothing."""
        if self._kind == "status":
            assert self._fault is not None
            head, body = error_response(self._fault, self._row.method)
            self._row.status = self._fault.code
            self._row.sent = len(body)
            self._finish()
            self._client.transport.write(head + body)
            self._complete()
        elif self._kind == "reset_before":
            self._finish()
            self._client.reset()

    def attach(self, upstream: Upstream) -> None:
        """Sends the request over this connection."""
        if self._over:
            self._proxy.idle.append(upstream)
            return
        self._upstream = upstream
        upstream.exchange = self
        head = self._head
        upstream.transport.write(head.without_connection() if head.closes else head.raw)
        self._down = Flow(self._proxy.loop, upstream, self._client, self._buckets)
        if self._uploads:
            self._up = Flow(self._proxy.loop, self._client, upstream, self._buckets)
            if self._kind == "flip":
                self._request_strike = Flip(self._offset, self.body.length)
            elif self._kind == "reset_during":
                self._request_strike = Cut(self._offset, self.body.length)
            self._feed(self._send_body)

    def _send_body(self, data: bytes) -> None:
        assert self._up is not None
        self._body_sent = True
        pieces, self._client.held = self.body.feed(data)
        cut = False
        if self._request_strike is not None:
            pieces, cut = self._request_strike.apply(pieces, done=self.body.done)
        self._up.write(join(pieces))
        if cut:
            self._finish()
            self._up.then(self._client.reset)

    def take_response(self, data: bytes) -> None:
        """More of what upstream answers."""
        raw = b""
        if self._response is None:
            data = self._response_held + data
            while self._response is None:
                end = data.find(HEAD_END)
                if end < 0:
                    self._response_held = data
                    return
                raw, data = data[: end + 4], data[end + 4 :]
                head = Head(raw)
                if int(head.start[1]) >= 200:
                    self._response = head
                else:
                    self._client.transport.write(raw)
            kept = self._open_response(self._response)
            if kept < len(raw):
                self._cut(raw[:kept])
                return
        pieces, beyond = self._response_body.feed(data)
        self._response_held = beyond
        self._pass_on(raw, pieces)

    def _open_response(self, head: Head) -> int:
        """Plans the fault in the response, and says how much of the head to send."""
        method, kind, size = self._row.method, self._kind, len(head.raw)
        status = int(head.start[1])
        body = self._response_body = response_body(head, method, status)
        cuts = kind in ("truncate", "stall", "reset_after")
        cuts = cuts or (kind == "reset_during" and not self._uploads)
        if kind == "reset_after" and method not in ("GET", "HEAD"):
            return 0
        if cuts and body.length == 0:
            return size - 1 if kind in ("stall", "reset_after") else size // 2
        if cuts:
            offset = _NEVER if kind == "reset_after" else self._offset
            self._response_strike = Cut(offset, body.length)
        elif kind == "flip" and not self._uploads and body.length != 0:
            self._response_strike = Flip(self._offset, body.length)
        self._row.status = status
        return size

    def _pass_on(self, raw: bytes, pieces: list[Piece]) -> None:
        assert self._down is not None
        done, cut = self._response_body.done, False
        if self._response_strike is not None:
            pieces, cut = self._response_strike.apply(pieces, done=done)
        self._row.sent += sum(len(data) for data, payload in pieces if payload)
        data = raw + join(pieces) if raw else join(pieces)
        if cut:
            self._cut(data)
        elif done:
            self._down.finish(data, self._finish, self._complete)
        else:
            self._down.write(data)

    def _cut(self, data: bytes) -> None:
        """Sends the last bytes the fault leaves the client, and lets go of upstream."""
        assert self._down is not None
        self._drop_upstream()
        if self._kind == "stall":
            self._down.write(data)
        elif self._kind == "truncate":
            self._down.finish(data, self._finish, self._client.transport.close)
        else:
            self._down.finish(data, self._finish, self._reset_client)

    def _reset_client(self) -> None:
        loop = self._proxy.loop
        self._client.reset_once_delivered(loop, loop.time() + _DELIVERY_TIMEOUT_S)

    def lose_upstream(self) -> None:
        """Upstream closed, or could not be reached: the client's connection shares its fate."""
        self._upstream = None
        if self._response is not None and isinstance(self._response_body, OpenBody):
            self._response_body.done = True
            self._pass_on(b"", [])
        elif self._reused and not (self._body_sent or self._response or self._response_held):
            # It was closed while it waited in the pool; the request never got anywhere.
            self._reused = False
            self._consume = None
            self._end_flows()
            self._proxy.connect(self)
        else:
            self._finish()
            if self._down is None:
                self._client.transport.close()
            else:
                self._down.then(self._client.transport.close)

    def abandon(self) -> None:
        """The client is gone."""
        if not self._over:
            self._over = True
            self._finish()
            self._end_flows()
            self._drop_upstream()
            if self._timer is not None:
                self._timer.cancel()

    def _finish(self) -> None:
        if self._row.finished is None:
            self._row.finished = self._proxy.now()

    def _complete(self) -> None:
        """The client has its whole response: readies both connections for the next request."""
        self._over = True
        sent = self.body.done and (self._up is None or self._up.empty)
        ends = self._response is not None and (
            self._response.closes or isinstance(self._response_body, OpenBody)
        )
        self._end_flows()
        if self._upstream is not None and sent and not ends and not self._response_held:
            self._upstream.exchange = None
            self._upstream.transport.resume_reading()
            self._proxy.idle.append(self._upstream)
        else:
            self._drop_upstream()
        if ends or not sent or self._head.closes:
            self._client.transport.close()
        elif self._client.held:
            self._proxy.loop.call_soon(self._client.next_request)
        else:
            self._client.next_request()

    def _end_flows(self) -> None:
        for flow in (self._up, self._down):
            if flow is not None:
                flow.end()

    def _drop_upstream(self) -> None:
        if self._upstream is not None:
            self._upstream.exchange = None
            self._upstream.reset()
            self._upstream = None


def join(pieces: list[Piece]) -> bytes:
    return pieces[0][0] if len(pieces) == 1 else b"".join(data for data, _ in pieces)


def error_response(fault: Fault, method: str) -> tuple[bytes, bytes]:
    """Head and body of an S3 error document; the head of a HEAD promises the body it never has."""
    code, message = escape(fault.error_code), escape(fault.message)
    text = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
    body = b"" if fault.code in (204, 304) else f'<?xml version="1.0"?>\n{text}'.encode()
    retry = "" if fault.retry_after_s is None else f"Retry-After: {fault.retry_after_s}\r\n"
    head = (
        f"HTTP/1.1 {fault.code} Injected\r\nContent-Type: application/xml\r\n"
        f"Content-Length: {len(body)}\r\n{retry}\r\n"
    )
    return head.encode(), b"" if method == "HEAD" else body
