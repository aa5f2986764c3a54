"""Our HTTP connection against servers that answer byte by byte what the test says, over TLS too."""

import shutil
import socket
import ssl
import subprocess
import threading
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest
from crc32c import crc32c

from penstock import RetryConfig, StoreConfig
from penstock.errors import IntegrityError, ObjectChanged, StoreUnavailable, TransferFailed
from penstock.store.connection import Connection, ProtocolError
from penstock.store.wire import Wire

RETRY = RetryConfig(max_attempts=2, backoff_initial_s=0.01, backoff_max_s=0.01)


class Script:
    """A server that gives each request the next answer: bytes, or several pieces sent one by one.

    An answer of None closes the connection instead; one that ends in None closes it afterwards.
    """

    def __init__(self, *answers, tls=None):
        self._answers = list(answers)
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.requests = []
        self.connections = 0
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)
        assert not self._thread.is_alive()

    def _serve(self):
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._attend, args=(plain,), daemon=True).start()

    def _attend(self, plain):
        with plain, suppress(OSError):  # the client may hang up, or not like the certificate
            plain.settimeout(10)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._tls.wrap_socket(plain, server_side=True) if self._tls else plain as peer:
                self._converse(peer)

    def _converse(self, peer):
        held = b""
        while self._answers:
            while b"\r\n\r\n" not in held:
                got = peer.recv(65536)
                if not got:
                    return
                held += got
            head, _, held = held.partition(b"\r\n\r\n")
            self.requests.append(head.decode())
            answer = self._answers.pop(0)
            pieces = answer if isinstance(answer, list) else [answer]
            for piece in pieces:
                if piece is None:
                    return
                peer.sendall(piece)


def connect(server, *, tls=None, **timeouts):
    settings = {"connect_timeout_s": 5.0, "read_timeout_s": 5.0, "request_timeout_s": 30.0}
    return Connection("127.0.0.1", server.port, tls=tls, **(settings | timeouts))


def exchange(server, method="GET", **options):
    connection = connect(server, **options)
    try:
        connection.send(f"{method} / HTTP/1.1\r\nhost: x\r\n\r\n".encode(), None)
        head = connection.receive_head(method)
        return head, connection.receive_all(head)
    finally:
        connection.close()


def wire_to(server, *, scheme="http", **config):
    return Wire(
        f"{scheme}://127.0.0.1:{server.port}/bucket",
        bucket_url="s3://bucket",
        config=StoreConfig(retry=RETRY, **config),
        authorise=lambda *_: {},
        whole_read_headers={},
    )


def ok(body, *, status="200 OK", **headers):
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n{lines}\r\n"
    return head.encode() + body


def test_a_body_of_known_length():
    with Script(ok(b"12345")) as server:
        head, body = exchange(server)
    assert (head.status, head.length, head.keep_alive, body) == (200, 5, True, b"12345")


@pytest.mark.parametrize(
    "raw",
    [
        b"5\r\n12345\r\n0\r\n\r\n",
        b"1\r\n1\r\n4;name=value\r\n2345\r\n0\r\nx-trailer: 1\r\n\r\n",
        b"00005\r\n12345\r\n0\r\n\r\n",
    ],
)
@pytest.mark.parametrize("split", [True, False], ids=["byte by byte", "at once"])
def test_a_chunked_body(raw, split):
    answer = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + raw
    pieces = [answer[i : i + 1] for i in range(len(answer))] if split else answer
    with Script(pieces, ok(b"next")) as server:
        connection = connect(server)
        connection.send(b"GET / HTTP/1.1\r\n\r\n", None)
        assert connection.receive_all(connection.receive_head("GET")) == b"12345"
        connection.send(b"GET / HTTP/1.1\r\n\r\n", None)
        assert connection.receive_all(connection.receive_head("GET")) == b"next"
        connection.close()


@pytest.mark.parametrize(
    "raw",
    [b"-5\r\n12345\r\n", b"x\r\n", b"\r\n", b"0x5\r\n12345\r\n", b"1_0\r\n", b"f" * 30 + b"\r\n"],
)
def test_a_chunk_of_no_size_is_a_protocol_error(raw):
    answer = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + raw
    with Script([answer, None]) as server, pytest.raises(ProtocolError, match="chunk"):
        exchange(server)


def test_a_chunk_longer_than_it_says_is_a_protocol_error():
    answer = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\n12345\r\n0\r\n\r\n"
    with (
        Script([answer, None]) as server,
        pytest.raises(ProtocolError, match="longer than it says"),
    ):
        exchange(server)


def test_interim_answers_are_skipped():
    early = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
    with Script(early + ok(b"12345")) as server:
        assert exchange(server)[1] == b"12345"


def test_a_head_that_comes_in_pieces():
    answer = ok(b"12345", etag='"1"')
    with Script([answer[i : i + 1] for i in range(len(answer))]) as server:
        head, body = exchange(server)
    assert (head.headers["etag"], body) == ('"1"', b"12345")


