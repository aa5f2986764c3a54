"""Uploads in parts, below the byte budget: the wire's, the disk's, and the engine's for Azure."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from crc32c import crc32c

from penstock import RetryConfig, open_store
from penstock.errors import IntegrityError, NotFound, TransferFailed
from penstock.store import ObjectMeta
from penstock.store.staged import FileUpload, StreamUpload
from penstock.testing import Fault

PART_BYTES = 5 << 20
DATA = os.urandom(2 * PART_BYTES + 1)
PARTS = [DATA[start : start + PART_BYTES] for start in range(0, len(DATA), PART_BYTES)]


@pytest.fixture
def s3(object_server, store_url):
    return open_store(store_url, object_server.config)


@pytest.fixture
def proxied(object_server, fault_proxy, store_url):
    retry = RetryConfig(max_attempts=3, backoff_initial_s=0.01, backoff_max_s=0.05)
    config = replace(object_server.config, endpoint=fault_proxy.endpoint, retry=retry)
    return open_store(store_url, config)


def send(upload, order=(2, 0, 1)):
    with ThreadPoolExecutor(3) as pool:
        jobs = [
            pool.submit(
                upload.put_part, number, memoryview(PARTS[number]), offset=number * PART_BYTES
            )
            for number in order
        ]
    for job in jobs:
        job.result()


def complete(upload):
    return upload.complete(size=len(DATA), crc32c=crc32c(DATA))


def test_parts_may_be_sent_in_any_order(s3):
    upload = s3.open_upload("object")
    send(upload)
    assert not s3.exists("object")
    meta = complete(upload)
    assert (meta.key, meta.size) == ("object", len(DATA))
    assert s3.get("object") == DATA
    assert s3.checksum("object").crc32c == crc32c(DATA)


def test_abort_may_be_called_twice_and_after_complete(s3):
    upload = s3.open_upload("object")
    send(upload)
    complete(upload)
    upload.abort()
    assert s3.get("object") == DATA
    upload = s3.open_upload("other")
    upload.abort()
    upload.abort()
    assert not s3.exists("other")


def test_parts_that_are_not_the_whole_are_refused(s3, proxied):
    upload = proxied.open_upload("object")
    send(upload)
    with pytest.raises(IntegrityError, match="received other bytes than were sent"):
        upload.complete(size=len(DATA), crc32c=crc32c(DATA) ^ 1)
    assert not s3.exists("object")


def test_a_part_that_somebody_removed_is_a_clear_error(s3):
    upload = s3.open_upload("object")
    send(upload)
    (pending,) = s3.pending_uploads()
    s3.abort_upload(pending)
    with pytest.raises(TransferFailed, match=r"no longer knows the upload.* write it again"):
        complete(upload)
    assert not s3.exists("object")


def test_an_upload_that_vanished_is_not_taken_for_the_object_in_its_place(s3):
    """Somebody else's object of the same size is there when the store says that it knows no such upload."""
    upload = s3.open_upload("object")
    send(upload)
    (pending,) = s3.pending_uploads()
    s3.abort_upload(pending)
    s3.put("object", bytes(len(DATA)))
    with pytest.raises(TransferFailed, match="what is there is not what was sent"):
        complete(upload)
    assert s3.get("object") == bytes(len(DATA))


def test_a_lost_answer_to_a_completion_is_found_out(s3, proxied, fault_proxy):
    upload = proxied.open_upload("object")
    send(upload)
    fault_proxy.add(Fault.reset_after(method="POST", times=1))
    assert complete(upload).size == len(DATA)
    assert s3.get("object") == DATA


def test_beginning_is_tried_as_often_as_configured_and_not_twice_as_often(proxied, fault_proxy):
    fault_proxy.add(Fault.reset_before(method="POST"))
    with pytest.raises(TransferFailed, match="after 3 attempts"):
        proxied.open_upload("object")
    assert fault_proxy.count("POST") == 3


