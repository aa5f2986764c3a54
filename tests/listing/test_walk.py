"""The walk against a pager in memory: every key exactly once, few requests, whatever the keys and their order.

The pager implements the store's `Pages`, which is where a walk ends and a store begins.
"""

import math
import random
import string
import threading
from bisect import bisect_right

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import Throttled
from penstock.listing.index import Builder, assemble
from penstock.listing.parts import OutOfOrder
from penstock.listing.walk import walk
from penstock.store import KeyOrder, Page

PAGE = 1000
BOTH = pytest.mark.parametrize("order", KeyOrder)


class Pager:
    """A store's listing: sorted in its order, asked page by page, counting. Placeholders end with a slash."""

    def __init__(self, keys, order=KeyOrder.UTF8):
        self._order = order
        self.keys = sorted(keys, key=self.position)
        self.positions = [self.position(key) for key in self.keys]
        self.lock = threading.Lock()
        self.requests = 0
        self.most_at_once = 0
        self.at_once = 0

    def position(self, key):
        return key.replace("/", "\0") if self._order is KeyOrder.PATH else key

    def order(self):
        return self._order

    def pages(self, prefix, *, start_after):
        at = self.start(start_after)
        while True:
            keys = self.request(at)
            yield Page(
                [key.removesuffix("/") for key in keys],
                [0 if key.endswith("/") else 1 for key in keys],
                [None] * len(keys),
            )
            at += PAGE
            if at >= len(self.keys):
                return

    def start(self, start_after):
        if start_after is None:
            return 0
        at = bisect_right(self.positions, self.position(start_after))
        if self._order is KeyOrder.PATH:
            # SeaweedFS, told to start after a folder, leaves out what is in it.
            folder = f"{start_after.removesuffix('/')}/"
            while at < len(self.keys) and self.keys[at].startswith(folder):
                at += 1
        return at

    def request(self, at):
        with self.lock:
            self.requests += 1
        return self.keys[at : at + PAGE]

    @property
    def fewest_requests(self):
        return max(1, math.ceil(len(self.keys) / PAGE))


def walked(pager, *, threads=32, prefix="", on_progress=None):
    built = walk(pager, prefix, threads=threads, collector=Builder, on_progress=on_progress)
    return assemble("memory://fake", built)


def names(rng, count, alphabet, length):
    return {"".join(rng.choices(alphabet, k=length)) for _ in range(count)}


RNG = random.Random(0)
LAYOUTS = {
    "counted": [f"{i:08d}.jpg" for i in range(30_000)],
    "counted without zeros": [f"image_{i}.jpg" for i in range(30_000)],
    "hashed": names(RNG, 30_000, "0123456789abcdef", 32),
    "mixed case": names(RNG, 30_000, string.ascii_letters + string.digits + "-_. ", 10),
    "one deep prefix": [f"{'deep/' * 40}{'x' * 100}/{i:06d}" for i in range(20_000)],
    "folders of equal size": [f"class{i % 30:02d}/{i:06d}.txt" for i in range(30_000)],
    "one folder has nearly all": [f"{c}/0" for c in "abcdefxyz"]
    + [f"m/{i:05d}" for i in range(20_000)],
    "dates": [
        f"2024-{m:02d}-{d:02d}/{i:03d}"
        for m in range(1, 13)
        for d in range(1, 29)
        for i in range(60)
    ],
    "folders beside their namesakes": [
        f"{name}{mark}{i:04d}"
        for name in ("a", "b", "data")
        for mark in "/-.!0z"
        for i in range(900)
    ],
    "unicode": names(RNG, 20_000, "aé漢字😀\U0010fffdß퟿", 8),
    "differ in the last character": [f"{'x' * 60}{chr(0x4E00 + i)}" for i in range(15_000)],
    "each is a prefix of the next": ["a" * i for i in range(1, 900)]
    + [f"{'a' * 900}{i:05d}" for i in range(8000)],
    "clusters far apart": [
        f"{c}{c}{c}{i:04d}" for c in "!0AZaz~é漢" for i in RNG.sample(range(10_000), 2500)
    ],
    "growing apart": [f"{2**i:040d}" for i in range(100)] + [f"{i:040d}" for i in range(9000)],
}


@BOTH
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_key_comes_exactly_once_and_sorted_in_few_requests(layout, order):
    pager = Pager(LAYOUTS[layout], order)
    index = walked(pager)
    assert list(index.keys) == sorted(LAYOUTS[layout])
    assert pager.requests <= 1.3 * pager.fewest_requests


@BOTH
def test_a_million_keys_under_one_prefix(order):
    keys = [f"train/{i:07d}" for i in range(1_000_000)]
    pager = Pager(keys, order)
    index = walked(pager, prefix="train/")
    assert list(index.keys) == keys
    assert pager.requests <= 1100


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(0, 12_000),
    st.text("abz/-.0é漢 ", min_size=2, max_size=6),
    st.integers(3, 12),
    st.sampled_from(KeyOrder),
)
def test_random_keys_come_exactly_once(seed, count, alphabet, length, order):
    rng = random.Random(seed)
    drawn = ("".join(rng.choices(alphabet, k=rng.randrange(1, length))) for _ in range(count))
    keys = {key for key in drawn if "" not in key.split("/")}
    pager = Pager(keys, order)
    assert list(walked(pager).keys) == sorted(keys)
    assert pager.requests <= 1.3 * pager.fewest_requests


