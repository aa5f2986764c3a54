"""Resume anywhere: random worlds, positions and orders for every streaming dataset, its workers simulated."""

from collections import Counter
from itertools import islice, pairwise
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.made import parquet_of, tar_of
from tests.data.simulated import in_turn

import penstock
from penstock.data import merge_states
from penstock.data.lanes import Place

SAMPLES = 37


def key_of(sample):
    return [sample.key]


def rows_of(batch):
    return batch.data["id"]


class Kind:
    """A dataset under test: how it is made, and which samples a value of it holds."""

    def __init__(self, url, dataset, ids, *, batches=False, **options):
        self._make, self._url, self._options = dataset, url, options
        self.ids, self.batches = ids, batches

    def __call__(self, rank, batch, **options):
        size = {"batch_rows": batch} if self.batches else {"batch_size": batch}
        return self._make(self._url, rank=rank, **size, **self._options, **options)


@pytest.fixture(scope="module")
def kinds():
    """One of each, of 37 samples in five objects of uneven size, or as many objects."""
    store = penstock.open_store("memory://elastic")
    for i in range(SAMPLES):
        store.put(f"objects/{i:02}", b"data")
    cuts = [0, 3, 4, 16, 30, SAMPLES]
    for n, (start, stop) in enumerate(pairwise(cuts)):
        members = [
            (f"{i:02}.{ext}", b"x" * i) for i in range(start, stop) for ext in ("txt", "cls")
        ]
        store.put(f"shards/{n}.tar", tar_of(members))
        columns = {"id": [*range(start, stop)], "other": ["text"] * (stop - start)}
        store.put(f"tables/{n}.parquet", parquet_of(columns, group_rows=5))
    return {
        "iterable": Kind("memory://elastic/objects", penstock.IterableDataset.from_prefix, key_of),
        "tar": Kind(
            "memory://elastic/shards", penstock.TarDataset.from_prefix, key_of, shuffle_buffer=7
        ),
        "parquet": Kind(
            "memory://elastic/tables",
            penstock.ParquetDataset.from_prefix,
            rows_of,
            batches=True,
            columns=["id"],
        ),
    }


class World(NamedTuple):
    ranks: int
    workers: int
    batch: int
    stop: float
    """Which share of its batches it gets through."""


WORLDS = st.builds(World, st.integers(1, 3), st.integers(1, 3), st.integers(1, 6), st.floats(0, 1))
ORDERS = st.fixed_dictionaries(
    {
        "shuffle": st.booleans(),
        "seed": st.integers(0, 5),
        "even": st.sampled_from(["pad", "drop"]),
    }
)


def run(kind, world, state, order):
    """Trains on simulated ranks; returns the samples seen, the state, and how many of them may be padding."""
    ranks, workers, batch, stop = world
    seen, states, padding = [], [], 0
    for rank in range(ranks):
        # Every worker has a dataset of its own, as they are when a loader has started them.
        datasets = [kind((rank, ranks), batch, **order) for _ in range(workers)]
        streams = []
        for worker, dataset in enumerate(datasets):
            dataset.load_state_dict(state)
            streams.append(dataset._at(Place(rank, ranks, worker, workers)))
        main = datasets[0]
        left = sum(last - first for first, last in main._left(main.epoch))
        padding = -left % ranks if order["even"] == "pad" else 0
        taken = round(stop * main.batches(workers=workers))
        loader = in_turn(streams, 1 if kind.batches else batch)
        for _, values in islice(loader, taken):
            seen += [found for value in values for found in kind.ids(value)]
        if stop == 1.0:
            assert next(loader, None) is None, "there are no more batches than were computed"
        states.append(main.state_after(taken, workers=workers))
        merged = merge_states([dataset.state_dict() for dataset in datasets])
        assert merged == states[-1], "what the workers say is what the loader computes"
    assert states == states[:1] * ranks, "all ranks save the same state"
    return seen, states[0], padding


@pytest.mark.parametrize("name", ["iterable", "tar", "parquet"])
@settings(max_examples=80, deadline=None)
@given(worlds=st.lists(WORLDS, min_size=1, max_size=4), order=ORDERS, epoch=st.integers(0, 2))
def test_no_sample_is_lost_and_none_is_repeated_over_any_change_of_world(
    kinds, name, worlds, order, epoch
):
    kind = kinds[name]
    fresh = kind((0, 1), 1, **order)
    everything = Counter(found for value in fresh for found in kind.ids(value))
    state, seen, padding = fresh.state_at_start(epoch), [], 0
    for world in [*worlds, World(1, 2, 4, 1.0)]:  # the last one has one rank, and so no rest
        found, state, padded = run(kind, world, state, order)
        seen, padding = seen + found, padding + padded
    assert len(everything) == SAMPLES
    assert set(seen) == set(everything)
    assert len(seen) - SAMPLES <= padding


@pytest.mark.parametrize("name", ["iterable", "tar", "parquet"])
def test_the_order_is_the_same_for_any_number_of_ranks_and_workers(kinds, name):
    """Laid end to end, lane after lane, all worlds show the one global order."""
    kind, orders = kinds[name], set()
    for ranks, workers in [(1, 1), (2, 1), (1, 3), (3, 2)]:
        order = []
        for rank in range(ranks):
            for worker in range(workers):
                dataset = kind((rank, ranks), 1, shuffle=True, even="drop")
                stream = dataset._at(Place(rank, ranks, worker, workers))
                order += [found for value in stream for found in kind.ids(value)]
        orders.add(tuple(order[:36]))
    assert len(orders) == 1


@pytest.mark.parametrize("name", ["iterable", "tar", "parquet"])
def test_another_epoch_or_seed_is_another_order_of_the_same_samples(kinds, name):
    kind, orders = kinds[name], []
    for seed, epoch in [(0, 0), (0, 1), (1, 0)]:
        dataset = kind((0, 1), 1, shuffle=True, seed=seed)
        dataset.set_epoch(epoch)
        orders.append([found for value in dataset for found in kind.ids(value)])
    assert len({tuple(order) for order in orders}) == 3
    assert len({frozenset(order) for order in orders}) == 1


def test_a_state_asked_for_before_the_first_sample_is_the_beginning(kinds):
    dataset = kinds["iterable"]((0, 1), 1)
    iter(dataset)
    again = kinds["iterable"]((0, 1), 1)
    again.load_state_dict(dataset.state_dict())
    assert len([*again]) == SAMPLES


def test_what_was_read_in_one_epoch_is_not_behind_in_the_next(kinds):
    dataset = kinds["iterable"]((0, 1), 1)
    assert len([*dataset]) == SAMPLES
    dataset.set_epoch(1)
    again = kinds["iterable"]((0, 1), 1)
    again.load_state_dict(dataset.state_dict())
    assert again.epoch == 1
    assert len([*again]) == SAMPLES


def test_a_position_is_used_in_its_epoch_alone(kinds):
    dataset = kinds["iterable"]((0, 1), 1)
    stream = iter(dataset)
    next(stream)
    again = kinds["iterable"]((0, 1), 1)
    again.load_state_dict(dataset.state_dict())
    assert len(again) == len([*again]) == SAMPLES - 1
    again.set_epoch(1)
    assert len(again) == len([*again]) == SAMPLES


def test_a_negative_epoch_is_refused(kinds):
    with pytest.raises(ValueError, match="not negative"):
        kinds["iterable"]((0, 1), 1).set_epoch(-1)
