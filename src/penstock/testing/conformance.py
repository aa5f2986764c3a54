"""The claims every store must hold, as a suite to inherit: give it a `store` fixture and run pytest.

```python
class TestMyStore(StoreConformance, ConditionalPutConformance):
    @pytest.fixture
    def store(self):
        return penstock.open_store("s3://my-bucket/conformance", my_config)
```

The store may hold other objects; the suite writes below a fresh prefix and removes it. Each test's name and
docstring is a claim; `python -m penstock.testing.conformance` prints them all.
"""

import inspect
import multiprocessing
import os
import pickle
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from penstock.errors import (
    AlreadyExists,
    InvalidUrl,
    NotFound,
    ObjectChanged,
    PreconditionFailed,
)
from penstock.store import Store, open_store

__all__ = [
    "ConditionalPutConformance",
    "ConditionalReplaceConformance",
    "FlatKeysConformance",
    "StoreConformance",
    "claims",
]

ODD_KEYS = (
    "a space",
    "per%cent",
    "per%20cent",
    "per%2Fcent",
    "plus+plus",
    "hash#hash",
    "question?mark=1&more",
    "ünïcödé/日本語/😀.jpg",
    "e\u0301 is not \u00e9",
    "quote'\"<tag>",
    "star*[x]{y}|^`~!@$(),;:=",
    "...three.dots",
    "UPPER/lower",
)
REFUSED_KEYS = (
    "",
    "/leading",
    "trailing/",
    "double//slash",
    "..",
    "a/../b",
    "a/..",
    "./a",
    "a/./b",
    "new\nline",
    "nul\0",
)


class _Suite:
    """A store of its own for each test: a fresh prefix under the one the user's fixture gives."""

    @pytest.fixture
    def store(self) -> Store:
        """The store to test; override it."""
        raise NotImplementedError("define a `store` fixture that returns a penstock store")

    @pytest.fixture
    def fresh(self, store: Store) -> Iterator[Store]:
        """A store at a fresh prefix, emptied afterwards."""
        inner = open_store(f"{store.url.rstrip('/')}/{uuid.uuid4().hex}", store.config)
        yield inner
        try:
            left = [meta.key for meta in inner.list()]
        except NotFound:
            return
        inner.delete(left)


