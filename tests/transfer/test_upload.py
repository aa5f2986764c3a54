"""`Upload`: an object of any length in bounded memory, which appears whole and verified, or not at all."""

import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from datetime import timedelta

import pytest
from crc32c import crc32c

from penstock import TransferConfig, open_store
from penstock.errors import AlreadyExists, IntegrityError, PenstockError, TransferFailed
from penstock.testing import Fault
from penstock.transfer import Upload, sweep
from penstock.transfer.budget import shared_budget

MIB = 1 << 20
PART_BYTES = 5 * MIB
SIZES = [0, 1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES + 1]
DATA = os.urandom(2 * PART_BYTES + 1)


@pytest.mark.parametrize("size", SIZES)
def test_any_size_around_the_parts_arrives_whole(any_store, size):
    data = DATA[:size]
    upload = Upload(any_store, "object")
    for start in range(0, size, 3_333_333):
        assert upload.write(data[start : start + 3_333_333]) == len(data[start:][:3_333_333])
    assert (upload.size, upload.crc32c) == (size, crc32c(data))
    meta = upload.close()
    assert (meta.key, meta.size) == ("object", size)
    assert upload.closed
    assert any_store.get("object") == data
    assert shared_budget(any_store.config.transfer).in_use_bytes == 0


def test_parts_sent_side_by_side_are_not_mixed_up(any_store):
    """Buffers are used again while earlier parts may still be on their way."""
    upload = Upload(any_store, "object")
    pieces = [os.urandom(PART_BYTES) for _ in range(6)]
    for piece in pieces:
        upload.write(piece)
    upload.close()
    assert any_store.get("object") == b"".join(pieces)


def test_what_was_handed_over_may_change_at_once(any_store):
    upload = Upload(any_store, "object")
    scratch = bytearray(MIB)
    for number in range(12):
        scratch[:] = bytes([number]) * MIB
        upload.write(scratch)
    upload.close()
    assert any_store.get("object") == b"".join(bytes([number]) * MIB for number in range(12))


def test_the_version_in_the_answer_is_the_one_that_is_stored(s3):
    for size in (10, PART_BYTES + 1):
        upload = Upload(s3, "object")
        upload.write(DATA[:size])
        assert upload.close().etag == s3.head("object").etag


@pytest.mark.parametrize("size", [0, 1, PART_BYTES])
def test_what_fits_into_one_part_is_a_single_put(proxied, fault_proxy, size):
    upload = Upload(proxied, "object")
    upload.write(DATA[:size])
    assert fault_proxy.count() == 0
    upload.close()
    assert [request.method for request in fault_proxy.requests] == ["PUT"]


def test_more_than_one_part_is_verified_against_the_store(proxied, fault_proxy):
    upload = Upload(proxied, "object")
    upload.write(DATA[: 2 * PART_BYTES + 1])
    upload.close()
    methods = [request.method for request in fault_proxy.requests]
    assert sorted(methods) == ["HEAD", "POST", "POST", "PUT", "PUT", "PUT"]
    assert methods[0] == "POST"
    assert methods[-2:] == ["POST", "HEAD"]


def test_parts_go_up_while_the_caller_still_writes(proxied, fault_proxy):
    upload = Upload(proxied, "object")
    upload.write(DATA[: PART_BYTES + 1])
    _until(lambda: any(r.method == "PUT" and r.status == 200 for r in fault_proxy.requests))
    assert not proxied.exists("object")
    upload.close()
    assert proxied.get("object") == DATA[: PART_BYTES + 1]


def test_closing_again_is_harmless(any_store):
    for size in (3, PART_BYTES + 1):
        upload = Upload(any_store, "object")
        upload.write(DATA[:size])
        assert upload.close() == upload.close()
        upload.abort()
        assert any_store.get("object") == DATA[:size]


def test_writing_after_the_end_is_refused(s3):
    upload = Upload(s3, "object")
    upload.close()
    with pytest.raises(ValueError, match="closed upload"):
        upload.write(b"1")


