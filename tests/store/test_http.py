"""Reading from a plain web server."""

import http.server
import threading
from functools import partial

import pytest

from penstock import open_store
from penstock.errors import NotFound, Unsupported


class _Quiet(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        """Says nothing."""


@pytest.fixture
def web(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a b.txt").write_bytes(b"0123456789")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=tmp_path))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/folder"
    server.shutdown()
    server.server_close()
    thread.join()


def test_objects_are_read(web):
    store = open_store(web)
    assert store.get("a b.txt") == b"0123456789"
    assert store.head("a b.txt").size == 10
    assert store.exists("a b.txt")


def test_a_missing_page_is_not_found(web):
    with pytest.raises(NotFound, match="no such object"):
        open_store(web).get("missing")


@pytest.mark.parametrize(
    "call", [lambda s: s.put("k", b""), lambda s: s.delete("k"), lambda s: s.copy("k", "l")]
)
def test_writing_is_refused(web, call):
    with pytest.raises(Unsupported, match="read-only"):
        call(open_store(web))
