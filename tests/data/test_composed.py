"""Composed reads on GCS: fewer requests, never a neighbour's bytes, nothing left in the bucket.

Against gcp-storage-emulator, which composes. It does not list in GCS's XML dialect, so datasets are made from an index
with the ETags that GCS would list: the MD5 of each object.
"""

import hashlib
import http.client
import os
import pickle
import re
import signal
import subprocess
import sys
import time
import urllib.request
from itertools import pairwise
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from penstock import Index, IterableDataset, MapDataset, ObjectMeta, StoreConfig
from penstock.config import RetryConfig, TransferConfig
from penstock.data.composed import plan_groups, settle
from penstock.errors import ConfigError, NotFound, ObjectChanged
from penstock.testing import Fault, FaultProxy
from penstock.testing.process import LOOPBACK, OwnedProcess, free_ports

pytest.importorskip("google.cloud.storage", reason="needs penstock[gcs]")
pytest.importorskip("gcp_storage_emulator", reason="needs gcp-storage-emulator, of penstock[dev]")

MANY = 1_000_000
CONFIG = StoreConfig(
    retry=RetryConfig(max_attempts=2, deadline_s=0.5, backoff_initial_s=0.01),
    # The emulator serves one request at a time.
    transfer=TransferConfig(max_concurrency=4),
)


@pytest.fixture(scope="session")
def emulator(tmp_path_factory):
    """Where the emulator listens."""
    folder = tmp_path_factory.mktemp("gcs")
    port = free_ports(1)[0]
    process = OwnedProcess(
        [sys.executable, str(Path(__file__).with_name("gcs_emulator.py")), str(port)],
        env=os.environ,
        cwd=folder,
        log=folder / "log",
        litter=[],
    )
    url = f"http://{LOOPBACK}:{port}"
    deadline = time.monotonic() + 20
    while not _answers(url):
        assert process.running, process.log_tail()
        assert time.monotonic() < deadline, process.log_tail()
        time.sleep(0.05)
    yield url
    process.stop()


def _answers(url):
    try:
        with urllib.request.urlopen(url, timeout=1):
            return True
    except OSError:
        return False


