"""`open_reader` is an honest file: what `io.BytesIO` would answer, from as few requests as make sense."""

import io
import os
import pickle
import uuid

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import open_reader, open_store
from penstock.errors import IntegrityError, NotFound, ObjectChanged, StoreUnavailable
from penstock.testing import Fault
from penstock.transfer import ObjectReader
from penstock.transfer import reader as reader_module

MIB = 1 << 20


@pytest.fixture
def small_windows(monkeypatch):
    """A few kilobytes are several windows, the largest of them too."""
    monkeypatch.setattr(reader_module, "_FIRST_BYTES", 1000)
    monkeypatch.setattr(reader_module, "_RANDOM_BYTES", 130)
    monkeypatch.setattr(reader_module, "_LARGEST_BYTES", 4000)
    monkeypatch.setattr(reader_module, "_DIRECT_BYTES", 2500)
    monkeypatch.setattr(reader_module, "_BUFFER_BYTES", 64)


def _sizes(largest):
    return st.one_of(st.integers(0, 80), st.integers(0, largest))


OPERATIONS = st.one_of(
    st.tuples(st.just("read"), st.one_of(st.none(), st.just(-1), _sizes(9000))),
    st.tuples(st.just("readinto"), _sizes(6000)),
    st.tuples(st.just("readline"), st.one_of(st.just(-1), _sizes(300))),
    st.tuples(st.just("seek"), _sizes(30_000), st.just(io.SEEK_SET)),
    st.tuples(st.just("seek"), st.integers(-4000, 4000), st.just(io.SEEK_CUR)),
    st.tuples(st.just("seek"), st.integers(-30_000, 200), st.just(io.SEEK_END)),
    st.tuples(st.just("tell")),
    # Sequential use, which is what read-ahead is for.
    st.tuples(st.just("read"), st.integers(200, 1200)),
)


def apply(file, operation, size):
    name, *arguments = operation
    match name:
        case "readinto":
            buffer = bytearray(arguments[0])
            got = file.readinto(buffer)
            return got, bytes(buffer)
        case "seek":
            offset, whence = arguments
            start = {io.SEEK_SET: 0, io.SEEK_CUR: file.tell(), io.SEEK_END: size}[whence]
            if start + offset < 0:
                # BytesIO clamps here, which no file on a disk does.
                if not isinstance(file, io.BytesIO):
                    with pytest.raises(ValueError, match="before the beginning"):
                        file.seek(offset, whence)
                return file.tell()
            return file.seek(offset, whence)
        case _:
            return getattr(file, name)(*arguments)


def content(size, seed):
    # Lines of all lengths, the longest over several windows.
    return (b"".join(bytes([97 + (i * seed) % 26]) * (i * i) + b"\n" for i in range(80)) * 2)[:size]


def check_like_bytesio(store, key, operations, data):
    store.put(key, data)
    expected = io.BytesIO(data)
    with ObjectReader(store, key) as file:
        for operation in operations:
            assert apply(file, operation, len(data)) == apply(expected, operation, len(data))
            assert file.tell() == expected.tell()


@pytest.mark.usefixtures("small_windows")
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.one_of(st.sampled_from([0, 1, 999, 1000, 1001]), st.integers(0, 30_000)),
    st.lists(OPERATIONS, min_size=1, max_size=25),
    st.integers(1, 25),
)
def test_it_answers_as_bytesio_does(size, operations, seed):
    check_like_bytesio(open_store("memory://reader"), "object", operations, content(size, seed))


@pytest.mark.usefixtures("small_windows")
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.integers(0, 30_000), st.lists(OPERATIONS, min_size=1, max_size=15), st.integers(1, 25))
def test_it_answers_as_bytesio_does_over_s3(s3, size, operations, seed):
    check_like_bytesio(s3, uuid.uuid4().hex, operations, content(size, seed))


def test_every_kind_of_store_can_be_read_as_a_file(any_store):
    data = os.urandom(3 * MIB + 17)
    any_store.put("object", data)
    with ObjectReader(any_store, "object") as file:
        assert file.read() == data
        assert file.seek(-17, io.SEEK_END) == 3 * MIB
        assert file.read(100) == data[-17:]
        assert file.meta.size == len(data)


def test_it_is_an_honest_io_object(s3):
    s3.put("object", b"one\ntwo\n")
    with ObjectReader(s3, "object") as file:
        assert isinstance(file, io.BufferedIOBase)
        assert file.readable()
        assert file.seekable()
        assert not file.writable()
        assert list(file) == [b"one\n", b"two\n"]
        assert file.read(1) == b""
        with pytest.raises(io.UnsupportedOperation):
            file.write(b"1")
        assert io.TextIOWrapper(file).name == f"{s3.url}/object"
    assert file.closed
    with pytest.raises(ValueError, match="closed"):
        file.read()


def test_opening_makes_no_request_and_a_small_object_is_one_get(s3, proxied, fault_proxy):
    s3.put("object", bytes(1000))
    with ObjectReader(proxied, "object") as file:
        assert fault_proxy.count() == 0
        assert file.read(10) == bytes(10)
        file.seek(0, io.SEEK_END)
        file.seek(500)
        assert len(file.read()) == 500
    assert [request.method for request in fault_proxy.requests] == ["GET"]


