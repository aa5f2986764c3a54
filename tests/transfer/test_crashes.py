"""Processes that die in the middle: a server that comes back costs time, a client leaves nothing visible."""

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import timedelta

import pytest

from penstock import RetryConfig, TransferConfig, open_store
from penstock.testing import ObjectServer
from penstock.transfer import Upload, fetch, fetch_many, sweep

PART_BYTES = 5 << 20
DATA = os.urandom(4 * PART_BYTES)


@pytest.fixture(scope="module")
def mortal():
    """A server that these tests kill; it has one life per test."""
    with ObjectServer(["train"]) as server:
        yield server
        server.kill()  # an orderly end may take ten seconds


@pytest.fixture
def store(mortal, request):
    config = replace(
        mortal.config,
        transfer=TransferConfig(
            part_bytes=PART_BYTES, budget_bytes=2 * PART_BYTES, max_concurrency=4
        ),
        retry=RetryConfig(
            max_attempts=1000, deadline_s=60, backoff_initial_s=0.05, backoff_max_s=0.2
        ),
    )
    return open_store(mortal.url("train", request.node.name), config)


@pytest.fixture
def crash(mortal):
    """Kills the server at once, and brings it back meanwhile."""
    threads = []

    def now():
        mortal.kill()
        threads.append(threading.Thread(target=mortal.restart))
        threads[-1].start()

    yield now
    for thread in threads:
        thread.join(60)
    assert mortal.running


def test_a_server_that_comes_back_costs_fetch_many_only_time(store, crash):
    metas = [store.put(f"{number:03}", f"{number}".encode() * 1000) for number in range(60)]
    found = []
    for number, item in enumerate(fetch_many(store, metas)):
        found.append(bytes(item.data))
        if number == 20:
            crash()
    assert found == [f"{number}".encode() * 1000 for number in range(60)]


def test_a_server_that_comes_back_costs_fetch_only_time(store, crash):
    store.put("object", DATA)
    crash()
    buffer = bytearray(len(DATA))
    assert fetch(store, "object", buffer) == len(DATA)
    assert buffer == DATA


def test_a_server_that_comes_back_costs_an_upload_only_time(store, crash):
    upload = Upload(store, "object")
    upload.write(DATA)
    crash()
    upload.write(DATA)
    upload.close()
    assert store.get("object") == DATA + DATA
    assert list(store.pending_uploads()) == []


_UPLOAD_AND_WAIT = """
import pickle, sys
from penstock.transfer import Upload
store = pickle.loads(bytes.fromhex(sys.argv[1]))
upload = Upload(store, "folder/object")
upload.write(bytes(3 * (5 << 20) + 1))
for part in upload._sent:
    part.result()
print("written", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("kind", ["s3", "file"])
def test_a_client_killed_in_the_middle_leaves_nothing_but_what_sweep_removes(kind, s3, tmp_path):
    import pickle

    store = s3 if kind == "s3" else open_store(tmp_path, s3.config)
    child = subprocess.Popen(
        [sys.executable, "-c", _UPLOAD_AND_WAIT, pickle.dumps(store).hex()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout.readline() == "written\n"
        child.send_signal(signal.SIGKILL)
        assert child.wait(10) == -signal.SIGKILL
    assert not store.exists("folder/object")
    assert list(store.list()) == []

    now = timedelta(0)
    assert sweep(store.url, config=store.config) == [], "younger than a day"
    orphans = sweep(store.url, older_than=now, config=store.config)
    assert [orphan.key for orphan in orphans] == ["folder/object"]
    assert sweep(store.url, older_than=now, config=store.config) == orphans, "a dry run"
    assert sweep(store.url, older_than=now, dry_run=False, config=store.config) == orphans
    assert sweep(store.url, older_than=now, config=store.config) == []
    if kind == "file":
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_sweep_leaves_alone_what_is_elsewhere_or_finished(s3):
    upload = Upload(open_store(f"{s3.url}/one", s3.config), "object")
    upload.write(DATA)
    assert sweep(f"{s3.url}/two", older_than=timedelta(0), dry_run=False, config=s3.config) == []
    upload.close()
    assert s3.get("one/object") == DATA
    assert sweep(s3.url, older_than=timedelta(0), dry_run=False, config=s3.config) == []


def test_a_negative_age_is_refused(s3):
    with pytest.raises(ValueError, match="must not be negative"):
        sweep(s3.url, older_than=timedelta(seconds=-1), config=s3.config)
