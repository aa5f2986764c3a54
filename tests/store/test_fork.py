"""Fork, forkserver and spawn: a store works in every kind of child, whatever the parent was doing."""

import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from penstock import open_store
from penstock.errors import ConfigError
from penstock.store import engine

KEYS = [f"object-{i}" for i in range(8)]


def _data(key):
    return key.encode() * 5000


@pytest.fixture
def store(object_server, store_url):
    store = open_store(store_url, object_server.config)
    for key in KEYS:
        store.put(key, _data(key))
    return store


@pytest.fixture
def busy_parent(store):
    """Four threads of this process that keep downloading, and are known to have begun."""
    stop = threading.Event()
    begun = threading.Barrier(5)

    def download():
        store.get(KEYS[0])
        begun.wait(30)
        while not stop.is_set():
            for key in KEYS:
                assert store.get(key) == _data(key)

    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(download) for _ in range(4)]
        begun.wait(30)
        yield
        stop.set()
        for reader in readers:
            reader.result(30)


def _reads_everything(store):
    listed = sorted(meta.key for meta in store.list())
    return listed == sorted(KEYS) and all(store.get(key) == _data(key) for key in KEYS)


def _child(store):
    """Exit status 0 if this child and a child of its own read every object right."""
    pid = os.fork()
    if pid == 0:
        os._exit(0 if _reads_everything(store) else 1)
    own = _reads_everything(store)
    _, status = os.waitpid(pid, 0)
    return 0 if own and os.waitstatus_to_exitcode(status) == 0 else 1


def test_fifty_forked_children_and_a_grandchild_each_read_while_the_parent_downloads(
    store, busy_parent
):
    assert len(list(store.list())) == len(KEYS)
    for _ in range(10):
        children = []
        for _ in range(5):
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    status = _child(store)
                finally:
                    os._exit(status)
            children.append(pid)
        statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
        assert statuses == [0] * 5


class Objects(Dataset):
    def __init__(self, store, transform):
        self.store = store
        self.keys = sorted(meta.key for meta in store.list())
        self.transform = transform

    def __len__(self):
        return len(self.keys)

    def __getitem__(self, i):
        return self.transform(self.store.get(self.keys[i]))


def _checksum(data):
    return sum(bytes(data)) % 65521


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_a_data_loader_works_with_every_start_method(store, busy_parent, method):
    dataset = Objects(store, _checksum)
    loader = DataLoader(dataset, batch_size=2, num_workers=2, multiprocessing_context=method)
    expected = [_checksum(_data(key)) for key in sorted(KEYS)]
    for _ in range(2):
        assert torch.cat(list(loader)).tolist() == expected


def test_a_data_loader_takes_a_lambda_under_fork(store, busy_parent):
    dataset = Objects(store, lambda data: len(data) + 1)
    loader = DataLoader(dataset, batch_size=2, num_workers=2, multiprocessing_context="fork")
    assert torch.cat(list(loader)).tolist() == [len(_data(key)) + 1 for key in sorted(KEYS)]


def test_a_child_starts_its_counters_from_zero(store):
    from penstock import metrics

    store.get(KEYS[0])
    reader, writer = multiprocessing.get_context("fork").Pipe(duplex=False)

    def report():
        store.get(KEYS[0])
        writer.send(dict(metrics.snapshot().requests))

    child = multiprocessing.get_context("fork").Process(target=report)
    child.start()
    child.join(30)
    assert reader.recv() == {"get": 1}


def test_a_child_that_cannot_copy_the_engine_says_what_to_do(store):
    """No hang: the error names the start method that helps."""
    reader, writer = multiprocessing.get_context("fork").Pipe(duplex=False)

    def fail():
        engine._library = "/nowhere/obstore.so"
        try:
            list(store.list())
        except ConfigError as exc:
            writer.send(str(exc))

    list(store.list())
    child = multiprocessing.get_context("fork").Process(target=fail)
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert 'multiprocessing_context="forkserver"' in reader.recv()


def test_a_child_works_without_memfd(store):
    def read_from_a_temporary_file():
        del os.memfd_create
        os._exit(0 if _reads_everything(store) else 1)

    list(store.list())
    child = multiprocessing.get_context("fork").Process(target=read_from_a_temporary_file)
    child.start()
    child.join(30)
    assert child.exitcode == 0


def test_a_child_exits_cleanly_after_using_the_parents_store(object_server, store_url, tmp_path):
    """Neither the child's nor the parent's interpreter shutdown hangs or crashes."""
    script = textwrap.dedent(
        """
        import os, sys
        from penstock import open_store
        store = open_store(sys.argv[1])
        store.put("k", b"1")
        pid = os.fork()
        assert store.get("k") == b"1"
        if pid:
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        """
    )
    environment = {**os.environ, **object_server.env}
    done = subprocess.run(
        [sys.executable, "-c", script, store_url], env=environment, timeout=60, check=False
    )
    assert done.returncode == 0