class StoreConformance(_Suite):
    """What all stores do alike."""

    def test_get_returns_what_put_wrote(self, fresh: Store) -> None:
        """`get` returns exactly the bytes of the last `put`, for empty, small and large objects."""
        for size in (0, 1, 1000, 5 << 20):
            data = os.urandom(size)
            fresh.put("object", data)
            assert fresh.get("object") == data

    def test_put_takes_any_buffer(self, fresh: Store) -> None:
        """`put` takes bytes, bytearray, and memoryviews of any shape and stride."""
        data = bytes(range(250))
        for buffer in (
            data,
            bytearray(data),
            memoryview(data),
            memoryview(data).cast("B", (25, 10)),
        ):
            fresh.put("buffer", buffer)
            assert fresh.get("buffer") == data
        fresh.put("strided", memoryview(data)[::2])
        assert fresh.get("strided") == data[::2]

    def test_put_replaces_whole(self, fresh: Store) -> None:
        """A `put` over a longer object leaves nothing of it, and gives it another ETag."""
        first = fresh.put("key", b"a longer value")
        second = fresh.put("key", b"short")
        assert fresh.get("key") == b"short"
        assert first.etag != second.etag

    def test_ranges_are_half_open_slices(self, fresh: Store) -> None:
        """`get(start=, stop=)` equals the slice of the whole, past the end and empty ranges included."""
        data = os.urandom(1000)
        fresh.put("key", data)
        for start, stop in (
            (0, 1),
            (0, 1000),
            (10, 20),
            (999, 1000),
            (990, 2000),
            (5, None),
            (None, 7),
            (3, 3),
        ):
            assert fresh.get("key", start=start, stop=stop) == data[start:stop]
        assert fresh.get("key", start=1000) == b""
        assert fresh.get("key", start=5000, stop=6000) == b""

    def test_bad_ranges_are_refused(self, fresh: Store) -> None:
        """A negative start, or a stop before it, is a ValueError before any request."""
        for start, stop in ((-1, None), (5, 4), (0, -1)):
            with pytest.raises(ValueError, match="range needs"):
                fresh.get("key", start=start, stop=stop)

    def test_get_into_fills_the_callers_buffer(self, fresh: Store) -> None:
        """`get_into` writes into the given memory from `start` on and returns how much there was."""
        data = os.urandom(100_000)
        fresh.put("key", data)
        buffer = bytearray(b"\xff" * 1000)
        assert fresh.get_into("key", buffer, start=500) == 1000
        assert buffer == data[500:1500]
        assert fresh.get_into("key", buffer, start=99_990) == 10
        assert buffer[:10] == data[99_990:]
        assert buffer[10:] == data[510:1500]
        assert fresh.get_into("key", buffer, start=200_000) == 0
        assert fresh.get_into("key", bytearray(0)) == 0
        with pytest.raises(ValueError, match="writable"):
            fresh.get_into("key", b"read-only")

    def test_get_object_carries_the_metadata(self, fresh: Store) -> None:
        """`get_object` knows key, whole size and ETag, for a range too."""
        fresh.put("key", b"0123456789")
        got = fresh.get_object("key", start=2, stop=5)
        assert got.data == b"234"
        assert (got.meta.key, got.meta.size) == ("key", 10)
        assert got.meta.etag == fresh.head("key").etag

    def test_head_tells_size_etag_and_time(self, fresh: Store) -> None:
        """`head` agrees with what `put` returned and with the listing."""
        put = fresh.put("key", b"12345")
        head = fresh.head("key")
        assert (head.key, head.size, head.etag) == ("key", 5, put.etag)
        assert head.last_modified is not None
        assert [(meta.key, meta.size, meta.etag) for meta in fresh.list()] == [("key", 5, put.etag)]

    def test_missing_objects_raise_not_found(self, fresh: Store) -> None:
        """`get`, `get_into`, `head` and `copy` of a missing key raise NotFound, which is a FileNotFoundError."""
        fresh.put("present", b"1")
        calls = (
            fresh.get,
            fresh.head,
            lambda key: fresh.get_into(key, bytearray(1)),
            lambda key: fresh.copy(key, "to"),
        )
        for call in calls:
            with pytest.raises(NotFound, match="missing") as caught:
                call("missing")
            assert isinstance(caught.value, FileNotFoundError)

    def test_exists_is_a_question(self, fresh: Store) -> None:
        """`exists` answers True or False, and does not take a prefix for an object."""
        fresh.put("folder/key", b"1")
        assert fresh.exists("folder/key")
        assert not fresh.exists("folder")
        assert not fresh.exists("folder/ke")

    @pytest.mark.parametrize("key", ODD_KEYS)
    def test_odd_keys_round_trip_exactly(self, fresh: Store, key: str) -> None:
        """Spaces, `%`, `+`, `#`, `?`, quotes and unicode survive put, get, head, list, copy and delete."""
        fresh.put(key, key.encode())
        assert fresh.get(key) == key.encode()
        assert fresh.head(key).key == key
        assert [meta.key for meta in fresh.list()] == [key]
        fresh.copy(key, f"copy of {key}")
        assert fresh.get(f"copy of {key}") == key.encode()
        fresh.delete(key)
        assert [meta.key for meta in fresh.list()] == [f"copy of {key}"]

    @pytest.mark.parametrize("key", REFUSED_KEYS)
    def test_keys_that_would_change_are_refused(self, fresh: Store, key: str) -> None:
        """A leading, trailing or double slash, `.`, `..` or a control character is refused before any request."""
        for call in (
            fresh.get,
            fresh.head,
            fresh.exists,
            fresh.delete,
            lambda key: fresh.put(key, b""),
        ):
            with pytest.raises(InvalidUrl):
                call(key)

    def test_list_finds_every_key_once(self, fresh: Store) -> None:
        """Every key exactly once, over several pages, zero-byte objects included."""
        keys = {f"part-{i % 7}/{i:05}" for i in range(1100)}
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda key: fresh.put(key, b""), keys))
        listed = [meta.key for meta in fresh.list()]
        assert len(listed) == len(keys)
        assert set(listed) == keys

    def test_prefixes_may_end_anywhere(self, fresh: Store) -> None:
        """A prefix selects by the characters of the key, also inside a path segment."""
        keys = ("a/b", "a/bc/d", "a/bc-d", "a/bd", "a/c", "ab", "b", "a/b\u00e9", "a/a")
        for key in keys:
            fresh.put(key, b"1")
        for prefix in (
            "",
            "a",
            "a/",
            "a/b",
            "a/bc",
            "a/bc/",
            "a/b\u00e9",
            "ab",
            "b",
            "z",
            "a/z",
            "a/b/",
        ):
            listed = [meta.key for meta in fresh.list(prefix)]
            assert sorted(listed) == sorted(key for key in keys if key.startswith(prefix)), prefix

    def test_start_after_leaves_out_what_comes_before(self, fresh: Store) -> None:
        """`start_after` keeps exactly the keys that sort after it by their UTF-8 bytes."""
        keys = ("a-b/x", "a/x", "a/y", "a0", "b/c/d", "b0", "\u00e9", "\uffee", "\U0001f600")
        for key in keys:
            fresh.put(key, b"1")
        for after in (*keys, "", "a", "a/", "a-", "b/c", "zz"):
            listed = [meta.key for meta in fresh.list(start_after=after)]
            assert sorted(listed) == sorted(key for key in keys if key.encode() > after.encode()), (
                after
            )
        assert [meta.key for meta in fresh.list("a/", start_after="a/x")] == ["a/y"]

    def test_list_dirs_names_the_folders(self, fresh: Store) -> None:
        """`list_dirs` gives the folders directly below a prefix, with their slash, sorted."""
        for key in ("x/1", "x/y/2", "x/z/3", "w/4", "top"):
            fresh.put(key, b"1")
        assert [*fresh.list_dirs()] == ["w/", "x/"]
        assert [*fresh.list_dirs("x/")] == ["x/y/", "x/z/"]
        assert [*fresh.list_dirs("x/y")] == ["x/y/"]
        assert [*fresh.list_dirs("nothing/")] == []

    def test_delete_forgives_what_is_not_there(self, fresh: Store) -> None:
        """`delete` takes one key or many and removes those that exist, wherever the missing ones stand."""
        for key in ("a", "b", "c"):
            fresh.put(key, b"1")
        fresh.delete("a")
        fresh.delete("a")
        fresh.delete(key for key in ("missing", "b", "missing too", "c"))
        fresh.delete([])
        assert not any(fresh.exists(key) for key in "abc")

    def test_copy_replaces_the_target(self, fresh: Store) -> None:
        """`copy` leaves two equal objects, whatever the target was."""
        fresh.put("source", b"new")
        fresh.put("target", b"old and longer")
        fresh.copy("source", "target")
        assert fresh.get("target") == fresh.get("source") == b"new"

    def test_if_match_pins_a_read_to_one_version(self, fresh: Store) -> None:
        """`get(if_match=)` reads that version or raises ObjectChanged; never other bytes."""
        first = fresh.put("key", b"first")
        assert fresh.get("key", start=0, stop=2, if_match=first.etag) == b"fi"
        assert fresh.get_into("key", bytearray(5), if_match=first.etag) == 5
        fresh.put("key", b"second")
        with pytest.raises(ObjectChanged, match="key"):
            fresh.get("key", if_match=first.etag)
        with pytest.raises(ObjectChanged):
            fresh.get_into("key", bytearray(5), if_match=first.etag)

    def test_threads_share_a_store(self, fresh: Store) -> None:
        """One store serves many threads at once, each its own object."""
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda i: fresh.put(f"{i}", b"%d" % i), range(200)))
            assert [bytes(data) for data in pool.map(lambda i: fresh.get(f"{i}"), range(200))] == [
                b"%d" % i for i in range(200)
            ]

    def test_a_store_pickles_as_its_recipe(self, fresh: Store) -> None:
        """A pickled store is small, reopens where it was, and shows no secret in its repr."""
        fresh.put("key", b"value")
        frozen = pickle.dumps(fresh)
        assert len(frozen) < 2000
        assert pickle.loads(frozen).get("key") == b"value"  # noqa: S301 - pickled in the line above
        assert repr(fresh) == f"{type(fresh).__name__}({fresh.url!r})"

    def test_a_forked_child_reads_while_the_parent_does(self, fresh: Store) -> None:
        """A child forked while the parent's threads are reading, reads, lists and writes on its own."""
        data = os.urandom(100_000)
        fresh.put("key", data)
        stop = threading.Event()
        with ThreadPoolExecutor(2) as pool:
            readers = [pool.submit(_read_until, fresh, stop) for _ in range(2)]
            try:
                context = multiprocessing.get_context("fork")
                child = context.Process(target=_check_in_child, args=(fresh, data))
                child.start()
                child.join(60)
                alive = child.is_alive()
                if alive:
                    child.kill()
                assert not alive, "the forked child hangs"
                assert child.exitcode == 0
            finally:
                stop.set()
            for reader in readers:
                reader.result(30)


