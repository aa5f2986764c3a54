"""`Store.checksum`: what a store knows of an object's content, without its bytes."""

import os
from dataclasses import replace

import pytest
from crc32c import crc32c

from penstock.errors import NotFound
from penstock.store import open_store


def put_in_parts(store, key, data):
    upload = store.open_upload(key)
    upload.put_part(0, memoryview(data)[: 5 << 20], offset=0)
    upload.put_part(1, memoryview(data)[5 << 20 :], offset=5 << 20)
    upload.complete(size=len(data), crc32c=crc32c(data))


def test_s3_tells_the_checksum_of_the_whole_object_in_one_request(
    object_server, store_url, fault_proxy
):
    store = open_store(store_url, replace(object_server.config, endpoint=fault_proxy.endpoint))
    data = os.urandom(6 << 20)
    store.put("small", b"hello")
    put_in_parts(store, "large", data)
    fault_proxy.clear_log()
    for key, expected in (("small", b"hello"), ("large", data)):
        found = store.checksum(key)
        assert found.crc32c == crc32c(expected)
        assert found.meta == store.head(key)
    assert [request.method for request in fault_proxy.requests] == ["HEAD"] * 4


def test_memory_tells_and_a_disk_does_not(tmp_path):
    for store, expected in (
        (open_store("memory://checksums"), crc32c(b"hello")),
        (open_store(tmp_path), None),
    ):
        store.put("k", b"hello")
        assert store.checksum("k").crc32c == expected
        assert store.checksum("k").meta.size == 5


def test_what_is_not_there_has_no_checksum(object_server, store_url, tmp_path):
    for store in (
        open_store(store_url, object_server.config),
        open_store("memory://none"),
        open_store(tmp_path),
    ):
        with pytest.raises(NotFound):
            store.checksum("none")
