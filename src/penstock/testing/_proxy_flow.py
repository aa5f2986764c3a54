"""How bytes leave the proxy: the pace, the peers, and the flow between two of them."""

import asyncio
import fcntl
import socket
import struct
import sys
import termios
from collections import deque
from collections.abc import Callable

_MIB = 1 << 20
_WRITE_BUFFER_BYTES = 1 << 20


class Bucket:
    """A rate shared by those who reserve from it, in the order they come."""

    __slots__ = ("_free_at", "rate")

    def __init__(self, mibs: float | None) -> None:
        self._free_at = 0.0
        self.set(mibs)

    def set(self, mibs: float | None) -> None:
        self.rate = None if mibs is None else mibs * _MIB

    def reserve(self, size: int, now: float) -> float:
        """When the last of `size` bytes may leave. Timers fire late: 10 ms unused are made good."""
        if self.rate is None:
            return now
        self._free_at = max(self._free_at, now - 0.01) + size / self.rate
        return self._free_at


class Peer(asyncio.Protocol):
    """One end of a connection."""

    transport: asyncio.Transport
    full = False
    inflow: "Flow | None" = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(_WRITE_BUFFER_BYTES)
        self.transport = transport

    def pause_writing(self) -> None:
        self.full = True
        if self.inflow is not None:
            self.inflow.steer()

    def resume_writing(self) -> None:
        self.full = False
        if self.inflow is not None:
            self.inflow.steer()

    def reset(self) -> None:
        """Closes with a RST, dropping what has not been delivered."""
        sock = self.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def reset_once_delivered(self, loop: asyncio.AbstractEventLoop, deadline: float) -> None:
        """Resets when the other side has all that was written, which a RST might take from it."""
        if self.transport.is_closing():
            return
        sock = self.transport.get_extra_info("socket")
        queued = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
        unsent = int.from_bytes(queued, sys.byteorder)
        if (unsent or self.transport.get_write_buffer_size()) and loop.time() < deadline:
            loop.call_later(0.001, self.reset_once_delivered, loop, deadline)
        else:
            self.reset()


class Flow:
    """Bytes on their way from one peer to another, held back where the sink or the pace says so."""

    __slots__ = ("_buckets", "_loop", "_queue", "_sink", "_source", "_timer")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, source: Peer, sink: Peer, buckets: list[Bucket]
    ) -> None:
        self._loop = loop
        self._source = source.transport
        self._sink = sink
        self._queue: deque[bytes | Callable[[], None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._buckets = buckets
        sink.inflow = self

    def write(self, data: bytes) -> None:
        rates = [bucket.rate for bucket in self._buckets if bucket.rate is not None]
        if not rates and not self._queue:
            self._sink.transport.write(data)
            return
        # Slices of 20 ms, so that a slow stream trickles instead of jumping.
        step = max(1024, int(min(rates, default=_MIB) / 50))
        self._queue.extend(data[at : at + step] for at in range(0, len(data), step))
        self._pump()

    def then(self, action: Callable[[], None]) -> None:
        """Calls `action` once all that was written has left."""
        self._queue.append(action)
        self._pump()

    def finish(self, data: bytes, before: Callable[[], None], after: Callable[[], None]) -> None:
        """Writes the last bytes; `before` is called right before they leave, `after` right after."""
        if any(bucket.rate is not None for bucket in self._buckets):
            self.write(data[:-1024])
            data = data[-1024:]
        self.then(before)
        self.write(data)
        self.then(after)

    @property
    def empty(self) -> bool:
        return not self._queue

    def steer(self) -> None:
        """Reads from the source only while the sink takes what it gives."""
        if self._sink.inflow is not self:
            return
        if self._sink.full or self._queue:
            self._source.pause_reading()
        else:
            self._source.resume_reading()

    def end(self) -> None:
        self._queue.clear()
        if self._timer is not None:
            self._timer.cancel()
        if self._sink.inflow is self:
            self._sink.inflow = None

    def _pump(self) -> None:
        while self._queue and self._timer is None:
            item = self._queue[0]
            if isinstance(item, bytes):
                now = self._loop.time()
                due = max(bucket.reserve(len(item), now) for bucket in self._buckets)
                if due > now:
                    self._timer = self._loop.call_at(due, self._deliver, item)
                    break
                self._sink.transport.write(item)
                self._queue.popleft()
            else:
                self._queue.popleft()
                item()
        self.steer()

    def _deliver(self, item: bytes) -> None:
        self._timer = None
        self._queue.popleft()
        self._sink.transport.write(item)
        self._pump()
