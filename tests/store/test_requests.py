"""How many requests things cost, counted at the proxy."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from penstock import open_store


@pytest.fixture
def seen(object_server, fault_proxy, store_url):
    """A store whose requests are counted, and the count."""
    store = open_store(store_url, replace(object_server.config, endpoint=fault_proxy.endpoint))
    store.put("object", b"12345")
    fault_proxy.clear_log()
    return store, fault_proxy


@pytest.mark.parametrize(
    ("call", "method"),
    [
        (lambda store: store.get("object"), "GET"),
        (lambda store: store.get("object", start=1, stop=3), "GET"),
        (lambda store: store.get_into("object", bytearray(5)), "GET"),
        (lambda store: store.head("object"), "HEAD"),
        (lambda store: store.exists("object"), "HEAD"),
        (lambda store: store.exists("missing"), "HEAD"),
        (lambda store: store.put("new", b"1"), "PUT"),
        (lambda store: store.put("newer", b"1", if_absent=True), "PUT"),
        (lambda store: store.copy("object", "copy"), "PUT"),
        (lambda store: store.delete([f"{i}" for i in range(1000)]), "POST"),
        (lambda store: list(store.list()), "GET"),
        (lambda store: list(store.list("obj")), "GET"),
        (lambda store: list(store.list("nothing/here")), "GET"),
        (lambda store: store.list_dirs(), "GET"),
    ],
)
def test_one_call_is_one_request(seen, call, method):
    store, proxy = seen
    call(store)
    assert [request.method for request in proxy.requests] == [method]


def test_opening_and_pickling_make_no_request(seen, object_server, store_url):
    _, proxy = seen
    store = open_store(store_url, replace(object_server.config, endpoint=proxy.endpoint))
    store.list()
    assert proxy.count() == 0


@pytest.mark.parametrize(
    ("n", "requests"), [(0, 1), (1, 1), (999, 1), (1000, 1), (1001, 2), (2500, 3)]
)
def test_listing_n_keys_is_one_request_per_thousand(seen, n, requests):
    store, proxy = seen
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda i: store.put(f"many/{i:05}", b""), range(n)))
    proxy.clear_log()
    assert sum(1 for _ in store.list("many/")) == n
    assert proxy.count() == requests


def test_a_range_asks_for_its_bytes_alone(seen):
    store, proxy = seen
    store.get("object", start=1, stop=3)
    assert [request.range for request in proxy.requests] == [(1, 3)]
    assert [request.bytes_sent for request in proxy.requests] == [2]
