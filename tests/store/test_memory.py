"""What only memory can get wrong: belonging to one process."""

import multiprocessing
import pickle
import subprocess
import sys

import pytest

from penstock import open_store


def test_two_stores_of_one_name_share_their_objects():
    open_store("memory://shared/a").put("k", b"1")
    assert open_store("memory://shared").get("a/k") == b"1"
    assert not open_store("memory://other").exists("a/k")


def test_a_forked_child_sees_what_was_there_and_keeps_its_own():
    store = open_store("memory://forked")
    store.put("k", b"parent")

    def child():
        assert store.get("k") == b"parent"
        store.put("k", b"child")

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(30)
    assert process.exitcode == 0
    assert store.get("k") == b"parent"


def test_it_refuses_to_appear_empty_in_another_process():
    frozen = pickle.dumps(open_store("memory://here"))
    script = f"import pickle; pickle.loads({frozen!r})"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "lives in the memory of another process" in done.stderr


@pytest.mark.parametrize("data", [bytearray(b"123"), memoryview(b"123")])
def test_a_buffer_that_changes_later_does_not_change_the_object(data):
    store = open_store("memory://copied")
    store.put("k", data)
    if isinstance(data, bytearray):
        data[0] = 0
    assert store.get("k") == b"123"