@pytest.mark.parametrize("count", [0, 1, 10, 999, 1000, 1001, 2000, 2500, 3000, 3999])
def test_a_small_prefix_costs_what_a_plain_listing_does(count):
    pager = Pager([f"{i:06d}" for i in range(count)])
    assert len(walked(pager)) == count
    assert pager.requests == pager.fewest_requests


@pytest.mark.parametrize("count", [*range(4000, 14_000, 777), 4000, 5000, 7000, 10_000, 13_000])
def test_the_bound_on_requests_holds_wherever_the_keys_end(count):
    pager = Pager([f"{i:06d}" for i in range(count)])
    assert len(walked(pager)) == count
    assert pager.requests <= 1.3 * pager.fewest_requests


def test_one_thread_lists_plainly():
    pager = Pager(LAYOUTS["counted"])
    assert len(walked(pager, threads=1)) == 30_000
    assert pager.requests == 30


class Gathering(Pager):
    """Lets a request through only when as many as wanted are waiting, once the walk has had time to widen."""

    def __init__(self, keys, wanted):
        super().__init__(keys)
        self.barrier = threading.Barrier(wanted)

    def request(self, at):
        page = super().request(at)
        if self.requests > 30 and not self.barrier.broken:
            try:
                self.barrier.wait(timeout=0.5)
                self.met = True
            except threading.BrokenBarrierError:
                pass
        return page


def test_threads_list_side_by_side():
    pager = Gathering([f"{i:08d}" for i in range(100_000)], wanted=4)
    walked(pager)
    assert pager.met


@BOTH
@pytest.mark.parametrize("seed", range(8))
def test_placeholders_of_folders_are_left_out_and_empty_objects_kept(order, seed):
    """`folder/` objects come without their slash, out of order where `folder-2` is. As in a plain listing."""
    rng = random.Random(seed)
    folders = [f"{name}{mark}" for name in names(rng, 400, "ab01", 4) for mark in ("", "-2", ".d")]
    keys = {f"{folder}/{i:02d}" for folder in folders for i in range(rng.randrange(14))}
    placeholders = {f"{folder}/" for folder in rng.sample(folders, 500)}
    plain = walked(Pager(keys | placeholders, order), threads=1)
    pager = Pager(keys | placeholders, order)
    assert list(walked(pager)) == list(plain)
    assert pager.requests > 4
    full = {key.rpartition("/")[0] for key in keys}
    empty = {placeholder.removesuffix("/") for placeholder in placeholders}
    assert set(plain.keys) == keys | (empty - full)


class Failing(Pager):
    """Fails one request."""

    def __init__(self, keys, which):
        super().__init__(keys)
        self.which = which

    def request(self, at):
        page = super().request(at)
        if self.requests == self.which:
            raise Throttled(f"request {self.which}")
        return page


@pytest.mark.parametrize("which", [1, 4, 6, 20, 60])
def test_an_error_ends_the_walk_and_is_raised(which):
    """Retries are the store's; what still fails is final."""
    pager = Failing([f"{i:08d}" for i in range(100_000)], which)
    before = threading.active_count()
    with pytest.raises(Throttled, match=f"request {which}"):
        walked(pager)
    assert pager.requests < which + 40
    assert threading.active_count() == before


def test_an_error_of_the_progress_callback_is_raised():
    def fail(count):
        if count > 20_000:
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        walked(Pager(LAYOUTS["counted"]), on_progress=fail)


def test_progress_ends_with_the_number_of_keys():
    counts = []
    walked(Pager(LAYOUTS["counted"]), on_progress=counts.append)
    assert max(counts) == 30_000
    assert counts[:3] == [1000, 2000, 3000]


class Deaf(Pager):
    """Ignores where it is told to start, as some emulators do."""

    def start(self, start_after):
        return 0


def test_a_store_that_ignores_where_to_start_is_listed_correctly():
    keys = LAYOUTS["counted"][:9000]
    assert list(walked(Deaf(keys)).keys) == keys


class Shuffled(Pager):
    """Lists in an order of its own, as S3 directory buckets do, from some key on."""

    def __init__(self, keys, ordered):
        super().__init__(keys)
        rest = self.keys[ordered:]
        random.Random(0).shuffle(rest)
        self.keys[ordered:] = rest


def test_a_store_without_order_is_not_split():
    pager = Shuffled(LAYOUTS["counted"], ordered=0)
    assert list(walked(pager).keys) == LAYOUTS["counted"]
    assert pager.requests == 30


def test_a_store_whose_order_breaks_later_says_so():
    with pytest.raises(OutOfOrder):
        walked(Shuffled(LAYOUTS["counted"], ordered=8000))
