"""Objects on the session's server, and the same seen through a proxy that counts."""

import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

import penstock


@pytest.fixture(scope="session")
def put(object_server):
    """Writes objects below a prefix that no other test uses; returns its URL."""

    def write(objects):
        url = object_server.url("train", uuid.uuid4().hex)
        store = penstock.open_store(url, object_server.config)
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda item: store.put(*item), objects.items()))
        return url

    return write


@pytest.fixture(scope="session")
def config(object_server):
    """Leads to the server."""
    return object_server.config


@pytest.fixture
def counted(config, fault_proxy):
    """Leads to the server through the test's proxy."""
    return replace(config, endpoint=fault_proxy.endpoint)


@pytest.fixture(scope="session")
def names():
    """The keys of `objects`, without their prefix."""
    return [f"{i:03}.bin" for i in range(32)]


@pytest.fixture(scope="session")
def objects(put, names):
    """The URL of 32 objects, each of which holds its own name."""
    return put({name: name.encode() for name in names})
