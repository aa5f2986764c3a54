"""Fixtures for pytest, loaded as a plugin wherever Penstock is installed: nothing is imported before it is used."""

import uuid
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.testing.proxy import FaultProxy
    from penstock.testing.server import ObjectServer

_BUCKET = "train"


@pytest.fixture(scope="session")
def object_server() -> "Iterator[ObjectServer]":
    """One S3 server for the whole run, with the bucket `train`. Needs `penstock[server]`."""
    from penstock.testing.server import ObjectServer

    with ObjectServer([_BUCKET]) as server:
        yield server


@pytest.fixture
def store_url(object_server: "ObjectServer") -> str:
    """A prefix that no other test uses. Costs nothing. Open it with `config=object_server.config`."""
    return object_server.url(_BUCKET, uuid.uuid4().hex)


@pytest.fixture
def bucket_url(object_server: "ObjectServer") -> str:
    """A bucket that no other test uses. Costs 0.2 s; `store_url` does for most."""
    bucket = f"test-{uuid.uuid4().hex}"
    object_server.create_bucket(bucket)
    return object_server.url(bucket)


@pytest.fixture
def fault_proxy(object_server: "ObjectServer") -> "Iterator[FaultProxy]":
    """A proxy before `object_server`, faultless until told. Open with `replace(config, endpoint=proxy.endpoint)`."""
    from penstock.testing.proxy import FaultProxy

    with FaultProxy(object_server.endpoint) as proxy:
        yield proxy
