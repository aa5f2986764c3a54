"""FaultProxy before a small real HTTP server: what each fault does to a client, and what is logged."""

import hashlib
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from penstock.testing.proxy import Fault, FaultProxy

BODY = bytes(range(256)) * 40


class Origin(ThreadingHTTPServer):
    """Objects in memory; `kill` drops its connections as a dying process would."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, port: int = 0) -> None:
        self.objects: dict[str, bytes] = {}
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        self.connections: list[socket.socket] = []
        super().__init__(("127.0.0.1", port), Handler)
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self.connections.append(connection)
        return connection, address

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that break off are what these tests are about."""

    def kill(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()
        for connection in self.connections:
            with suppress(OSError):  # already closed by the other side
                connection.shutdown(socket.SHUT_RDWR)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Origin

    def log_message(self, *args: Any) -> None:
        """Nothing: pytest's output is not the place."""

    def do_GET(self) -> None:
        self.server.seen.append((self.command, self.path, dict(self.headers.items())))
        data = self.server.objects.get(self.path.partition("?")[0])
        status = 200
        if data is None:
            status, data = 404, b"no such key"
        elif "Range" in self.headers:
            first, last = self.headers["Range"].removeprefix("bytes=").split("-")
            status, data = 206, data[int(first) : int(last) + 1]
        self.send_response(status)
        if "chunked" in self.path:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for at in range(0, len(data), 1000):
                part = data[at : at + 1000]
                self.wfile.write(b"%x;note=1\r\n%s\r\n" % (len(part), part))
            self.wfile.write(b"0\r\nX-Trailer: yes\r\n\r\n")
            return
        if "until-close" in self.path:
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_HEAD = do_GET  # noqa: N815  http.server's name

    def do_PUT(self) -> None:
        self.server.seen.append((self.command, self.path, dict(self.headers.items())))
        if self.headers.get("Transfer-Encoding") == "chunked":
            data = b""
            while size := int(self.rfile.readline(), 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            length = int(self.headers["Content-Length"])
            data = self.rfile.read(length)
            if len(data) < length:
                self.close_connection = True
                return
        self.server.objects[self.path] = data
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_DELETE(self) -> None:
        self.server.seen.append((self.command, self.path, dict(self.headers.items())))
        self.server.objects.pop(self.path, None)
        self.send_response(204)
        self.end_headers()


class Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes


def connect(proxy: FaultProxy) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(urlsplit(proxy.endpoint).netloc, timeout=10)


def ask(
    proxy: FaultProxy,
    method: str = "GET",
    path: str = "/bucket/key",
    body: Any = None,
    **headers: str,
) -> Answer:
    connection = connect(proxy)
    try:
        connection.request(
            method,
            path,
            body,
            headers,
            encode_chunked=headers.get("Transfer-Encoding") == "chunked",
        )
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read())
    finally:
        connection.close()


def raw(proxy: FaultProxy, request: bytes) -> tuple[bytes, str]:
    """All bytes that come back, and how it ended: "fin", "reset" or "silence" for half a second."""
    address = urlsplit(proxy.endpoint)
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.settimeout(0.5)
        got = b""
        try:
            connection.sendall(request)
            while data := connection.recv(1 << 16):
                got += data
        except ConnectionResetError:
            return got, "reset"
        except TimeoutError:
            return got, "silence"
        return got, "fin"


def get(path: str = "/bucket/key", method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: h\r\n\r\n".encode()


def put(body: bytes, path: str = "/bucket/new") -> bytes:
    return f"PUT {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.fixture
def origin() -> Iterator[Origin]:
    server = Origin()
    server.objects["/bucket/key"] = BODY
    server.objects["/bucket/chunked"] = BODY
    server.objects["/bucket/until-close"] = BODY
    server.objects["/bucket/empty"] = b""
    yield server
    server.kill()


@pytest.fixture
def proxy(origin: Origin) -> Iterator[FaultProxy]:
    with FaultProxy(origin.endpoint) as proxy:
        yield proxy


def test_a_get_passes_unchanged(proxy: FaultProxy, origin: Origin) -> None:
    assert ask(proxy).body == BODY
    assert ask(proxy, path="/bucket/none").status == 404
    assert ask(proxy, path="/bucket/empty").body == b""
    ranged = ask(proxy, Range="bytes=10-19")
    assert (ranged.status, ranged.body) == (206, BODY[10:20])


def test_host_and_target_reach_upstream_byte_for_byte(proxy: FaultProxy, origin: Origin) -> None:
    target = "/bucket/a%2Fb%20c+d//e?x=%7E&y"
    ask(proxy, path=target, Host="store.example:1234")
    _, path, headers = origin.seen[-1]
    assert (path, headers["Host"]) == (target, "store.example:1234")


def test_a_head_has_a_length_and_no_body(proxy: FaultProxy) -> None:
    connection = connect(proxy)
    for _ in range(2):
        connection.request("HEAD", "/bucket/key")
        response = connection.getresponse()
        assert (response.status, response.headers["Content-Length"]) == (200, str(len(BODY)))
        assert response.read() == b""
    connection.close()


def test_a_204_ends_without_a_body(proxy: FaultProxy, origin: Origin) -> None:
    connection = connect(proxy)
    for _ in range(2):
        connection.request("DELETE", "/bucket/key")
        assert connection.getresponse().read() == b""
    connection.close()
    assert "/bucket/key" not in origin.objects


def test_chunked_bodies_pass_both_ways(proxy: FaultProxy, origin: Origin) -> None:
    assert ask(proxy, path="/bucket/chunked").body == BODY
    parts = [BODY[:7], BODY[7:5000], BODY[5000:]]
    ask(proxy, "PUT", "/bucket/new", iter(parts), **{"Transfer-Encoding": "chunked"})
    assert origin.objects["/bucket/new"] == BODY


def test_a_body_that_ends_with_its_connection_passes(proxy: FaultProxy) -> None:
    assert ask(proxy, path="/bucket/until-close").body == BODY
    assert proxy.requests[-1].bytes_sent == len(BODY)


def test_large_bodies_pass_intact_both_ways(proxy: FaultProxy, origin: Origin) -> None:
    large = os.urandom(1 << 20) * 64
    assert ask(proxy, "PUT", "/bucket/large", large).status == 200
    expected = hashlib.sha256(large).digest()
    assert hashlib.sha256(origin.objects["/bucket/large"]).digest() == expected
    assert hashlib.sha256(ask(proxy, path="/bucket/large").body).digest() == expected


def test_an_expected_continue_is_relayed_before_the_body_is_sent(
    proxy: FaultProxy, origin: Origin
) -> None:
    address = urlsplit(proxy.endpoint)
    with socket.create_connection((address.hostname, address.port), timeout=10) as connection:
        head = "PUT /bucket/new HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n"
        connection.sendall(head.encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 100 ")
        connection.sendall(b"data")
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")
    assert origin.objects["/bucket/new"] == b"data"


def test_a_status_fault_asks_for_the_body_a_client_holds_back(proxy: FaultProxy) -> None:
    proxy.add(Fault.status(503))
    head = (
        b"PUT /bucket/new HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n"
    )
    got, _ = raw(proxy, head + b"data")
    assert got.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 503 ")


def test_connections_are_kept_alive_on_both_sides(proxy: FaultProxy, origin: Origin) -> None:
    connection = connect(proxy)
    for _ in range(20):
        connection.request("GET", "/bucket/key")
        assert connection.getresponse().read() == BODY
    connection.close()
    for _ in range(20):
        assert ask(proxy, Connection="close").body == BODY
    assert len(origin.connections) == 1


def test_pipelined_requests_are_answered_in_order(proxy: FaultProxy) -> None:
    proxy.add(Fault.status(500, times=1, skip=1))
    got, _ = raw(proxy, get("/bucket/empty") + get("/bucket/empty") + get("/bucket/none"))
    assert re.findall(rb"HTTP/1.1 (\d+)", got) == [b"200", b"500", b"404"]


def test_a_killed_upstream_closes_connections_and_a_restarted_one_serves_again(
    proxy: FaultProxy, origin: Origin
) -> None:
    assert ask(proxy).status == 200
    origin.kill()
    with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
        ask(proxy)
    assert proxy.requests[-1].status is None
    again = Origin(origin.server_port)
    again.objects["/bucket/key"] = BODY
    try:
        assert ask(proxy).body == BODY
    finally:
        again.kill()


@pytest.mark.parametrize(
    ("code", "error_code"),
    [(403, "AccessDenied"), (429, "TooManyRequests"), (500, "InternalError"), (503, "SlowDown")],
)
def test_a_status_fault_answers_without_asking_upstream(
    proxy: FaultProxy, origin: Origin, code: int, error_code: str
) -> None:
    proxy.add(Fault.status(code, message="a < b"))
    for method, body in (("GET", None), ("PUT", b"x" * 3_000_000), ("DELETE", None)):
        answer = ask(proxy, method, body=body)
        assert answer.status == code
        assert f"<Code>{error_code}</Code><Message>a &lt; b</Message>".encode() in answer.body
        assert "Retry-After" not in answer.headers
    assert not origin.seen
    assert ask(proxy, "HEAD").body == b""


def test_a_status_fault_can_say_when_to_retry(proxy: FaultProxy) -> None:
    proxy.add(Fault.status(503, retry_after_s=7, error_code="Busy"))
    answer = ask(proxy)
    assert answer.headers["Retry-After"] == "7"
    assert b"<Code>Busy</Code>" in answer.body


def test_a_connection_outlives_a_status_fault(proxy: FaultProxy) -> None:
    proxy.add(Fault.status(500, times=1))
    connection = connect(proxy)
    for status in (500, 200):
        connection.request("PUT", "/bucket/new", b"x" * 1_000_000)
        response = connection.getresponse()
        response.read()
        assert response.status == status
    connection.close()


def test_reset_before_answers_nothing_and_forwards_nothing(
    proxy: FaultProxy, origin: Origin
) -> None:
    proxy.add(Fault.reset_before())
    assert raw(proxy, get()) == (b"", "reset")
    assert raw(proxy, put(b"data")) == (b"", "reset")
    assert not origin.seen
    assert [(r.status, r.fault) for r in proxy.requests] == [(None, "reset_before")] * 2


@pytest.mark.parametrize("after_bytes", [0, 100, None, 1 << 30])
@pytest.mark.parametrize("fault", [Fault.reset_during, Fault.truncate])
@pytest.mark.parametrize("key", ["key", "chunked"])
def test_a_cut_response_stops_after_so_many_body_bytes(
    proxy: FaultProxy, after_bytes: int | None, fault: Callable[..., Fault], key: str
) -> None:
    proxy.add(fault(after_bytes=after_bytes))
    got, end = raw(proxy, get(f"/bucket/{key}"))
    head, _, body = got.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert end == ("fin" if fault == Fault.truncate else "reset")
    logged = proxy.requests[-1]
    assert (logged.status, logged.fault) == (200, fault().name)
    if key == "chunked":
        assert not body.endswith(b"\r\n\r\n")
        assert after_bytes is None or logged.bytes_sent == min(after_bytes, len(BODY))
        return
    expected = {None: len(BODY) // 2, 1 << 30: len(BODY) - 1}.get(after_bytes, after_bytes)
    assert body == BODY[:expected]
    assert logged.bytes_sent == expected


@pytest.mark.parametrize("fault", [Fault.reset_during, Fault.truncate, Fault.reset_after])
@pytest.mark.parametrize("request_", [get(method="HEAD"), get("/bucket/empty")])
def test_a_cut_response_without_a_body_is_cut_in_its_head(
    proxy: FaultProxy, fault: Callable[..., Fault], request_: bytes
) -> None:
    proxy.add(fault())
    got, end = raw(proxy, request_)
    assert got.startswith(b"HTTP/1.1 200")
    assert b"\r\n\r\n" not in got
    assert end == ("fin" if fault == Fault.truncate else "reset")
    assert proxy.requests[-1].status is None


@pytest.mark.parametrize("after_bytes", [0, None, 1 << 30])
@pytest.mark.parametrize("size", [10, 3_000_000])
def test_reset_during_an_upload_stores_nothing(
    proxy: FaultProxy, origin: Origin, after_bytes: int | None, size: int
) -> None:
    proxy.add(Fault.reset_during(after_bytes=after_bytes, method="PUT", times=1))
    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        ask(proxy, "PUT", "/bucket/new", b"x" * size)
    assert proxy.requests[-1].fault == "reset_during"
    assert ask(proxy, "PUT", "/bucket/other", b"data").status == 200
    assert "/bucket/new" not in origin.objects


def test_reset_during_a_chunked_upload_stores_nothing(proxy: FaultProxy, origin: Origin) -> None:
    proxy.add(Fault.reset_during(after_bytes=1 << 30))
    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        ask(
            proxy,
            "PUT",
            "/bucket/new",
            iter([b"some", b"data"]),
            **{"Transfer-Encoding": "chunked"},
        )
    assert "/bucket/new" not in origin.objects


def test_reset_after_an_upload_stores_it_and_says_nothing(
    proxy: FaultProxy, origin: Origin
) -> None:
    proxy.add(Fault.reset_after())
    assert raw(proxy, put(b"data")) == (b"", "reset")
    assert origin.objects["/bucket/new"] == b"data"
    assert raw(proxy, get(method="DELETE")) == (b"", "reset")
    assert "/bucket/key" not in origin.objects
    assert [r.status for r in proxy.requests] == [None, None]


@pytest.mark.parametrize("key", ["key", "chunked", "until-close"])
def test_reset_after_a_download_keeps_its_end_back(proxy: FaultProxy, key: str) -> None:
    proxy.add(Fault.reset_after())
    got, end = raw(proxy, get(f"/bucket/{key}"))
    assert end == "reset"
    assert got.startswith(b"HTTP/1.1 200")
    if key == "key":
        assert got.endswith(BODY[:-1])
    assert not got.endswith(b"\r\n\r\n")


def test_reset_after_delivers_a_large_body_but_its_last_byte(
    proxy: FaultProxy, origin: Origin
) -> None:
    origin.objects["/bucket/key"] = large = os.urandom(1 << 20) * 16
    proxy.add(Fault.reset_after())
    got, end = raw(proxy, get())
    assert end == "reset"
    assert got.partition(b"\r\n\r\n")[2] == large[:-1]


def test_a_truncated_upload_is_stored_and_its_response_cut(
    proxy: FaultProxy, origin: Origin
) -> None:
    proxy.add(Fault.truncate())
    got, end = raw(proxy, put(b"data"))
    assert end == "fin"
    assert b"\r\n\r\n" not in got
    assert origin.objects["/bucket/new"] == b"data"


@pytest.mark.parametrize(("offset", "at"), [(0, 0), (5, 5), (None, len(BODY) // 2), (1 << 30, -1)])
def test_flip_changes_one_bit_of_the_body_and_nothing_else(
    proxy: FaultProxy, origin: Origin, offset: int | None, at: int
) -> None:
    flipped = bytearray(BODY)
    flipped[at] ^= 1
    proxy.add(Fault.flip(offset=offset, times=2))
    assert ask(proxy).body == flipped
    ask(proxy, "PUT", "/bucket/new", BODY)
    assert origin.objects["/bucket/new"] == flipped
    assert ask(proxy).body == BODY


def test_flip_finds_its_offset_between_chunks(proxy: FaultProxy, origin: Origin) -> None:
    flipped = bytearray(BODY)
    flipped[2500] ^= 1
    proxy.add(Fault.flip(offset=2500))
    assert ask(proxy, path="/bucket/chunked").body == flipped
    parts = iter([BODY[:2000], BODY[2000:]])
    ask(proxy, "PUT", "/bucket/new", parts, **{"Transfer-Encoding": "chunked"})
    assert origin.objects["/bucket/new"] == flipped


def test_stall_sends_so_much_and_then_nothing(proxy: FaultProxy) -> None:
    proxy.add(Fault.stall(times=1))
    got, end = raw(proxy, get())
    assert end == "silence"
    assert got.endswith(b"\r\n\r\n")
    proxy.add(Fault.stall(after_bytes=100, times=1))
    got, end = raw(proxy, get())
    assert end == "silence"
    assert got.endswith(b"\r\n\r\n" + BODY[:100])
    assert ask(proxy).body == BODY


def test_stall_without_headers_is_silent_and_forwards_nothing(
    proxy: FaultProxy, origin: Origin
) -> None:
    proxy.add(Fault.stall(after_bytes=None))
    assert raw(proxy, get()) == (b"", "silence")
    assert raw(proxy, put(b"x" * 1_000_000)) == (b"", "silence")
    assert not origin.seen


def test_a_stalled_response_without_a_body_stays_incomplete(proxy: FaultProxy) -> None:
    proxy.add(Fault.stall())
    got, end = raw(proxy, put(b"data"))
    assert end == "silence"
    assert got.endswith(b"\r\n\r")


def test_latency_of_a_fault_is_for_matched_requests_only(proxy: FaultProxy) -> None:
    proxy.add(Fault.latency(200, key="key"))
    ask(proxy)
    ask(proxy, path="/bucket/empty")
    slow, fast = ((r.finished_s or 0) - r.started_s for r in proxy.requests)
    assert slow >= 0.2 > fast


def test_throttle_of_a_fault_is_for_matched_requests_only(
    proxy: FaultProxy, origin: Origin
) -> None:
    origin.objects["/bucket/slow"] = origin.objects["/bucket/fast"] = BODY * 20
    proxy.add(Fault.throttle(1, key="slow"))
    assert ask(proxy, path="/bucket/slow").body == BODY * 20
    assert ask(proxy, path="/bucket/fast").body == BODY * 20
    slow, fast = ((r.finished_s or 0) - r.started_s for r in proxy.requests)
    assert slow >= 0.9 * len(BODY) * 20 / (1 << 20)
    assert fast < slow / 2


def test_faults_match_by_method_and_key_glob(proxy: FaultProxy) -> None:
    proxy.add(Fault.status(500, method="PUT"))
    proxy.add(Fault.status(403, key="train/*.bin"))
    proxy.add(Fault.status(429, key=""))
    assert ask(proxy, "PUT", body=b"").status == 500
    assert ask(proxy).status == 200
    assert ask(proxy, path="/bucket/train/a/b%2Ebin").status == 403
    assert ask(proxy, path="/bucket/train/a").status == 404
    assert ask(proxy, path="/bucket?list-type=2&prefix=train/x.bin").status == 429


def test_faults_skip_and_then_strike_so_many_times(proxy: FaultProxy) -> None:
    proxy.add(Fault.status(503, skip=2, times=3, key="key"))
    statuses = []
    for _ in range(8):
        statuses.append(ask(proxy).status)
        ask(proxy, path="/bucket/empty")
    assert statuses == [200, 200, 503, 503, 503, 200, 200, 200]


def test_the_first_fault_that_is_not_exhausted_strikes(proxy: FaultProxy) -> None:
    for code in (500, 503):
        proxy.add(Fault.status(code, times=2))
    assert [ask(proxy).status for _ in range(5)] == [500, 500, 503, 503, 200]
    proxy.add(Fault.status(429))
    assert ask(proxy).status == 429
    proxy.clear_faults()
    assert ask(proxy).status == 200


def test_a_rate_strikes_its_share_and_the_same_requests_for_a_seed(origin: Origin) -> None:
    def strikes(seed: int) -> list[bool]:
        fault = Fault.status(503, rate=0.3, seed=seed)
        with FaultProxy(origin.endpoint, faults=[fault]) as proxy:
            return [ask(proxy, path="/bucket/empty").status == 503 for _ in range(200)]

    first = strikes(1)
    assert 30 <= sum(first) <= 90
    assert strikes(1) == first
    assert strikes(2) != first


def test_counts_are_exact_under_concurrency(proxy: FaultProxy) -> None:
    proxy.add(Fault.status(503, times=37))
    with ThreadPoolExecutor(16) as pool:
        statuses = list(pool.map(lambda _: ask(proxy).status, range(200)))
    assert statuses.count(503) == 37
    assert proxy.count("GET") == 200
    assert sum(r.fault == "status" for r in proxy.requests) == 37


def test_delayed_requests_overlap(origin: Origin) -> None:
    with FaultProxy(origin.endpoint, latency_ms=50) as proxy, ThreadPoolExecutor(64) as pool:
        started = time.monotonic()
        assert all(pool.map(lambda _: ask(proxy).body == BODY, range(64)))
        elapsed_s = time.monotonic() - started
        assert elapsed_s < 64 * 0.05 / 2
        assert all((r.finished_s or 0) - r.started_s >= 0.05 for r in proxy.requests)


def test_bandwidth_is_capped_across_connections_and_both_ways(origin: Origin) -> None:
    with FaultProxy(origin.endpoint, bandwidth_mibs=8) as proxy, ThreadPoolExecutor(4) as pool:
        started = time.monotonic()
        list(pool.map(lambda n: ask(proxy, "PUT", f"/bucket/{n}", b"x" * (1 << 20)), range(4)))
        uploaded = time.monotonic()
        list(pool.map(lambda n: ask(proxy, path=f"/bucket/{n}"), range(4)))
        downloaded = time.monotonic()
        assert 0.45 <= uploaded - started < 2
        assert 0.45 <= downloaded - uploaded < 2


def test_latency_and_bandwidth_change_while_running(proxy: FaultProxy) -> None:
    def took_s() -> float:
        ask(proxy)
        logged = proxy.requests[-1]
        assert logged.finished_s is not None
        return logged.finished_s - logged.started_s

    proxy.set(latency_ms=100)
    assert took_s() >= 0.1
    proxy.set(bandwidth_mibs=0.05)
    assert took_s() >= 0.1 + 0.1
    proxy.set(latency_ms=0, bandwidth_mibs=None)
    assert took_s() < 0.2


def test_the_log_tells_what_was_asked_and_answered(proxy: FaultProxy) -> None:
    ask(proxy, Range="bytes=0-99")
    ask(proxy, "PUT", "/bucket/a%20b/c%2Fd", b"data")
    ask(proxy, path="/bucket?list-type=2&prefix=a%2F")
    first, second, third = proxy.requests
    assert (first.method, first.bucket, first.key, first.range) == (
        "GET",
        "bucket",
        "key",
        (0, 100),
    )
    assert (first.status, first.fault, first.bytes_sent) == (206, None, 100)
    assert first.finished_s is not None
    assert 0 <= first.started_s <= first.finished_s <= second.started_s
    assert (second.method, second.key, second.range) == ("PUT", "a b/c/d", None)
    assert (third.bucket, third.key, third.query) == ("bucket", "", "list-type=2&prefix=a%2F")


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("bytes=5-", (5, None)),
        ("bytes=-5", (-5, None)),
        ("bytes=0-0,5-9", None),
        ("lines=1-2", None),
    ],
)
def test_ranges_are_logged_half_open(
    proxy: FaultProxy, header: str, expected: tuple[int, int | None] | None
) -> None:
    proxy.add(Fault.status(500))
    ask(proxy, Range=header)
    assert proxy.requests[-1].range == expected


def test_signatures_and_credentials_are_not_logged(proxy: FaultProxy) -> None:
    names = ("X-Amz-Signature", "X-Amz-Credential", "X-Amz-Security-Token", "sig", "Signature")
    secrets = "&".join(f"{name}=hush" for name in (*names, "GoogleAccessId", "X-Goog-Signature"))
    ask(proxy, path=f"/bucket/key?{secrets}&X-Amz-Expires=60&design=1")
    assert "hush" not in repr(proxy.requests)
    assert proxy.requests[-1].query.endswith("&X-Goog-Signature=REDACTED&X-Amz-Expires=60&design=1")


def test_an_answered_request_is_already_in_the_log(proxy: FaultProxy) -> None:
    connection = connect(proxy)
    for n in range(1, 101):
        connection.request("GET", "/bucket/key")
        connection.getresponse().read()
        logged = proxy.requests
        assert (len(logged), logged[-1].status, logged[-1].bytes_sent) == (n, 200, len(BODY))
        assert logged[-1].finished_s is not None
    connection.close()


def test_requests_are_counted_by_method_and_key_until_cleared(proxy: FaultProxy) -> None:
    ask(proxy)
    ask(proxy, "HEAD")
    ask(proxy, path="/bucket/train/a")
    assert (proxy.count(), proxy.count("GET"), proxy.count(key="train/*")) == (3, 2, 1)
    assert proxy.count("HEAD", "train/*") == 0
    proxy.clear_log()
    assert proxy.count() == 0


def test_bucket_segments_and_the_upstream_path_fit_an_azure_emulator(origin: Origin) -> None:
    with FaultProxy(f"{origin.endpoint}/account", bucket_segments=2) as proxy:
        assert proxy.endpoint.endswith("/account")
        ask(proxy, path="/account/container/a/key")
        assert (proxy.requests[0].bucket, proxy.requests[0].key) == ("container", "a/key")


def test_a_client_that_leaves_is_noticed(proxy: FaultProxy) -> None:
    proxy.add(Fault.stall(after_bytes=None))
    raw(proxy, get())
    deadline = time.monotonic() + 5
    while proxy.requests[-1].finished_s is None:
        assert time.monotonic() < deadline


def test_the_process_is_gone_after_stop_and_stop_may_be_called_again(origin: Origin) -> None:
    proxy = FaultProxy(origin.endpoint).start()
    pid = proxy.pid
    stalled = connect(proxy)
    proxy.add(Fault.stall(after_bytes=None))
    stalled.request("GET", "/bucket/key")
    proxy.stop()
    proxy.stop()
    stalled.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(RuntimeError, match="not running"):
        _ = proxy.endpoint


def test_a_proxy_that_died_says_so_and_can_be_stopped(proxy: FaultProxy) -> None:
    os.kill(proxy.pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="died"):
        proxy.count()
    proxy.stop()


def test_a_stopped_proxy_starts_again(origin: Origin) -> None:
    proxy = FaultProxy(origin.endpoint)
    for _ in range(2):
        with proxy:
            assert ask(proxy).status == 200
            assert proxy.count() == 1


def test_the_process_ignores_an_interrupt(proxy: FaultProxy) -> None:
    os.kill(proxy.pid, signal.SIGINT)
    assert ask(proxy).status == 200


def test_the_process_ends_when_its_parent_is_killed(origin: Origin) -> None:
    """Even while a forked child of the parent holds the control channel open."""
    script = f"""
import os, time
from penstock.testing.proxy import FaultProxy
proxy = FaultProxy({origin.endpoint!r}).start()
forked = os.fork()
if forked:
    print(proxy.pid, forked, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid, forked = map(int, parent.stdout.readline().split())
        parent.kill()
        try:
            deadline = time.monotonic() + 10
            while is_running(pid):
                assert time.monotonic() < deadline
                time.sleep(0.01)
        finally:
            os.kill(forked, signal.SIGKILL)


def is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_fork_may_use_the_endpoint_and_nothing_else(proxy: FaultProxy) -> None:
    forked = os.fork()
    if not forked:
        try:
            assert ask(proxy).status == 200
            proxy.stop()
            with pytest.raises(RuntimeError, match="another process's"):
                proxy.count()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(forked, 0)[1] == 0
    assert proxy.count() == 1


@pytest.mark.parametrize(
    "build",
    [
        lambda: FaultProxy("127.0.0.1:80"),
        lambda: FaultProxy("http://h", latency_ms=-1),
        lambda: FaultProxy("http://h", bandwidth_mibs=0),
        lambda: FaultProxy("http://h", bucket_segments=0),
        lambda: Fault.status(99),
        lambda: Fault.flip(rate=1.5),
        lambda: Fault.truncate(after_bytes=-1),
        lambda: Fault.reset_before(times=-1),
    ],
)
def test_a_bad_value_is_refused_where_it_is_given(build: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="got"):
        build()