def test_a_store_that_does_not_know_the_checksum_headers_gets_md5_instead(s3, proxied, fault_proxy):
    fault_proxy.add(Fault.status(400, error_code="InvalidRequest", method="POST", times=1))
    upload = proxied.open_upload("object")
    fault_proxy.add(Fault.flip(method="PUT", times=1))
    send(upload)
    complete(upload)
    assert s3.get("object") == DATA
    assert any(request.fault == "flip" for request in fault_proxy.requests), "which it noticed"


def test_pending_uploads_are_those_below_the_prefix_with_keys_relative_to_the_store(s3):
    uploads = [s3.open_upload(key) for key in ("a/1", "a/2", "b/1")]
    found = list(s3.pending_uploads("a/"))
    assert sorted(upload.key for upload in found) == ["a/1", "a/2"]
    now = datetime.now(UTC)
    assert all(now - timedelta(minutes=5) < upload.started <= now for upload in found)
    for upload in uploads:
        upload.abort()
    assert list(s3.pending_uploads()) == []


def test_removing_an_upload_that_is_gone_is_fine(s3):
    upload = s3.open_upload("object")
    (pending,) = s3.pending_uploads()
    upload.abort()
    s3.abort_upload(pending)


def test_a_file_is_staged_beside_its_place_and_not_listed(tmp_path):
    store = open_store(tmp_path)
    upload = store.open_upload("folder/object")
    send(upload)
    assert list(store.list()) == []
    assert [pending.key for pending in store.pending_uploads()] == ["folder/object"]
    complete(upload)
    assert [meta.key for meta in store.list()] == ["folder/object"]
    assert store.get("folder/object") == DATA
    assert list(store.pending_uploads()) == []


def test_a_file_shorter_than_what_was_written_is_not_published(tmp_path):
    upload = FileUpload(tmp_path / "object", key="object", url="file:///object", if_absent=False)
    upload.put_part(0, memoryview(b"123"), offset=0)
    with pytest.raises(IntegrityError, match="3 are on disk"):
        upload.complete(size=5, crc32c=0)
    assert list(tmp_path.iterdir()) == []


class Engine:
    """Keeps what it is given, as the engine does while its own requests are under way."""

    def __init__(self, error=None):
        self.error = error
        self.kept = []

    def send(self, parts):
        for part in parts:
            self.kept.append(part)
            if self.error is not None:
                raise self.error


def _meta(size):
    return ObjectMeta("object", size)


def test_memory_may_be_used_again_as_soon_as_a_part_was_taken():
    engine = Engine()
    upload = StreamUpload(engine.send, _meta)
    scratch = bytearray(4)
    for number in range(5):
        scratch[:] = bytes([number]) * 4
        upload.put_part(number, memoryview(scratch), offset=4 * number)
    assert upload.complete(size=20, crc32c=0).size == 20
    assert [bytes(part) for part in engine.kept] == [bytes([number]) * 4 for number in range(5)]


def test_parts_reach_the_engine_in_order_whoever_comes_first():
    engine = Engine()
    upload = StreamUpload(engine.send, _meta)
    threads = [
        threading.Thread(
            target=upload.put_part, args=(n, memoryview(bytes([n]))), kwargs={"offset": n}
        )
        for n in reversed(range(6))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    upload.complete(size=6, crc32c=0)
    assert b"".join(engine.kept) == bytes(range(6))


def test_a_failure_of_the_engine_reaches_whoever_waits():
    upload = StreamUpload(Engine(TransferFailed("lost")).send, _meta)
    upload._thread.join(0)
    with pytest.raises(TransferFailed, match="lost"):  # noqa: PT012 - at the part, or else at the end
        upload.put_part(0, memoryview(b"1"), offset=0)
        upload.complete(size=1, crc32c=0)
    with pytest.raises(TransferFailed, match="lost"):
        upload.put_part(1, memoryview(b"1"), offset=1)
    upload.abort()


def test_an_abort_ends_the_engines_call():
    engine = Engine()
    upload = StreamUpload(engine.send, _meta)
    upload.abort()
    upload.abort()
    assert not upload._thread.is_alive()
    assert isinstance(upload._failure, TransferFailed)


def test_a_missing_bucket_is_told_when_an_upload_begins(object_server):
    with pytest.raises(NotFound, match="no such bucket"):
        open_store("s3://no-such-bucket", object_server.config).open_upload("object")
