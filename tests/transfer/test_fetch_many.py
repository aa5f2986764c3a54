"""`fetch_many`: whole objects in order, hundreds in flight, within the budget; a second request for the slow tail."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from penstock import ObjectMeta, TransferConfig, metrics, open_store
from penstock.errors import IntegrityError, NotFound, ObjectChanged
from penstock.testing import Fault
from penstock.transfer import Upload, fetch_many
from penstock.transfer.budget import shared_budget
from penstock.transfer.tuning import limiter_for

COUNT = 500


def content(number):
    return f"{number}:".encode() * (1 + number % 700)


@pytest.fixture(scope="module")
def many(object_server):
    """500 objects, which no test changes."""
    store = open_store(object_server.url("train", "fetch-many"), object_server.config)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda number: store.put(f"{number:03}", content(number)), range(COUNT)))
    return store


@pytest.fixture
def seen(many, object_server, fault_proxy):
    """The same objects through the proxy."""
    return open_store(many.url, replace(object_server.config, endpoint=fault_proxy.endpoint))


@pytest.mark.parametrize("known", [True, False], ids=["listed", "keys only"])
def test_five_hundred_objects_come_out_in_the_order_asked_for(many, seen, fault_proxy, known):
    metas = sorted(many.list(), key=lambda meta: meta.key, reverse=True)
    found = list(fetch_many(seen, metas if known else [meta.key for meta in metas]))
    assert [item.meta.key for item in found] == [f"{n:03}" for n in reversed(range(COUNT))]
    assert all(bytes(item.data) == content(int(item.meta.key)) for item in found)
    assert fault_proxy.count() == COUNT, "one request an object"


def test_nothing_asked_for_is_nothing_read(seen, fault_proxy):
    assert list(fetch_many(seen, [])) == []
    assert fault_proxy.count() == 0


def test_a_missing_key_raises_for_itself_and_what_came_before_is_right(many):
    keys = [f"{number:03}" for number in range(100)]
    keys[40] = "missing"
    results = fetch_many(many, keys)
    for number in range(40):
        assert bytes(next(results).data) == content(number)
    with pytest.raises(NotFound, match="fetch-many/missing"):
        next(results)
    assert list(results) == [], "and the rest is given up"


def test_an_object_that_is_not_the_listed_version_raises_for_itself(many, store_url, object_server):
    store = open_store(store_url, object_server.config)
    metas = [store.put(f"{number}", content(number)) for number in range(30)]
    store.put("17", b"another")
    results = fetch_many(store, metas)
    for number in range(17):
        assert bytes(next(results).data) == content(number)
    with pytest.raises(ObjectChanged, match="/17:"):
        next(results)


def test_a_damaged_object_raises_for_itself(seen, fault_proxy):
    fault_proxy.add(Fault.flip(key="*/033"))
    results = fetch_many(seen, [f"{number:03}" for number in range(60)])
    for number in range(33):
        assert bytes(next(results).data) == content(number)
    with pytest.raises(IntegrityError, match="/033:"):
        next(results)


@pytest.mark.parametrize("known", [True, False], ids=["listed", "key only"])
def test_a_damaged_object_that_was_uploaded_in_parts_is_noticed(s3, proxied, fault_proxy, known):
    upload = Upload(s3, "object")
    upload.write(bytes(6 << 20))
    meta = upload.close()
    fault_proxy.add(Fault.flip(method="GET", times=1))
    with pytest.raises(IntegrityError, match="read it again"):
        list(fetch_many(proxied, [meta if known else "object"]))


def test_stopping_early_cancels_what_has_not_begun(seen, fault_proxy):
    fault_proxy.set(latency_ms=20)
    results = fetch_many(seen, [f"{number:03}" for number in range(COUNT)])
    taken = [next(results) for _ in range(10)]
    in_flight = limiter_for(seen).limit
    results.close()
    assert [bytes(item.data) for item in taken] == [content(number) for number in range(10)]
    # What was under way ends; a store that is closed to us now would not see more.
    list(fetch_many(seen, ["000"]))
    assert fault_proxy.count() <= 10 + in_flight + 2
    assert shared_budget(seen.config.transfer).in_use_bytes == 0


def test_what_is_read_ahead_stays_within_the_budget(object_server, store_url):
    transfer = TransferConfig(budget_bytes=6 << 20, part_bytes=5 << 20)
    store = open_store(store_url, replace(object_server.config, transfer=transfer))
    metas = [store.put(f"{number}", bytes([number]) * (1 << 20)) for number in range(24)]
    budget = shared_budget(transfer)
    peak = 0
    for number, found in enumerate(fetch_many(store, metas)):
        assert found.data[0] == number
        peak = max(peak, budget.in_use_bytes)
    assert 4 << 20 < peak <= transfer.budget_bytes
    assert budget.in_use_bytes == 0


def test_an_object_larger_than_the_budget_passes_alone(object_server, store_url):
    transfer = TransferConfig(budget_bytes=5 << 20, part_bytes=5 << 20)
    store = open_store(store_url, replace(object_server.config, transfer=transfer))
    metas = [store.put(f"{number}", bytes(7 << 20)) for number in range(3)]
    budget = shared_budget(transfer)
    for found in fetch_many(store, metas):
        assert len(found.data) == 7 << 20
        assert budget.in_use_bytes == 7 << 20
    assert budget.in_use_bytes == 0


def test_two_readers_in_one_thread_do_not_stop_each_other(object_server, store_url):
    """The first may hold all of the budget, and is not asked for more before the second has given something."""
    transfer = TransferConfig(budget_bytes=5 << 20, part_bytes=5 << 20)
    store = open_store(store_url, replace(object_server.config, transfer=transfer))
    metas = [store.put(f"{number}", bytes([number]) * (2 << 20)) for number in range(4)]
    pairs = zip(fetch_many(store, metas), fetch_many(store, metas), strict=True)
    assert [(one.data[0], other.data[0]) for one, other in pairs] == [(n, n) for n in range(4)]


def test_many_readers_in_many_threads_all_finish(many):
    metas = [ObjectMeta(f"{number:03}", len(content(number))) for number in range(60)]
    results = {}

    def read(name):
        results[name] = [bytes(item.data) for item in fetch_many(many, metas)]

    threads = [threading.Thread(target=read, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == {name: [content(number) for number in range(60)] for name in range(8)}


def test_a_slow_answer_is_asked_for_twice_within_the_allowance(many, object_server, fault_proxy):
    config = replace(
        object_server.config,
        endpoint=fault_proxy.endpoint,
        transfer=TransferConfig(hedge=True, hedge_share=0.05, max_concurrency=16),
    )
    store = open_store(many.url, config)
    keys = [f"{number:03}" for number in range(COUNT)]
    list(fetch_many(store, keys[:100]))  # what is usual is known after this
    fault_proxy.clear_log()
    fault_proxy.add(Fault.latency(300, method="GET", rate=0.02, seed=1))
    before = metrics.snapshot()
    found = list(fetch_many(store, keys))
    hedges = (metrics.snapshot() - before).hedges
    assert [bytes(item.data) for item in found] == [content(number) for number in range(COUNT)]
    assert 1 <= hedges <= 0.05 * COUNT
    assert COUNT < fault_proxy.count("GET") <= COUNT + hedges


def test_a_second_request_saves_the_wait_for_a_stalled_first(many, object_server, fault_proxy):
    config = replace(
        object_server.config,
        endpoint=fault_proxy.endpoint,
        read_timeout_s=30.0,
        transfer=TransferConfig(hedge=True, hedge_share=1.0, max_concurrency=8),
    )
    store = open_store(many.url, config)
    keys = [f"{number:03}" for number in range(40)]
    list(fetch_many(store, keys))
    fault_proxy.add(Fault.stall(after_bytes=None, method="GET", key="*/020", times=1))
    found = list(fetch_many(store, keys))
    assert [bytes(item.data) for item in found] == [content(number) for number in range(40)]


def test_second_requests_do_not_cost_concurrency(many, object_server, fault_proxy):
    config = replace(
        object_server.config,
        endpoint=fault_proxy.endpoint,
        transfer=TransferConfig(hedge=True, max_concurrency=128),
    )
    fault_proxy.set(latency_ms=60)
    found = list(fetch_many(open_store(many.url, config), [f"{n:03}" for n in range(COUNT)]))
    assert len(found) == COUNT
    log = fault_proxy.requests
    ends = [request.finished_s or float("inf") for request in log]
    together = [
        sum(other.started_s <= one.started_s < end for other, end in zip(log, ends, strict=True))
        for one in log
    ]
    assert max(together) > 80


def test_no_second_request_is_sent_unless_enabled(seen, fault_proxy):
    fault_proxy.add(Fault.latency(100, method="GET", rate=0.05))
    before = metrics.snapshot()
    list(fetch_many(seen, [f"{number:03}" for number in range(200)]))
    assert (metrics.snapshot() - before).hedges == 0
    assert fault_proxy.count() == 200


def test_the_requests_in_flight_are_visible_in_the_metrics(many):
    list(fetch_many(many, [f"{number:03}" for number in range(COUNT)]))
    assert metrics.snapshot().concurrency[many.url] == limiter_for(many).limit
