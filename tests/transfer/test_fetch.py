"""`fetch` and `scatter`: parallel ranges into the caller's memory, of one version, verified where they can be."""

import os
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import StoreConfig, TransferConfig, open_store
from penstock.errors import BucketNotFound, IntegrityError, NotFound, ObjectChanged, TransferFailed
from penstock.testing import Fault
from penstock.transfer import Target, Upload, fetch, scatter

PART_BYTES = 5 << 20
DATA = os.urandom(2 * PART_BYTES + 12_345)


@pytest.fixture
def stored(s3):
    s3.put("object", DATA)
    return s3


@pytest.mark.parametrize(
    "make",
    [
        bytearray,
        lambda size: memoryview(bytearray(size)),
        lambda size: np.zeros(size, np.uint8),
        lambda size: torch.zeros(size, dtype=torch.uint8).numpy(),
    ],
    ids=["bytearray", "memoryview", "numpy", "torch"],
)
def test_any_writable_buffer_is_filled_in_place(stored, make):
    buffer = make(len(DATA))
    assert fetch(stored, "object", buffer) == len(DATA)
    assert bytes(buffer) == DATA


def test_a_buffer_of_wider_elements_and_more_dimensions_is_filled_too(stored):
    rows = np.zeros((3, PART_BYTES // 8 + 7), np.float64)
    assert fetch(stored, "object", rows) == len(DATA)
    assert rows.tobytes()[: len(DATA)] == DATA


def test_every_kind_of_store_gives_the_same_bytes(any_store):
    any_store.put("object", DATA)
    buffer = bytearray(len(DATA))
    assert fetch(any_store, "object", buffer) == len(DATA)
    assert buffer == DATA


@pytest.mark.parametrize(
    "size", [0, 1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES, len(DATA)]
)
@pytest.mark.parametrize("start", [0, 1, PART_BYTES, len(DATA) - 1, len(DATA), len(DATA) + 5])
def test_any_part_of_the_object_is_what_a_slice_would_be(start, size):
    store = open_store(
        "memory://fetch-slices", StoreConfig(transfer=TransferConfig(part_bytes=PART_BYTES))
    )
    store.put("object", DATA)
    buffer = bytearray(size)
    got = fetch(store, "object", buffer, start=start)
    assert buffer[:got] == DATA[start : start + size]
    assert got == len(DATA[start : start + size])


def test_a_buffer_longer_than_the_object_is_filled_as_far_as_there_is_something(stored):
    for extra in (1, PART_BYTES, 3 * PART_BYTES + 1):
        buffer = bytearray(b"\xff") * (len(DATA) + extra)
        assert fetch(stored, "object", buffer) == len(DATA)
        assert buffer[: len(DATA)] == DATA
        assert set(buffer[len(DATA) :]) == {255}


def test_a_start_in_the_middle_costs_only_the_bytes_from_there(stored, proxied, fault_proxy):
    buffer = bytearray(PART_BYTES + 1)
    assert fetch(proxied, "object", buffer, start=100) == len(buffer)
    assert buffer == DATA[100 : 100 + len(buffer)]
    assert sum(request.bytes_sent for request in fault_proxy.requests) == len(buffer)


def test_a_read_of_one_part_is_one_request(stored, proxied, fault_proxy):
    fetch(proxied, "object", bytearray(PART_BYTES))
    assert [request.method for request in fault_proxy.requests] == ["GET"]


def test_a_read_with_a_known_version_needs_no_head(stored, proxied, fault_proxy):
    etag = stored.head("object").etag
    assert fetch(proxied, "object", bytearray(len(DATA)), etag=etag) == len(DATA)
    assert {request.method for request in fault_proxy.requests} == {"GET"}
    assert fault_proxy.count("GET") == 3


def test_a_missing_object_and_a_missing_bucket_are_told_apart(stored, object_server):
    big = bytearray(len(DATA))
    with pytest.raises(NotFound) as caught:
        fetch(stored, "missing", big)
    assert not isinstance(caught.value, BucketNotFound)
    with pytest.raises(BucketNotFound):
        fetch(open_store("s3://no-such-bucket", object_server.config), "missing", big * 4)


def test_a_read_only_buffer_is_refused(stored):
    for size in (10, len(DATA)):
        with pytest.raises(ValueError, match="read-only"):
            fetch(stored, "object", bytes(size))


@pytest.mark.parametrize("known", [True, False], ids=["version given", "version found"])
def test_an_object_overwritten_in_the_middle_of_a_read_raises_object_changed(
    stored, proxied, fault_proxy, known
):
    """The last part is held back until the object is another one; the first is already there."""
    etag = stored.head("object").etag if known else None
    fault_proxy.add(Fault.latency(700, method="GET", skip=2))
    reads = threading.Event()

    def overwrite():
        while fault_proxy.count("GET") < 3:
            assert not reads.wait(0.01)
        stored.put("object", bytes(len(DATA)))

    writer = threading.Thread(target=overwrite)
    writer.start()
    with pytest.raises(ObjectChanged, match="read it anew"):
        fetch(proxied, "object", bytearray(len(DATA)), etag=etag)
    reads.set()
    writer.join()


def test_a_version_that_is_gone_is_refused_whatever_the_size(stored):
    old = stored.head("object").etag
    stored.put("object", bytes(len(DATA)))
    for size in (10, len(DATA)):
        with pytest.raises(ObjectChanged):
            fetch(stored, "object", bytearray(size), etag=old)


@pytest.mark.parametrize("how", ["put", "in parts"])
@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_bit_flipped_in_any_part_of_a_whole_object_is_noticed(
    s3, proxied, fault_proxy, how, part
):
    if how == "put":
        s3.put("object", DATA)
    else:
        upload = Upload(s3, "object")
        upload.write(DATA)
        upload.close()
    fault_proxy.add(Fault.flip(method="GET", skip=part, times=1))
    with pytest.raises(IntegrityError, match="read it again"):
        fetch(proxied, "object", bytearray(len(DATA)))
    buffer = bytearray(len(DATA))
    fetch(proxied, "object", buffer)
    assert buffer == DATA


@pytest.mark.parametrize("size", [1000, 3 << 20])
def test_a_bit_flipped_in_an_object_of_one_part_is_noticed(s3, proxied, fault_proxy, size):
    s3.put("small", DATA[:size])
    fault_proxy.add(Fault.flip(method="GET", times=1))
    with pytest.raises(IntegrityError, match=r"bytes arrived with CRC32C"):
        fetch(proxied, "small", bytearray(size + 10))


def test_checksums_can_be_turned_off(stored, proxied, fault_proxy):
    store = open_store(proxied.url, replace(proxied.config, verify_checksums=False))
    fault_proxy.add(Fault.flip(method="GET", times=1))
    buffer = bytearray(len(DATA))
    assert fetch(store, "object", buffer) == len(DATA)
    assert buffer != DATA


def test_nothing_is_written_into_the_buffer_once_the_failure_is_raised(
    stored, proxied, fault_proxy
):
    """The first part fails at once; the others are slow, and waited for."""
    fault_proxy.add(Fault.status(400, method="GET", times=1))
    fault_proxy.add(Fault.latency(200, method="GET"))
    buffer = bytearray(len(DATA))
    with pytest.raises(TransferFailed):
        fetch(proxied, "object", buffer)
    after = bytes(buffer)
    deadline = time.monotonic() + 5
    while any(request.finished_s is None for request in fault_proxy.requests):
        assert time.monotonic() < deadline
    assert buffer == after


@st.composite
def wanted_ranges(draw):
    size = draw(st.integers(1, 4000))
    starts = draw(st.lists(st.integers(0, size), max_size=12))
    return size, [(start, draw(st.integers(0, size - start))) for start in starts]


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(wanted_ranges(), st.integers(0, 200))
def test_scatter_puts_every_range_where_it_belongs(monkeypatch, plan, max_gap_bytes):
    size, wanted = plan
    transfer = TransferConfig(max_gap_bytes=max_gap_bytes)
    object.__setattr__(transfer, "part_bytes", 300)  # below what a store takes, to have many
    store = open_store("memory://scatter", StoreConfig(transfer=transfer))
    data = os.urandom(size)
    store.put("object", data)
    buffers = [bytearray(length) for _, length in wanted]
    targets = [
        Target(start, memoryview(buffer))
        for (start, _), buffer in zip(wanted, buffers, strict=True)
    ]
    scatter(store, "object", targets, etag=None)
    assert buffers == [data[start : start + length] for start, length in wanted]


def test_scatter_past_the_end_is_an_error_and_not_a_short_buffer(stored):
    for start in (len(DATA) - 5, len(DATA) + 5):
        with pytest.raises(ValueError, match="were asked for, and the object ends at"):
            scatter(stored, "object", [Target(start, memoryview(bytearray(10)))], etag=None)


def test_scatter_reads_one_version_only(stored, proxied, fault_proxy):
    targets = [Target(start, memoryview(bytearray(10))) for start in (0, 4 << 20)]
    scatter(proxied, "object", targets, etag=None)
    assert fault_proxy.count("HEAD") == 1
    old = stored.head("object").etag
    stored.put("object", bytes(len(DATA)))
    with pytest.raises(ObjectChanged):
        scatter(stored, "object", targets, etag=old)


def test_nothing_writes_into_the_targets_once_scatter_has_failed(stored, proxied, fault_proxy):
    """The large target fails at once, while a read shared by two small ones is slow."""
    fault_proxy.add(Fault.latency(300, method="GET", times=1))
    fault_proxy.add(Fault.status(400, method="GET"))
    small = [bytearray(10), bytearray(10)]
    targets = [
        Target(start, memoryview(buffer)) for start, buffer in zip((0, 20), small, strict=True)
    ]
    targets.append(Target(5 << 20, memoryview(bytearray(1 << 20))))
    with pytest.raises(TransferFailed):
        scatter(proxied, "object", targets, etag=stored.head("object").etag)
    assert all(request.finished_s is not None for request in fault_proxy.requests)