def test_http_1_0_ends_with_the_connection():
    with Script([b"HTTP/1.0 200 OK\r\n\r\n12345", None]) as server:
        head, body = exchange(server)
    assert (head.keep_alive, head.length, body) == (False, None, b"12345")


@pytest.mark.parametrize(
    ("line", "keep_alive"),
    [
        ("HTTP/1.1 200 OK\r\nConnection: Close", False),
        ("HTTP/1.1 200 OK\r\nConnection: keep-alive", True),
        ("HTTP/1.0 200 OK\r\nConnection: keep-alive", True),
        ("HTTP/1.0 200 OK\r\nx: y", False),
    ],
)
def test_who_keeps_a_connection_is_told_by_the_head(line, keep_alive):
    with Script(f"{line}\r\nContent-Length: 1\r\n\r\n1".encode()) as server:
        assert exchange(server)[0].keep_alive == keep_alive


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_what_has_no_body_is_not_waited_for(method):
    answers = {
        "HEAD": b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n",
        "GET": b"HTTP/1.1 204 No Content\r\n\r\n",
    }
    with Script(answers[method]) as server:
        assert exchange(server, method)[1] == b""


@pytest.mark.parametrize(
    "garbage",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 2\r\n\r\n",
        b"HTTP/1.1 \xb2\xb2\xb2\r\n\r\n",
        b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999\r\n\r\n",
        b"x" * 70_000,
        b"HTTP/1.1 200 OK\r\ncontent-le",
        b"",
    ],
)
def test_garbage_is_a_protocol_error(garbage):
    with Script([garbage, None]) as server, pytest.raises(ProtocolError):
        exchange(server)


def test_a_body_that_ends_early_is_a_protocol_error():
    with Script([ok(b"12345")[:-2], None]) as server, pytest.raises(ProtocolError, match="2 bytes"):
        exchange(server)


