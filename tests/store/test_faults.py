"""What `get`, `put` and `list` do under every fault of FaultProxy: the right bytes, or the right error in time."""

import os
import time
from dataclasses import replace

import pytest

from penstock import RetryConfig, open_store
from penstock.errors import (
    IntegrityError,
    StoreUnavailable,
    Throttled,
    TransferFailed,
)
from penstock.testing import Fault

DATA = os.urandom(300_000)
ATTEMPTS = 3
RETRY = RetryConfig(
    max_attempts=ATTEMPTS, deadline_s=5.0, backoff_initial_s=0.01, backoff_max_s=0.05
)
READ_TIMEOUT_S = 0.4
# No attempt begins after the deadline, and none lasts longer than the read timeout.
GIVES_UP_WITHIN_S = RETRY.deadline_s + READ_TIMEOUT_S + 1.0

TRANSIENT = {
    "429": (lambda **m: Fault.status(429, **m), Throttled),
    "500": (lambda **m: Fault.status(500, **m), StoreUnavailable),
    "503": (lambda **m: Fault.status(503, error_code="ServiceUnavailable", **m), StoreUnavailable),
    "503 slow down": (lambda **m: Fault.status(503, **m), Throttled),
    "429 with Retry-After": (lambda **m: Fault.status(429, retry_after_s=1, **m), Throttled),
    "503 with Retry-After": (lambda **m: Fault.status(503, retry_after_s=1, **m), Throttled),
    "reset before": (Fault.reset_before, TransferFailed),
    "reset during": (Fault.reset_during, TransferFailed),
    "reset after": (Fault.reset_after, TransferFailed),
    "truncate": (Fault.truncate, TransferFailed),
    "stall before headers": (lambda **m: Fault.stall(after_bytes=None, **m), StoreUnavailable),
    "stall in the body": (lambda **m: Fault.stall(after_bytes=10, **m), StoreUnavailable),
}
HARMLESS = {
    "latency": lambda **m: Fault.latency(30, **m),
    "throttle": lambda **m: Fault.throttle(2, **m),
}


class World:
    """An object stored directly, and the same place seen through the proxy."""

    def __init__(self, server, proxy, url):
        self.direct = open_store(url, server.config)
        self.direct.put("object", DATA)
        config = replace(
            server.config, endpoint=proxy.endpoint, read_timeout_s=READ_TIMEOUT_S, retry=RETRY
        )
        self.store = open_store(url, config)
        self.proxy = proxy

    def get(self):
        assert self.store.get("object") == DATA

    def get_into(self):
        buffer = bytearray(len(DATA))
        assert self.store.get_into("object", buffer) == len(DATA)
        assert buffer == DATA

    def put(self):
        self.store.put("put", DATA)
        assert self.direct.get("put") == DATA

    def list(self):
        assert [meta.key for meta in self.store.list("obj")] == ["object"]


@pytest.fixture
def world(object_server, fault_proxy, store_url):
    return World(object_server, fault_proxy, store_url)


OPERATIONS = {"get": "GET", "get_into": "GET", "put": "PUT", "list": "GET"}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("fault", [*TRANSIENT, *HARMLESS])
def test_a_fault_that_passes_costs_only_time(world, operation, fault):
    build = HARMLESS.get(fault) or TRANSIENT[fault][0]
    world.proxy.add(build(method=OPERATIONS[operation], times=ATTEMPTS - 1))
    getattr(world, operation)()
    assert any(request.fault is not None for request in world.proxy.requests)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("fault", TRANSIENT)
def test_a_fault_that_stays_raises_the_right_error_in_time(world, operation, fault):
    build, error = TRANSIENT[fault]
    world.proxy.add(build(method=OPERATIONS[operation]))
    began = time.monotonic()
    with pytest.raises(error, match=r"s3://train/") as caught:
        getattr(world, operation)()
    assert time.monotonic() - began < GIVES_UP_WITHIN_S
    assert world.proxy.count(OPERATIONS[operation]) == ATTEMPTS
    assert "StoreConfig" in str(caught.value), "the message names a remedy"
    if operation == "put" and fault != "reset after":
        assert fault in ("truncate", "stall in the body") or not world.direct.exists("put")


