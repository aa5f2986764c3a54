"""Stores of every kind for the transfer tests, and small parts, so that few megabytes are many of them."""

import uuid
from dataclasses import replace

import pytest

from penstock import RetryConfig, StoreConfig, TransferConfig, open_store
from penstock.testing import AzureServer, ObjectServer

PART_BYTES = 5 << 20
TRANSFER = TransferConfig(part_bytes=PART_BYTES, budget_bytes=4 * PART_BYTES)
RETRY = RetryConfig(max_attempts=3, deadline_s=5.0, backoff_initial_s=0.01, backoff_max_s=0.05)


@pytest.fixture(scope="session")
def gcs_server():
    with ObjectServer(buckets=["train"], gcs=True) as server:
        yield server
        server.kill()  # an orderly end may take ten seconds


@pytest.fixture(scope="session")
def azure_server():
    reason = AzureServer.unavailable_reason()
    if reason is not None:
        pytest.skip(reason)
    with AzureServer(containers=["train"]) as server:
        yield server


@pytest.fixture(params=["s3", "gs", "az", "file", "memory"])
def any_store(request, tmp_path):
    """A store of each kind, under a prefix that no other test uses, with parts of 5 MiB."""
    prefix = uuid.uuid4().hex
    match request.param:
        case "s3":
            server = request.getfixturevalue("object_server")
        case "gs":
            server = request.getfixturevalue("gcs_server")
        case "az":
            server = request.getfixturevalue("azure_server")
        case "file":
            return open_store(tmp_path, StoreConfig(transfer=TRANSFER))
        case _:
            return open_store(f"memory://{prefix}", StoreConfig(transfer=TRANSFER))
    return open_store(server.url("train", prefix), replace(server.config, transfer=TRANSFER))


@pytest.fixture
def s3(object_server, store_url):
    """The S3 server, with parts of 5 MiB."""
    return open_store(store_url, replace(object_server.config, transfer=TRANSFER))


@pytest.fixture
def proxied(object_server, fault_proxy, store_url):
    """The same place through `fault_proxy`, with few and quick retries."""
    config = replace(
        object_server.config,
        endpoint=fault_proxy.endpoint,
        transfer=TRANSFER,
        retry=RETRY,
        read_timeout_s=1.0,
    )
    return open_store(store_url, config)