def test_silence_is_a_timeout():
    """A listener that accepts nobody: the kernel takes the request, and that is all."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        silent = SimpleNamespace(port=listener.getsockname()[1])
        with pytest.raises(TimeoutError):
            exchange(silent, read_timeout_s=0.1)


def test_an_answer_that_trickles_has_a_last_moment():
    """Never silent for the read timeout, and yet not for ever."""
    stop = threading.Event()

    def trickle(listener):
        peer, _ = listener.accept()
        with peer:
            peer.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
            while not stop.wait(0.02):
                peer.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=trickle, args=(listener,))
        thread.start()
        connection = Connection(
            "127.0.0.1",
            listener.getsockname()[1],
            tls=None,
            connect_timeout_s=5.0,
            read_timeout_s=0.2,
            request_timeout_s=0.5,
        )
        began = time.monotonic()
        connection.send(b"GET / HTTP/1.1\r\n\r\n", None)
        head = connection.receive_head("GET")
        with pytest.raises(TimeoutError):
            connection.receive_all(head)
        assert time.monotonic() - began < 5
        stop.set()
        connection.close()
        thread.join(10)


def test_a_store_that_ignores_the_range_does_not_spoil_the_connection():
    """It answers with the whole object; what is left of that must not be taken for the next answer."""
    with Script(ok(b"0123456789"), ok(b"second")) as server:
        wire = wire_to(server)
        view = memoryview(bytearray(4))
        assert wire.read_into("key", view, start=0, etag=None) == 4
        assert view == b"0123"
        assert wire.call("get", "GET", "key").body == b"second"
        assert server.connections == 2


def test_a_store_that_answers_with_another_range_is_not_believed():
    other = ok(b"6789", status="206 Partial Content", content_range="bytes 6-9/10")
    with Script(other, other) as server, pytest.raises(TransferFailed, match="after 2 attempts"):
        wire_to(server).read_into("key", memoryview(bytearray(4)), start=2, etag=None)


def test_a_chunked_answer_to_a_read_is_read():
    body = (
        b"HTTP/1.1 200 OK\r\netag: 1\r\ntransfer-encoding: chunked\r\n\r\n5\r\n12345\r\n0\r\n\r\n"
    )
    with Script(body, body) as server:
        wire = wire_to(server)
        assert wire.read("key", start=0, stop=None, etag=None).body == b"12345"
        view = memoryview(bytearray(3))
        assert wire.read_into("key", view, start=0, etag=None) == 3
        assert view == b"123"
        assert server.connections == 1


def test_a_broken_read_goes_on_where_it_broke_in_the_same_version():
    first = ok(b"0123456789", etag='"1"')[:-4]
    rest = ok(b"6789", status="206 Partial Content", content_range="bytes 6-9/10", etag='"1"')
    with Script([first, None], rest) as server:
        assert wire_to(server).read("key", start=0, stop=None, etag=None).body == b"0123456789"
    assert "range: bytes=6-" in server.requests[1]
    assert 'if-match: "1"' in server.requests[1]


def test_a_broken_read_does_not_go_on_in_another_version():
    first = ok(b"0123456789", etag='"1"')[:-4]
    changed = ok(b"", status="412 Precondition Failed")
    with Script([first, None], changed) as server, pytest.raises(ObjectChanged):
        wire_to(server).read("key", start=0, stop=None, etag=None)


def test_a_whole_object_read_by_a_range_is_compared():
    headers = {
        "content_range": "bytes 0-4/5",
        "x_amz_meta_penstockcrc32c": f"{crc32c(b'12345'):08x}",
    }
    good = ok(b"12345", status="206 Partial Content", **headers)
    bad = ok(b"12344", status="206 Partial Content", **headers)
    view = memoryview(bytearray(9))
    with Script(good, bad) as server:
        wire = wire_to(server)
        assert wire.read_into("key", view, start=0, etag=None) == 5
        with pytest.raises(IntegrityError, match="s3://bucket/key: 5 bytes arrived"):
            wire.read_into("key", view, start=0, etag=None)
    with Script(bad) as server:
        wire = wire_to(server, verify_checksums=False)
        assert wire.read_into("key", view, start=0, etag=None) == 5


def test_an_idle_connection_that_the_store_closed_is_no_failed_attempt():
    with Script([ok(b"1"), None], ok(b"2")) as server:
        wire = wire_to(server)
        assert wire.call("get", "GET", "key").body == b"1"
        assert wire.call("get", "GET", "key").body == b"2"
        assert server.connections == 2


def test_what_must_not_be_sent_twice_is_not_even_where_an_idle_connection_breaks():
    """The store may have done it before the connection broke: nobody can tell a stale one from a lost answer."""
    with Script(ok(b"1"), None, ok(b"3")) as server:
        wire = wire_to(server)
        wire.call("get", "GET", "key")
        with pytest.raises(TransferFailed, match="not sent twice"):
            wire.call("put", "PUT", "key", body=memoryview(b""), send_again=False)
        assert len(server.requests) == 2


def test_an_error_with_a_signature_in_it_is_told_without_it():
    answer = ok(
        b"<Error><Code>AccessDenied</Code><Message>X-Amz-Signature=abc123&amp;Signature=def</Message></Error>",
        status="403 Forbidden",
    )
    with Script(answer) as server, pytest.raises(PermissionError) as caught:
        wire_to(server).call("get", "GET", "key")
    assert "abc123" not in f"{caught.value!r} {caught.value.__cause__!r}"


def test_a_retry_after_that_is_no_number_is_ignored():
    busy = b"HTTP/1.1 503 Slow Down\r\ncontent-length: 0\r\nretry-after: \xb2\r\n\r\n"
    with Script(busy, ok(b"1")) as server:
        assert wire_to(server).call("get", "GET", "key").body == b"1"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate for 127.0.0.1 that nobody has signed but itself, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl on PATH to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    paths = folder / "certificate.pem", folder / "key.pem"
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-out", str(paths[0]), "-keyout", str(paths[1])]
    subprocess.run(command, check=True, capture_output=True)
    return paths


@pytest.fixture
def server_tls(certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    return context


def test_tls_refuses_a_certificate_that_nobody_vouches_for(server_tls):
    with Script(ok(b"1"), tls=server_tls) as server:
        began = time.monotonic()
        with pytest.raises(
            StoreUnavailable, match=r"certificate verify failed.*at the first attempt"
        ):
            wire_to(server, scheme="https").call("get", "GET", "key")
        assert time.monotonic() - began < 5, "trying again would not help"
        assert server.requests == []


def test_tls_accepts_the_authority_given_as_ca_file(server_tls, certificate):
    with Script(ok(b"1"), tls=server_tls) as server:
        wire = wire_to(server, scheme="https", ca_file=str(certificate[0]))
        assert wire.call("get", "GET", "key").body == b"1"


def test_tls_accepts_anything_where_verification_is_off(server_tls):
    with Script(ok(b"1"), tls=server_tls) as server:
        wire = wire_to(server, scheme="https", verify_tls=False)
        assert wire.call("get", "GET", "key").body == b"1"


def test_a_large_body_over_tls_lands_in_the_callers_memory(server_tls, certificate):
    data = bytes(range(256)) * 8000
    with Script(ok(data), tls=server_tls) as server:
        wire = wire_to(server, scheme="https", ca_file=str(certificate[0]))
        view = memoryview(bytearray(len(data)))
        assert wire.read_into("key", view, start=0, etag=None) == len(data)
        assert view == data


def test_a_tls_connection_cut_in_the_body_is_a_lost_connection(server_tls, certificate):
    cut = [ok(b"12345")[:-2], None]
    with Script(cut, cut, tls=server_tls) as server:
        wire = wire_to(server, scheme="https", ca_file=str(certificate[0]))
        with pytest.raises(
            TransferFailed, match="lost in the middle of a request, after 2 attempts"
        ):
            wire.call("get", "GET", "key")
