"""The process behind FaultProxy: what all requests share, and the channel it is steered by."""

import asyncio
import json
import os
import signal
import sys
from fnmatch import fnmatchcase
from random import Random
from typing import Any

from penstock.testing._proxy_flow import Bucket
from penstock.testing._proxy_http import Head, Row, split_path
from penstock.testing._proxy_relay import Client, Exchange, Upstream
from penstock.testing.proxy import Fault

_PARENT_POLL_S = 0.5


class Rule:
    """A fault, and how many requests it has met."""

    __slots__ = ("_random", "_seen", "_struck", "fault")

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self._random = Random(fault.seed)
        self._seen = 0
        self._struck = 0

    def is_due(self, method: str, key: str) -> bool:
        """Counts the request if it matches, and says whether the fault may strike it."""
        fault = self.fault
        if fault.method not in (None, method) or not fnmatchcase(key, fault.key):
            return False
        self._seen += 1
        return self._seen > fault.skip and (fault.times is None or self._struck < fault.times)

    def strikes(self) -> bool:
        struck = self._random.random() < self.fault.rate
        self._struck += struck
        return struck


class Proxy:
    """What all exchanges share: the pace, the rules, the log, and the pool of idle connections."""

    def __init__(self, loop: asyncio.AbstractEventLoop, config: dict[str, Any]) -> None:
        self.loop = loop
        self.latency_s = config["latency_ms"] / 1000
        self.bucket = Bucket(config["bandwidth_mibs"])
        self.idle: list[Upstream] = []
        self._rules = [Rule(Fault(**fault)) for fault in config["faults"]]
        self._rows: list[Row] = []
        self._address = config["host"], config["port"]
        self._bucket_segments = config["bucket_segments"]
        self._connecting: set[asyncio.Task[None]] = set()
        self._started = loop.time()

    def now(self) -> float:
        return self.loop.time() - self._started

    def admit(self, head: Head) -> tuple[Row, Fault | None]:
        """Logs a request that has arrived, and picks the fault that strikes it."""
        row = Row(head, self.now())
        self._rows.append(row)
        fault: Fault | None = None
        if self._rules:
            _, key = split_path(head.start[1], self._bucket_segments)
            for rule in self._rules:
                if rule.is_due(row.method, key) and fault is None and rule.strikes():
                    fault = rule.fault
                    row.fault = fault.name
        return row, fault

    def take_idle(self) -> Upstream | None:
        while self.idle:
            upstream = self.idle.pop()
            if not upstream.transport.is_closing():
                return upstream
        return None

    def connect(self, exchange: Exchange) -> None:
        """Opens a connection for this exchange, which is told how it went."""
        task = self.loop.create_task(self._connect(exchange))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, exchange: Exchange) -> None:
        try:
            _, upstream = await self.loop.create_connection(lambda: Upstream(self), *self._address)
        except OSError:
            exchange.lose_upstream()
        else:
            exchange.attach(upstream)

    def _counts(self, row: Row, method: str | None, key: str) -> bool:
        return method in (None, row.method) and (
            key == "*" or fnmatchcase(split_path(row.target, self._bucket_segments)[1], key)
        )

    def command(self, operation: str, argument: Any) -> object:
        """What FaultProxy asks over the control channel."""
        match operation:
            case "log":
                return [row.export(self._bucket_segments) for row in self._rows]
            case "count":
                return sum(self._counts(row, *argument) for row in self._rows)
            case "clear_log":
                self._rows.clear()
            case "add":
                self._rules.append(Rule(Fault(**argument)))
            case "clear_faults":
                self._rules.clear()
            case "set":
                self.latency_s = argument.get("latency_ms", self.latency_s * 1000) / 1000
                if "bandwidth_mibs" in argument:
                    self.bucket.set(argument["bandwidth_mibs"])
            case _:
                raise ValueError(f"no such operation: {operation}")
        return None


class Control(asyncio.Protocol):
    """One JSON line in, one out. The end of the input is the end of the process."""

    def __init__(self, proxy: Proxy, stopped: asyncio.Event) -> None:
        self._proxy = proxy
        self._stopped = stopped
        self._held = b""

    def data_received(self, data: bytes) -> None:
        *lines, self._held = (self._held + data).split(b"\n")
        for line in lines:
            reply(self._proxy.command(*json.loads(line)))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  asyncio's signature
        self._stopped.set()


def reply(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


async def serve(config: dict[str, Any]) -> None:
    loop = asyncio.get_running_loop()
    proxy = Proxy(loop, config)
    stopped = asyncio.Event()
    server = await loop.create_server(lambda: Client(proxy), "127.0.0.1", 0, backlog=1024)
    await loop.connect_read_pipe(lambda: Control(proxy, stopped), sys.stdin)
    reply(server.sockets[0].getsockname()[1])
    # A fork of the parent may hold the control channel open after the parent's death.
    while not stopped.is_set() and os.getppid() == config["parent_pid"]:
        try:
            await asyncio.wait_for(stopped.wait(), _PARENT_POLL_S)
        except TimeoutError:
            continue
    server.close()


def main(config: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(serve(json.loads(config)))
