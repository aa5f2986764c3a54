"""The counters that every request passes through."""

from dataclasses import replace

import pytest

from penstock import RetryConfig, metrics, open_store
from penstock.errors import NotFound, Throttled
from penstock.testing import Fault


def test_calls_bytes_and_errors_are_counted(object_server, store_url):
    store = open_store(store_url, object_server.config)
    before = metrics.snapshot()
    store.put("key", b"12345")
    store.get("key")
    store.get("key", start=1, stop=3)
    store.get_into("key", bytearray(4))
    list(store.list())
    with pytest.raises(NotFound):
        store.get("missing")
    counted = metrics.snapshot() - before
    assert counted.requests == {"put": 1, "get": 4, "list": 1}
    assert (counted.bytes_read, counted.bytes_written) == (5 + 2 + 4, 5)
    assert counted.errors == {"NotFound": 1}
    assert counted.wait_s > 0


def test_retries_of_a_failed_call_are_counted(object_server, fault_proxy, store_url):
    config = replace(
        object_server.config,
        endpoint=fault_proxy.endpoint,
        retry=RetryConfig(max_attempts=4, backoff_initial_s=0.01, backoff_max_s=0.02),
    )
    fault_proxy.add(Fault.status(503))
    before = metrics.snapshot()
    with pytest.raises(Throttled):
        open_store(store_url, config).get("key")
    assert (metrics.snapshot() - before).retries == 3


def test_a_hook_sees_every_call_until_it_is_removed(object_server, store_url):
    store = open_store(store_url, object_server.config)
    seen = []
    metrics.add_hook(seen.append)
    try:
        store.put("key", b"12345")
        with pytest.raises(NotFound):
            store.get("missing")
    finally:
        metrics.remove_hook(seen.append)
        metrics.remove_hook(seen.append)
    store.get("key")
    assert [(request.verb, request.bytes_written, request.error) for request in seen[:2]] == [
        ("put", 5, None),
        ("get", 0, "NotFound"),
    ]
    assert len(seen) == 2