class Bucket:
    """A bucket of its own for a test, seen without a proxy: what a process learnt of one is kept by its name."""

    numbers = iter(range(1000))

    def __init__(self, emulator):
        from google.auth.credentials import AnonymousCredentials
        from google.cloud.storage import Client

        self.name = f"composed-{os.getpid()}-{next(self.numbers)}"
        client = Client(
            project="tests",
            credentials=AnonymousCredentials(),
            client_options={"api_endpoint": emulator},
        )
        self._bucket = client.create_bucket(self.name)
        self._address = urlsplit(emulator).netloc
        self.url = f"gs://{self.name}"

    def put(self, key, data):
        if data:
            connection = http.client.HTTPConnection(self._address)
            connection.request("PUT", f"/{self.name}/{quote(key)}", data)
            assert connection.getresponse().status == 200
            connection.close()
        else:
            # The emulator stumbles over an empty PUT.
            self._bucket.blob(key).upload_from_string(data)
        return data

    def delete(self, key):
        self._bucket.blob(key).delete()

    def fill(self, count, *, size=None):
        return {
            f"train/{i:03} é": self.put(
                f"train/{i:03} é", b"%03d" % i * (i % 5 if size is None else size // 3)
            )
            for i in range(count)
        }

    @property
    def left_behind(self):
        return [blob.name for blob in self._bucket.list_blobs(prefix="penstock-composed/")]


@pytest.fixture
def bucket(emulator):
    return Bucket(emulator)


@pytest.fixture(scope="module")
def full(emulator):
    """A bucket that tests only read, and the 70 objects in it, some of them empty."""
    bucket = Bucket(emulator)
    return bucket, bucket.fill(70)


@pytest.fixture(scope="module")
def running_proxy(emulator):
    with FaultProxy(emulator) as proxy:
        yield proxy


@pytest.fixture
def proxy(running_proxy, monkeypatch):
    """In the way of everything that penstock asks of the emulator."""
    running_proxy.clear_faults()
    running_proxy.clear_log()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", running_proxy.endpoint)
    return running_proxy


def index_of(bucket, objects):
    metas = [ObjectMeta(key, len(data), f'"{md5(data)}"') for key, data in objects.items()]
    return Index.of(bucket.url, metas)


def md5(data):
    return hashlib.md5(data).hexdigest()


def map_dataset(bucket, objects, **options):
    options = {"max_composite_bytes": MANY, **options}
    return MapDataset.from_index(index_of(bucket, objects), config=CONFIG, **options)


def iterable_dataset(bucket, objects, **options):
    options = {"max_composite_bytes": MANY, **options}
    return IterableDataset.from_index(index_of(bucket, objects), config=CONFIG, **options)


def read_all(dataset):
    if isinstance(dataset, MapDataset):
        return dataset.__getitems__(range(len(dataset)))
    return list(dataset)


@given(
    st.lists(st.none() | st.integers(0, 50)),
    st.integers(1, 100),
)
def test_groups_are_runs_within_the_limits(sizes, max_bytes):
    groups = list(plan_groups(enumerate(sizes), max_bytes=max_bytes))
    assert [number for group in groups for number in group] == list(range(len(sizes)))
    for group in groups:
        assert 1 <= len(group) <= 32
        together = [sizes[number] for number in group]
        assert len(group) == 1 or (None not in together and sum(together) <= max_bytes)
    for one, other in pairwise(groups):
        both = [sizes[number] for number in [*one, other[0]]]
        assert None in both or len(both) > 32 or sum(both) > max_bytes


@pytest.mark.parametrize("make", [map_dataset, iterable_dataset])
def test_every_object_comes_in_order_for_three_requests_a_group(full, proxy, make):
    """Empty objects too, in a group with others."""
    bucket, objects = full
    samples = read_all(make(bucket, objects))
    assert [(sample.key, sample.data) for sample in samples] == list(objects.items())
    assert (proxy.count("POST"), proxy.count("DELETE")) == (3, 3)
    # Google's client asks once for what it can learn about the bucket.
    assert proxy.count("GET") <= 4
    assert bucket.left_behind == []


def test_objects_that_are_all_empty_are_read(bucket, proxy):
    objects = {f"e{i}": bucket.put(f"e{i}", b"") for i in range(3)}
    assert [sample.data for sample in read_all(map_dataset(bucket, objects))] == [b"", b"", b""]
    assert proxy.count("POST") == 1


def test_a_shuffled_epoch_has_every_object_once(full, proxy):
    bucket, objects = full
    dataset = iterable_dataset(bucket, objects, shuffle=True, seed=3)
    plain = iterable_dataset(bucket, objects, shuffle=True, seed=3, max_composite_bytes=0)
    samples = list(dataset)
    assert samples == list(plain)
    assert dict(samples) == objects


def test_it_is_off_by_default(full, proxy):
    dataset = MapDataset.from_index(index_of(*full), config=CONFIG)
    assert len(read_all(dataset[:3])) == 3
    assert [(request.method, request.status) for request in proxy.requests] == [("GET", 200)] * 3


def test_what_is_too_large_or_has_no_md5_is_read_alone(bucket, proxy):
    objects = bucket.fill(8, size=30)
    objects["train/003 é"] = bucket.put("train/003 é", bytes(200))
    metas = [*index_of(bucket, objects)]
    metas[6] = ObjectMeta(metas[6].key, metas[6].size)
    dataset = MapDataset.from_index(
        Index.of(bucket.url, metas), config=CONFIG, max_composite_bytes=100
    )
    assert [sample.data for sample in read_all(dataset)] == list(objects.values())
    # 0 to 2 and 4 to 5 together; 3, 6 and 7 alone.
    assert proxy.count("POST") == 2


def test_keys_may_be_relative_to_a_prefix(full, proxy):
    bucket, objects = full
    index = Index.of(
        f"{bucket.url}/train",
        [
            ObjectMeta(meta.key.removeprefix("train/"), meta.size, meta.etag)
            for meta in index_of(bucket, objects)
        ],
    )
    dataset = MapDataset.from_index(index, config=CONFIG, max_composite_bytes=MANY)[:5]
    assert [sample.data for sample in read_all(dataset)] == list(objects.values())[:5]
    assert proxy.count("POST") == 1


def test_a_slice_and_a_pickle_compose_too(full, proxy):
    bucket, objects = full
    dataset = pickle.loads(pickle.dumps(map_dataset(bucket, objects)))[2:8]
    assert [sample.data for sample in read_all(dataset)] == list(objects.values())[2:8]
    assert proxy.count("POST") == 1


@pytest.mark.parametrize("make", [map_dataset, iterable_dataset])
@pytest.mark.parametrize(
    "changes",
    [
        {3: b"other, and longer"},
        {3: b"X" * 30},
        {3: b"longer" * 6, 4: b"shorter" * 3 + b"abc"},
    ],
    ids=["longer", "as-long", "lengths-that-cancel-out"],
)
def test_a_changed_object_is_an_error_of_its_own_and_of_no_neighbour(bucket, proxy, make, changes):
    objects = bucket.fill(12, size=30)
    seen = {}
    dataset = make(bucket, objects, on_error=lambda key, error: seen.setdefault(key, error) and key)
    keys = list(objects)
    for number, data in changes.items():
        bucket.put(keys[number], data)
    samples = read_all(dataset)
    assert [*seen] == [keys[number] for number in changes]
    assert all(isinstance(error, ObjectChanged) for error in seen.values())
    for number, (key, data) in enumerate(objects.items()):
        assert samples[number] == (key if number in changes else (key, data))
    assert bucket.left_behind == []


def test_a_vanished_object_is_left_out_and_the_others_are_right(bucket, proxy):
    objects = bucket.fill(12, size=30)
    dataset = map_dataset(bucket, objects, on_error="skip")
    bucket.delete("train/005 é")
    del objects["train/005 é"]
    assert [sample.data for sample in read_all(dataset)] == list(objects.values())
    with pytest.raises(NotFound, match=r"train/005 é: no such object"):
        read_all(map_dataset(bucket, {**objects, "train/005 é": b"5"}))
    assert bucket.left_behind == []


def test_a_composed_object_is_gone_when_its_read_fails(bucket, proxy):
    objects = bucket.fill(5)
    proxy.add(Fault.status(500, method="GET", key="penstock-composed/*"))
    dataset = map_dataset(bucket, objects)
    with pytest.warns(RuntimeWarning, match="read one by one from now on"):
        samples = read_all(dataset)
    assert [sample.data for sample in samples] == list(objects.values())
    assert proxy.count("DELETE") == 1
    assert bucket.left_behind == []


def test_a_composed_object_is_gone_when_the_answer_was_lost(bucket, proxy):
    """The store has made it, and nobody was told."""
    objects = bucket.fill(5)
    proxy.add(Fault.reset_after(method="POST"))
    with pytest.warns(RuntimeWarning, match="read one by one from now on"):
        samples = read_all(map_dataset(bucket, objects))
    assert [sample.data for sample in samples] == list(objects.values())
    assert bucket.left_behind == []


def stalled_groups(bucket, proxy):
    """Objects of which the first is read alone, and arrives while the groups of the others are composed and read."""
    objects = bucket.fill(24, size=30)
    objects["train/000 é"] = bucket.put("train/000 é", bytes(200))
    proxy.add(Fault.latency(300, method="GET", key="train/*"))
    proxy.add(Fault.latency(1300, method="GET", key="penstock-composed/*"))
    return objects


def test_composed_objects_are_gone_when_an_iterator_is_abandoned(bucket, proxy):
    objects = stalled_groups(bucket, proxy)
    samples = iter(iterable_dataset(bucket, objects, max_composite_bytes=120))
    assert next(samples).data == objects["train/000 é"]
    samples.close()
    assert settle(timeout_s=20)
    assert bucket.left_behind == []


@pytest.mark.parametrize("make", [map_dataset, iterable_dataset])
def test_without_the_permission_to_compose_objects_are_read_plainly(bucket, proxy, make):
    objects = bucket.fill(12, size=30)
    proxy.add(Fault.status(403, method="POST"))
    dataset = make(bucket, objects, max_composite_bytes=120)
    with pytest.warns(RuntimeWarning) as said:
        assert [sample.data for sample in read_all(dataset)] == list(objects.values())
    assert len(said) == 1
    assert re.match(rf"{bucket.url}: objects are read one by one .* \(403\)", str(said[0].message))
    asked = proxy.count("POST")
    assert [sample.data for sample in read_all(dataset)] == list(objects.values())
    assert proxy.count("POST") == asked
    assert proxy.count("DELETE") == 0


def test_without_the_permission_to_delete_one_warning_says_how_to_clean_up(bucket, proxy):
    objects = bucket.fill(5)
    proxy.add(Fault.status(403, method="DELETE"))
    dataset = map_dataset(bucket, objects)
    with pytest.warns(RuntimeWarning, match=f"penstock gcs-clean {bucket.url}"):
        assert [sample.data for sample in read_all(dataset)] == list(objects.values())
    assert [sample.data for sample in read_all(dataset)] == list(objects.values())
    assert proxy.count("POST") == 1


def test_a_store_that_cannot_compose_is_read_plainly(bucket, proxy):
    objects = bucket.fill(5)
    proxy.add(Fault.status(501, method="POST"))
    dataset = map_dataset(bucket, objects)
    with pytest.warns(RuntimeWarning, match="501"):
        assert [sample.data for sample in read_all(dataset)] == list(objects.values())
    assert [sample.data for sample in read_all(dataset)] == list(objects.values())
    assert proxy.count("POST") == 1


def test_a_worker_that_ends_early_leaves_nothing(bucket, proxy):
    objects = stalled_groups(bucket, proxy)
    loader = DataLoader(
        iterable_dataset(bucket, objects, max_composite_bytes=120),
        batch_size=None,
        num_workers=1,
        multiprocessing_context="fork",
    )
    assert next(iter(loader)).data == objects["train/000 é"]
    assert bucket.left_behind == []


INTERRUPTED = """
import os, pickle, signal, sys
dataset = pickle.load(sys.stdin.buffer)
samples = iter(dataset)
next(samples)
os.kill(os.getpid(), signal.SIGINT)
"""


def test_a_process_that_is_interrupted_leaves_nothing(bucket, proxy):
    objects = stalled_groups(bucket, proxy)
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED],
        input=pickle.dumps(iterable_dataset(bucket, objects, max_composite_bytes=120)),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGINT, done.stderr.decode()
    assert b"KeyboardInterrupt" in done.stderr
    assert proxy.count("POST") > 1
    assert bucket.left_behind == []


