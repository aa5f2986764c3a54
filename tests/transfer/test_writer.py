"""`open_writer`: a file that becomes an object when it is closed, and only then."""

import gc
import io
import os
import pickle
import signal

import pytest

from penstock import open_writer
from penstock.errors import AlreadyExists, StoreUnavailable
from penstock.testing import Fault
from penstock.transfer import ObjectWriter
from penstock.transfer.budget import shared_budget

PART_BYTES = 5 << 20
DATA = os.urandom(2 * PART_BYTES + 7)


def _leaves_nothing(store):
    assert not store.exists("object")
    assert shared_budget(store.config.transfer).in_use_bytes == 0
    if not store.url.startswith("az:"):
        assert list(store.pending_uploads()) == []


def _write(store, *, if_absent=False):
    return ObjectWriter(store, "object", if_absent=if_absent)


def _explode(file, data):
    with file:
        file.write(data)
        raise RuntimeError("the model exploded")


@pytest.mark.parametrize("size", [0, 10, len(DATA)])
def test_what_was_written_is_the_object(any_store, size):
    with _write(any_store) as file:
        assert file.write(DATA[:size]) == size
        assert file.tell() == size
        assert not any_store.exists("object")
    assert any_store.get("object") == DATA[:size]
    assert file.meta.size == size


@pytest.mark.parametrize("size", [10, len(DATA)])
def test_leaving_by_an_exception_publishes_nothing(any_store, size):
    file = _write(any_store)
    with pytest.raises(RuntimeError, match="the model exploded"):
        _explode(file, DATA[:size])
    _leaves_nothing(any_store)
    assert file.closed


def test_ctrl_c_publishes_nothing(any_store):
    with pytest.raises(KeyboardInterrupt), _write(any_store) as file:  # noqa: PT012 - the signal is the point
        file.write(DATA)
        signal.raise_signal(signal.SIGINT)
    _leaves_nothing(any_store)


@pytest.mark.parametrize("size", [10, len(DATA)])
def test_a_writer_dropped_without_being_closed_publishes_nothing(any_store, size):
    file = _write(any_store)
    file.write(DATA[:size])
    del file
    gc.collect()
    _leaves_nothing(any_store)


def test_an_aborted_writer_publishes_nothing(any_store):
    file = _write(any_store)
    file.write(DATA)
    file.abort()
    file.close()
    assert file.closed
    _leaves_nothing(any_store)


def test_closing_again_is_harmless_and_writing_is_refused(any_store):
    file = _write(any_store)
    file.write(b"1")
    file.close()
    file.close()
    with pytest.raises(ValueError, match="closed file"):
        file.write(b"2")
    assert any_store.get("object") == b"1"


def test_an_object_that_is_there_is_not_replaced_if_absent_is_asked_for(s3):
    s3.put("object", b"first")
    for size in (10, len(DATA)):
        with pytest.raises(AlreadyExists), _write(s3, if_absent=True) as file:
            file.write(DATA[:size])
    assert s3.get("object") == b"first"


def test_an_abort_that_fails_does_not_hide_what_went_wrong_first(s3, proxied, fault_proxy):
    fault_proxy.add(Fault.status(500, method="DELETE"))
    file = _write(proxied)
    with pytest.raises(RuntimeError, match="the model exploded"):
        _explode(file, DATA)
    assert file.closed
    assert not s3.exists("object")


def test_an_abort_that_was_asked_for_says_that_it_failed(proxied, fault_proxy):
    fault_proxy.add(Fault.status(500, method="DELETE"))
    file = _write(proxied)
    file.write(DATA)
    with pytest.raises(StoreUnavailable):
        file.abort()
    assert file.closed


def test_a_failed_close_closes_all_the_same(s3, proxied, fault_proxy):
    fault_proxy.add(Fault.status(500, method="PUT"))
    file = _write(proxied)
    file.write(b"1")
    with pytest.raises(StoreUnavailable):
        file.close()
    assert file.closed
    file.close()
    assert not s3.exists("object")


def test_it_is_an_honest_io_object(s3):
    with _write(s3) as file:
        assert isinstance(file, io.RawIOBase)
        assert file.writable()
        assert not file.readable()
        assert not file.seekable()
        assert file.name == f"{s3.url}/object"
        with pytest.raises(io.UnsupportedOperation):
            file.seek(0)
        with pytest.raises(io.UnsupportedOperation):
            file.read(1)
        file.writelines([b"1", bytearray(b"2"), memoryview(b"3")])
        file.flush()
    assert s3.get("object") == b"123"


def test_text_can_be_written_through_it(s3):
    with _write(s3) as raw, io.TextIOWrapper(io.BufferedWriter(raw), "utf-8") as text:
        text.write("Füße\n" * 1000)
    assert bytes(s3.get("object")).decode() == "Füße\n" * 1000


def test_it_travels_to_another_process_before_its_first_write_only(s3):
    file = open_writer(f"{s3.url}/object", config=s3.config)
    copy = pickle.loads(pickle.dumps(file))
    with copy:
        copy.write(b"1")
        with pytest.raises(TypeError, match="only before its first write"):
            pickle.dumps(copy)
    with pytest.raises(TypeError, match="only before its first write"):
        pickle.dumps(copy)
    assert s3.get("object") == b"1"
    file.abort()
    assert s3.get("object") == b"1"


def test_opening_makes_no_request(proxied, fault_proxy):
    _write(proxied).abort()
    assert fault_proxy.count() == 0