class FlatKeysConformance(_Suite):
    """Stores without folders, where a key may continue another."""

    def test_a_key_may_continue_another(self, fresh: Store) -> None:
        """`a` and `a/b` are two objects, listed both, read and deleted one by one."""
        for key in ("a", "a/b", "a/b/c"):
            fresh.put(key, key.encode())
        assert sorted(meta.key for meta in fresh.list("a")) == ["a", "a/b", "a/b/c"]
        assert sorted(meta.key for meta in fresh.list(start_after="a")) == ["a/b", "a/b/c"]
        assert sorted(meta.key for meta in fresh.list("a/")) == ["a/b", "a/b/c"]
        fresh.delete("a")
        assert fresh.get("a/b") == b"a/b"


class ConditionalPutConformance(_Suite):
    """Stores that can refuse to overwrite."""

    def test_if_absent_writes_once(self, fresh: Store) -> None:
        """`put(if_absent=True)` creates, and raises AlreadyExists from then on, leaving the first bytes."""
        fresh.put("key", b"first", if_absent=True)
        with pytest.raises(AlreadyExists, match="key") as caught:
            fresh.put("key", b"second", if_absent=True)
        assert isinstance(caught.value, FileExistsError)
        assert fresh.get("key") == b"first"

    def test_of_many_racing_writers_one_wins(self, fresh: Store) -> None:
        """Of 16 concurrent `put(if_absent=True)` of one key exactly one succeeds, and its bytes are there."""

        def attempt(i: int) -> bytes | None:
            try:
                fresh.put("race", b"%d" % i, if_absent=True)
            except AlreadyExists:
                return None
            return b"%d" % i

        with ThreadPoolExecutor(16) as pool:
            winners = [won for won in pool.map(attempt, range(16)) if won is not None]
        assert len(winners) == 1
        assert fresh.get("race") == winners[0]