@pytest.mark.parametrize("kind", [MapDataset, IterableDataset])
@pytest.mark.parametrize(
    ("url", "max_bytes", "message"),
    [
        ("s3://train", 100, "only Google Cloud Storage composes"),
        ("memory://train", 100, "only Google Cloud Storage composes"),
        ("gs://train", -1, "must not be negative, got -1"),
    ],
)
def test_what_cannot_be_composed_is_refused(kind, url, max_bytes, message):
    index = Index.of(url, [ObjectMeta("key", 1)])
    with pytest.raises(ConfigError, match=message):
        kind.from_index(index, max_composite_bytes=max_bytes)


def test_keys_without_sizes_are_refused():
    with pytest.raises(ConfigError, match="from_objects does not know"):
        MapDataset.from_objects(["gs://train/a"], max_composite_bytes=100)


def test_the_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "google.cloud.storage", None)
    index = Index.of("gs://train", [ObjectMeta("key", 1)])
    with pytest.raises(ConfigError, match=r"pip install 'penstock\[gcs\]'"):
        IterableDataset.from_index(index, max_composite_bytes=100)


@pytest.fixture
def clean(emulator, tmp_path):
    def _clean(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "penstock.cli", "gcs-clean", *arguments],
            env={**os.environ, "STORAGE_EMULATOR_HOST": emulator},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return _clean


