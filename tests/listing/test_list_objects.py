"""`list_objects` against a real server, its requests counted at a proxy before it."""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from penstock import RetryConfig, list_objects, open_store
from penstock.errors import BucketNotFound, ConfigError, Throttled
from penstock.testing import Fault, ObjectServer

# Folders beside names that sort between them and their contents, where the server's order is not UTF-8's.
KEYS = sorted(
    [f"n/{i:05d}.jpg" for i in range(5000)]
    + [f"data{mark}{i:03d}" for mark in ("/", "-", ".", "/x/", "0/", " b/") for i in range(500)]
    + [f"日本/{c}é😀{i}" for c in "abz" for i in range(400)]
    + [f"deep/{'d/' * 30}{i:04d}" for i in range(1000)],
)
FAST_RETRY = RetryConfig(max_attempts=8, backoff_initial_s=0.01, backoff_max_s=0.05)


@pytest.fixture(scope="module")
def place(object_server):
    """A prefix with all the keys."""
    url = object_server.url("train", "list-objects-tests")
    store = open_store(url, object_server.config)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda key: store.put(key, b"1"), KEYS))
    return url


@pytest.fixture
def seen(object_server, fault_proxy):
    """The config that goes through the proxy."""
    return replace(object_server.config, endpoint=fault_proxy.endpoint)


def keys_of(index, url):
    """Without the part that the bucket's root puts before them."""
    prefix = url.removeprefix("s3://train/") + "/"
    return [key.removeprefix(prefix) for key in index.keys]


def pages_asked(proxy):
    return sum(1 for request in proxy.requests if request.bucket)


def test_every_key_once_sorted_in_few_requests(place, seen, fault_proxy):
    index = list_objects(f"{place}/", config=seen)
    assert keys_of(index, place) == KEYS
    assert set(index.sizes) == {1}
    assert all(index.etags)
    assert pages_asked(fault_proxy) <= 1.3 * math.ceil(len(KEYS) / 1000)


def test_it_finds_what_a_plain_listing_finds(place, object_server):
    found = list_objects(f"{place}/", config=object_server.config)
    store = open_store("s3://train", object_server.config)
    plain = sorted(store.list(f"{place.removeprefix('s3://train/')}/"), key=lambda m: m.key)
    assert [(m.key, m.size, m.etag) for m in found] == [(m.key, m.size, m.etag) for m in plain]


@pytest.mark.parametrize("ending", ["", "/da", "/data", "/data/", "/n/0", "/n/00001.jpg", "/none"])
def test_the_url_may_end_inside_a_segment(place, object_server, ending):
    index = list_objects(f"{place}{ending}", config=object_server.config)
    wanted = ending.removeprefix("/")
    assert keys_of(index, place) == [key for key in KEYS if key.startswith(wanted)]


@pytest.mark.parametrize("count", [0, 1, 10, 1000, 1001, 2500])
def test_few_keys_cost_what_a_plain_listing_does(
    store_url, object_server, seen, fault_proxy, count
):
    store = open_store(store_url, object_server.config)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda i: store.put(f"{i:04d}", b""), range(count)))
    index = list_objects(f"{store_url}/", config=seen)
    assert keys_of(index, store_url) == [f"{i:04d}" for i in range(count)]
    assert fault_proxy.count() == max(1, math.ceil(count / 1000))


@pytest.mark.parametrize("prefix", ["0", "00", "a0", "a/0", "a/a0", "!", "a", "a!", "é"])
def test_a_prefix_may_end_with_any_character(bucket_url, object_server, prefix):
    """What precedes `0` is the slash, which may not stand everywhere."""
    store = open_store(bucket_url, object_server.config)
    keys = ["!", "0", "00", "a", "a!", "a-b/0", "a0", "a/0", "a/00", "a/a", "a/a-", "a/a0", "é/0"]
    for key in keys:
        store.put(key, b"1")
    index = list_objects(f"{bucket_url}/{prefix}", config=object_server.config)
    wanted = sorted(key for key in keys if key.startswith(prefix))
    assert list(index.keys) == wanted
    assert sorted(meta.key for meta in store.list(prefix)) == wanted


FAULTS = {
    "503": lambda **m: Fault.status(503, **m),
    "429": lambda **m: Fault.status(429, **m),
    "reset": Fault.reset_before,
    "truncated": Fault.truncate,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_pages_that_fail_are_listed_again(place, seen, fault_proxy, fault):
    fault_proxy.add(FAULTS[fault](method="GET", rate=0.25, seed=7))
    index = list_objects(f"{place}/", config=seen, retry=FAST_RETRY)
    assert keys_of(index, place) == KEYS
    assert any(request.fault for request in fault_proxy.requests)


def test_a_page_that_keeps_failing_raises(place, seen, fault_proxy):
    fault_proxy.add(Fault.status(503, method="GET", skip=5))
    with pytest.raises(Throttled, match=r"after 8 attempts"):
        list_objects(f"{place}/", config=seen, retry=FAST_RETRY)


def test_retries_of_a_listing_are_its_own(place, seen, fault_proxy):
    fault_proxy.add(Fault.status(503, method="GET"))
    patient = replace(seen, retry=FAST_RETRY)
    with pytest.raises(Throttled, match="at the first attempt"):
        list_objects(f"{place}/", config=patient, retry=RetryConfig(max_attempts=1))
    assert fault_proxy.count() == 1


def test_progress_is_told(place, object_server):
    counts = []
    index = list_objects(f"{place}/", config=object_server.config, on_progress=counts.append)
    assert max(counts) == len(index)


def test_a_gcs_server_is_listed_the_same():
    with ObjectServer(["train"], gcs=True) as server:
        store = open_store(server.url("train"), server.config)
        keys = sorted(f"{mark}{i:04d}" for mark in ("a/", "a-", "b") for i in range(1500))
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda key: store.put(key, b""), keys))
        index = list_objects(server.url("train"), config=server.config)
    assert index.url == "gs://train"
    assert list(index.keys) == keys


def test_a_folder_on_disk(tmp_path):
    for name in ("a/1", "a/2", "a-b/1", "b"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "empty").touch()
    index = list_objects(tmp_path)
    assert list(index.keys) == ["a-b/1", "a/1", "a/2", "b", "empty"]
    assert index == list_objects(f"{tmp_path}/") == list_objects(f"file://{tmp_path}")
    assert bytes(open_store(index.url).get("a/1")) == b"a/1"
    part = list_objects(tmp_path / "a")
    assert (list(part.keys), bytes(open_store(part.url).get("2"))) == (["1", "2"], b"a/2")
    inside = list_objects(f"{tmp_path}/a-")
    assert (list(inside.keys), inside.url) == (["a-b/1"], index.url)
    with pytest.raises(BucketNotFound):
        list_objects(tmp_path / "no" / "such")


def test_memory():
    store = open_store("memory://listed")
    for key in ("x/1", "x/2", "y"):
        store.put(key, b"12")
    counts = []
    index = list_objects("memory://listed/x", on_progress=counts.append)
    assert [(meta.key, meta.size) for meta in index] == [("x/1", 2), ("x/2", 2)]
    assert index.url == "memory://listed"
    assert counts == [2]


def test_mistakes_are_named(object_server):
    with pytest.raises(ConfigError, match="threads must be at least 1, got 0"):
        list_objects("s3://train", threads=0)
    with pytest.raises(BucketNotFound):
        list_objects("s3://no-such-bucket", config=object_server.config)