class ConditionalReplaceConformance(_Suite):
    """Stores that can compare and swap."""

    def test_if_match_replaces_only_that_version(self, fresh: Store) -> None:
        """`put(if_match=)` replaces the version it names and raises PreconditionFailed for any other, or none."""
        first = fresh.put("key", b"first")
        fresh.put("key", b"second", if_match=first.etag)
        with pytest.raises(PreconditionFailed, match="key"):
            fresh.put("key", b"third", if_match=first.etag)
        assert fresh.get("key") == b"second"
        with pytest.raises((PreconditionFailed, NotFound)):
            fresh.put("never written", b"", if_match=first.etag)


def claims() -> list[tuple[str, str]]:
    """Every claim of the suite: the test's name in words, and what it says."""
    suites = (
        StoreConformance,
        FlatKeysConformance,
        ConditionalPutConformance,
        ConditionalReplaceConformance,
    )
    return [
        (name.removeprefix("test_").replace("_", " "), inspect.getdoc(test) or "")
        for suite in suites
        for name, test in vars(suite).items()
        if name.startswith("test_")
    ]


def _read_until(store: Store, stop: threading.Event) -> None:
    while not stop.is_set():
        store.get("key")


def _check_in_child(store: Store, data: bytes) -> None:
    assert store.get("key") == data
    assert [meta.key for meta in store.list()] == ["key"]
    store.put("from the child", b"1")


def _print_claims(write: Any = print) -> None:
    for name, text in claims():
        write(f"- {name}: {text}")


if __name__ == "__main__":
    _print_claims()