def test_gcs_clean_shows_and_then_removes_what_was_left_behind(bucket, clean):
    orphan = f"penstock-composed/{'0a' * 16}"
    bucket.put(orphan, bytes(2048))
    bucket.put("penstock-composed/notes.txt", b"somebody's own")
    bucket.put("train/1", b"1")

    shown = clean(f"{bucket.url}/train", "--older-than", "0s")
    assert shown.stderr == ""
    assert re.fullmatch(
        rf" +0m \ds +2\.0 KiB  {orphan}\n1 composed object, 2\.0 KiB, found; --delete removes them\.\n",
        shown.stdout,
    )
    young = clean(bucket.url, "--delete")
    assert young.stdout == f"Nothing in {bucket.url}/penstock-composed/ is older than 1h.\n"
    assert orphan in bucket.left_behind

    removed = clean(bucket.url, "--older-than", "0s", "--delete")
    assert removed.stdout.endswith("1 composed object, 2.0 KiB, removed.\n")
    assert bucket.left_behind == ["penstock-composed/notes.txt"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["s3://train"], "only Google Cloud Storage composes"),
        (["gs://no-such-bucket-anywhere"], "no such bucket"),
    ],
)
def test_gcs_clean_says_a_mistake_in_one_line(clean, arguments, message):
    done = clean(*arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