def test_a_flipped_bit_in_a_read_is_never_taken_for_data(world):
    world.proxy.add(Fault.flip(method="GET", times=1))
    with pytest.raises(IntegrityError, match=r"s3://train/.* read it again"):
        world.get()
    world.get()


@pytest.mark.parametrize("stop", [len(DATA), 1 << 20, 16 << 20])
def test_a_flipped_bit_is_found_too_where_a_range_holds_the_whole_object(world, stop):
    world.proxy.add(Fault.flip(method="GET", times=1))
    with pytest.raises(IntegrityError):
        world.store.get("object", start=0, stop=stop)


def test_a_flipped_bit_in_a_put_is_refused_by_the_store_and_sent_again(world):
    world.proxy.add(Fault.flip(method="PUT", times=ATTEMPTS - 1))
    world.put()
    world.proxy.add(Fault.flip(method="PUT"))
    with pytest.raises(
        IntegrityError, match="received other bytes than were sent, after 3 attempts"
    ):
        world.store.put("damaged", DATA)
    assert not world.direct.exists("damaged")


def test_a_listing_that_makes_no_sense_is_listed_again(world):
    # A flip that leaves well-formed XML cannot be noticed: listings carry no checksum on any store. TLS does.
    world.proxy.add(Fault.flip(method="GET", key="", offset=2, times=1))
    world.list()


def test_a_later_page_that_breaks_off_is_listed_again_without_loss(world):
    # Three pages; the second breaks in its body.
    for i in range(3):
        world.direct.put(f"more/{i}", b"")
    keys = _thousands(world)
    world.proxy.add(Fault.truncate(method="GET", key="", skip=1, times=1))
    assert sorted(meta.key for meta in world.store.list("many/")) == keys


def _thousands(world):
    from concurrent.futures import ThreadPoolExecutor

    keys = [f"many/{i:05}" for i in range(2100)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda key: world.direct.put(key, b""), keys))
    return keys


@pytest.mark.parametrize("fault", ["reset before", "reset during", "reset after", "truncate"])
def test_a_conditional_put_that_lost_its_connection_is_not_sent_twice(world, fault):
    """Sent again it could meet its own first attempt and report it as somebody else's."""
    build, _ = TRANSIENT[fault]
    world.direct.put("taken", b"first")
    world.proxy.add(build(method="PUT", times=2))
    for key in ("taken", "new"):
        with pytest.raises(TransferFailed, match="read the object to see whether it was written"):
            world.store.put(key, b"second", if_absent=True)
    assert world.proxy.count("PUT") == 2
    assert world.direct.get("taken") == b"first"
    assert world.direct.exists("new") == (fault in ("reset after", "truncate"))


def test_one_attempt_means_one_request(world, object_server, store_url):
    config = replace(
        object_server.config, endpoint=world.proxy.endpoint, retry=RetryConfig(max_attempts=1)
    )
    world.proxy.add(Fault.status(503))
    with pytest.raises(Throttled, match="at the first attempt"):
        open_store(store_url, config).get("object")
    assert world.proxy.count() == 1


def test_the_deadline_ends_retries_before_the_attempts_do(world, object_server, store_url):
    config = replace(
        object_server.config,
        endpoint=world.proxy.endpoint,
        read_timeout_s=0.3,
        retry=RetryConfig(max_attempts=1000, deadline_s=1.0, backoff_max_s=0.1),
    )
    world.proxy.add(Fault.stall(after_bytes=None))
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match=r"silent for 0\.3 s"):
        open_store(store_url, config).get("object")
    assert time.monotonic() - began < 3.0