@pytest.mark.parametrize("size", [3, len(DATA)])
def test_an_aborted_upload_publishes_nothing_and_leaves_nothing(any_store, size):
    upload = Upload(any_store, "object")
    upload.write(DATA[:size])
    upload.abort()
    upload.abort()
    assert not any_store.exists("object")
    with pytest.raises(ValueError, match="aborted"):
        upload.close()
    with pytest.raises(ValueError, match="closed upload"):
        upload.write(b"1")
    assert shared_budget(any_store.config.transfer).in_use_bytes == 0
    if not any_store.url.startswith("az:"):
        assert list(any_store.pending_uploads()) == []


def test_an_object_that_is_there_is_refused_early(any_store):
    any_store.put("object", b"first")
    upload = Upload(any_store, "object", if_absent=True)
    with pytest.raises(AlreadyExists):  # noqa: PT012 - at the first part, where the store can tell by then
        upload.write(DATA)
        upload.close()
    assert any_store.get("object") == b"first"


@pytest.mark.parametrize("size", [3, 2 * PART_BYTES])
def test_an_object_that_appears_meanwhile_is_not_replaced(any_store, size):
    scheme = any_store.url.partition(":")[0]
    if scheme == "gs" or (scheme == "az" and size > PART_BYTES):
        pytest.skip(
            "SeaweedFS knows no generation preconditions, and the engine no conditional upload to Azure"
        )
    upload = Upload(any_store, "object", if_absent=True)
    upload.write(DATA[:size])
    any_store.put("object", b"first")
    with pytest.raises(AlreadyExists):
        upload.close()
    assert any_store.get("object") == b"first"


def test_if_absent_publishes_where_there_is_nothing(any_store):
    if any_store.url.startswith("gs:"):
        pytest.skip("SeaweedFS knows no generation preconditions")
    for size in (3, PART_BYTES + 1):
        upload = Upload(any_store, f"{size}", if_absent=True)
        upload.write(DATA[:size])
        upload.close()
        assert any_store.get(f"{size}") == DATA[:size]


def test_a_part_that_failed_is_told_by_the_next_write_or_by_close(s3, proxied, fault_proxy):
    fault_proxy.add(Fault.status(400, method="PUT", times=1))
    upload = Upload(proxied, "object")
    upload.write(DATA[: PART_BYTES + 1])
    _until(lambda: any(request.status == 400 for request in fault_proxy.requests))
    _until(upload._sent[0].done)
    with pytest.raises(TransferFailed, match=r"400"):
        upload.write(b"more")
    with pytest.raises(ValueError, match="aborted"):
        upload.close()
    assert not s3.exists("object")
    assert list(s3.pending_uploads()) == []


def test_the_last_part_that_failed_is_told_by_close(s3, proxied, fault_proxy):
    fault_proxy.add(Fault.status(400, method="PUT"))
    upload = Upload(proxied, "object")
    upload.write(DATA[: PART_BYTES + 1])
    with pytest.raises(TransferFailed, match=r"400"):
        upload.close()
    assert not s3.exists("object")


def test_a_failing_abort_does_not_hide_the_first_error(s3, proxied, fault_proxy):
    fault_proxy.add(Fault.status(400, method="PUT"))
    fault_proxy.add(Fault.status(500, method="DELETE"))
    upload = Upload(proxied, "object")
    upload.write(DATA)
    with pytest.raises(TransferFailed, match=r"400"):
        upload.close()
    assert upload.closed
    assert len(sweep(s3.url, older_than=timedelta(0), dry_run=False, config=s3.config)) == 1


@pytest.mark.parametrize("if_absent", [False, True])
@pytest.mark.parametrize("fault", ["reset_before", "reset_during", "reset_after"])
def test_a_completion_whose_connection_is_lost_ends_right_or_says_so(
    s3, proxied, fault_proxy, fault, if_absent
):
    fault_proxy.add(getattr(Fault, fault)(method="POST", skip=1, times=1))
    upload = Upload(proxied, "object", if_absent=if_absent)
    upload.write(DATA)
    try:
        assert upload.close().size == len(DATA)
    except PenstockError as exc:
        assert if_absent, "what has no condition is sent again"
        assert "read the object to see whether it was written" in str(exc)  # noqa: PT017 - or no error at all
        assert s3.exists("object") == (fault == "reset_after")
    if s3.exists("object"):
        assert s3.get("object") == DATA
    assert list(s3.pending_uploads()) == []