def test_reading_in_order_takes_ever_larger_windows(s3, proxied, fault_proxy):
    data = os.urandom(24 * MIB)
    s3.put("object", data)
    with ObjectReader(proxied, "object") as file:
        pieces = list(iter(lambda: file.read(64 << 10), b""))
    assert b"".join(pieces) == data
    sizes = [r.range[1] - r.range[0] for r in fault_proxy.requests if r.range is not None]
    assert sizes == sorted(sizes)
    assert len(sizes) <= 6
    assert sum(r.bytes_sent for r in fault_proxy.requests if r.method == "GET") == len(data)


def test_reading_here_and_there_takes_little(s3, proxied, fault_proxy):
    data = os.urandom(24 * MIB)
    s3.put("object", data)
    with ObjectReader(proxied, "object") as file:
        for position in (20, 3, 15, 7, 11):
            file.seek(position * MIB)
            assert file.read(100) == data[position * MIB : position * MIB + 100]
    assert sum(request.bytes_sent for request in fault_proxy.requests) < 2 * MIB


def test_a_large_read_lands_in_the_callers_memory_by_parallel_ranges(s3, proxied, fault_proxy):
    data = os.urandom(16 * MIB)
    s3.put("object", data)
    buffer = bytearray(len(data))
    with ObjectReader(proxied, "object") as file:
        file.seek(MIB)
        assert file.readinto(buffer) == 15 * MIB
    assert buffer[: 15 * MIB] == data[MIB:]
    assert fault_proxy.count("GET") == 4, "the first window, and three parts of 5 MiB"


def test_the_next_window_is_on_its_way_before_it_is_asked_for(s3, proxied, fault_proxy):
    s3.put("object", bytes(8 * MIB))
    with ObjectReader(proxied, "object") as file:
        file.read(3 * MIB - 1000)  # most of the second window, which ends at 3 MiB
        _until(lambda: any(r.range == (3 * MIB, 7 * MIB) for r in fault_proxy.requests))


@pytest.mark.parametrize(
    "read",
    [
        lambda file: file.read(),
        lambda file: file.read(3 * MIB),
        lambda file: [file.read(100_000) for _ in range(30)],
        lambda file: file.seek(3 * MIB) and file.read(10),
    ],
    ids=["at once", "directly", "in order", "elsewhere"],
)
def test_all_reads_are_of_the_version_met_first(s3, read):
    s3.put("object", bytes(4 * MIB))
    with ObjectReader(s3, "object") as file:
        assert file.read(10) == bytes(10)
        s3.put("object", b"\x01" * (4 * MIB))
        with pytest.raises(ObjectChanged):
            read(file)


def test_a_missing_object_raises_at_the_first_read(s3):
    file = ObjectReader(s3, "missing")
    with pytest.raises(NotFound):
        file.read(1)


def test_a_read_ahead_that_failed_is_read_again(s3, proxied, fault_proxy):
    """The failure is raised where its bytes are asked for, once; a second read asks the store anew."""
    data = os.urandom(8 * MIB)
    s3.put("object", data)
    with ObjectReader(proxied, "object") as file:
        fault_proxy.add(Fault.status(500, method="GET", skip=2, times=3))
        assert file.read(3 * MIB - 1000) == data[: 3 * MIB - 1000]
        with pytest.raises(StoreUnavailable):
            file.read(4000)
        file.seek(3 * MIB)
        assert file.read(5 * MIB) == data[3 * MIB :]


@pytest.mark.parametrize("how", ["at once", "piece by piece"])
@pytest.mark.parametrize("request_number", [0, 1, 2])
def test_a_bit_flipped_in_an_object_read_to_its_end_is_noticed(
    s3, proxied, fault_proxy, how, request_number
):
    data = os.urandom(12 * MIB)
    s3.put("object", data)
    fault_proxy.add(Fault.flip(method="GET", skip=request_number, times=1))
    file = ObjectReader(proxied, "object")
    pieces = iter(lambda: file.read(-1 if how == "at once" else 300_000), b"")
    with pytest.raises(IntegrityError, match="read it again"):
        list(pieces)
    with ObjectReader(proxied, "object") as anew:
        assert anew.read() == data


def test_a_bit_flipped_in_a_small_object_is_noticed(s3, proxied, fault_proxy):
    s3.put("object", os.urandom(1000))
    fault_proxy.add(Fault.flip(method="GET", times=1))
    with pytest.raises(IntegrityError), ObjectReader(proxied, "object") as file:
        file.read(10)


def test_it_travels_to_another_process_before_its_first_use_only(s3, object_server):
    s3.put("object", b"12345")
    file = open_reader(f"{s3.url}/object", config=object_server.config)
    with pickle.loads(pickle.dumps(file)) as copy:
        assert copy.read() == b"12345"
        with pytest.raises(TypeError, match="only before its first use"):
            pickle.dumps(copy)
    with pytest.raises(TypeError, match="only before its first use"):
        pickle.dumps(copy)
    assert file.read() == b"12345"


def _until(condition):
    import time

    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