def test_a_completion_that_stays_lost_is_a_clear_error(s3, proxied, fault_proxy):
    fault_proxy.add(Fault.reset_after(method="POST", skip=1))
    upload = Upload(proxied, "object")
    upload.write(DATA)
    with pytest.raises(TransferFailed, match="lost in the middle of a request, after 3 attempts"):
        upload.close()
    assert s3.get("object") == DATA, "which is there, for it was only the answers that were lost"


def test_a_bit_flipped_on_the_way_up_is_sent_again(s3, proxied, fault_proxy):
    fault_proxy.add(Fault.flip(method="PUT", times=2))
    upload = Upload(proxied, "object")
    upload.write(DATA)
    upload.close()
    assert s3.get("object") == DATA
    assert sum(request.fault is not None for request in fault_proxy.requests) == 2


def test_a_bit_flipped_again_and_again_publishes_nothing(s3, proxied, fault_proxy):
    fault_proxy.add(Fault.flip(method="PUT"))
    upload = Upload(proxied, "object")
    upload.write(DATA)
    with pytest.raises(IntegrityError, match="received other bytes than were sent"):
        upload.close()
    assert not s3.exists("object")


def test_what_is_in_flight_stays_within_the_budget(proxied, fault_proxy):
    fault_proxy.set(bandwidth_mibs=100)
    budget = shared_budget(proxied.config.transfer)
    peak, running = 0, True

    def watch():
        nonlocal peak
        while running:
            peak = max(peak, budget.in_use_bytes)

    watcher = threading.Thread(target=watch)
    watcher.start()
    upload = Upload(proxied, "object")
    for _ in range(3):
        upload.write(DATA)
    upload.close()
    running = False
    watcher.join()
    assert 2 * PART_BYTES < peak <= proxied.config.transfer.budget_bytes
    assert budget.in_use_bytes == 0


_WRITE_400_MIB = """
import sys
from pathlib import Path
from penstock import StoreConfig, TransferConfig, AccessKey, open_store
from penstock.transfer import Upload

def rss(name):
    status = Path("/proc/self/status").read_text()
    return int(status.partition(name + ":")[2].split()[0]) << 10

MIB = 1 << 20
url, endpoint, key, secret = sys.argv[1:]
transfer = TransferConfig(part_bytes=8 * MIB, budget_bytes=64 * MIB)
config = StoreConfig(endpoint=endpoint, credentials=AccessKey(key, secret), transfer=transfer)
store = open_store(url, config)
store.put("warm-up", b"1")
data = bytes(range(256)) * (16 << 10)
before = rss("VmRSS")
upload = Upload(store, "object")
for _ in range(100):
    upload.write(data)
assert upload.close().size == 400 * MIB
print(rss("VmHWM") - before)
"""


def test_writing_400_mib_takes_no_more_memory_than_the_budget_and_a_little(
    object_server, store_url
):
    key = object_server.config.credentials
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            _WRITE_400_MIB,
            store_url,
            object_server.endpoint,
            key.id,
            key.secret,
        ],
        check=True,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert int(done.stdout) <= (64 + 64) * MIB
    open_store(store_url, object_server.config).delete("object")


def test_uploads_side_by_side_share_the_budget_and_all_arrive(object_server, store_url):
    transfer = TransferConfig(part_bytes=PART_BYTES, budget_bytes=2 * PART_BYTES)
    store = open_store(store_url, replace(object_server.config, transfer=transfer))

    def write(name):
        upload = Upload(store, name)
        for start in range(0, len(DATA), MIB):
            upload.write(DATA[start : start + MIB])
        upload.close()

    threads = [threading.Thread(target=write, args=(f"{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all(store.get(f"{n}") == DATA for n in range(4))
    assert shared_budget(transfer).in_use_bytes == 0


def _until(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)
