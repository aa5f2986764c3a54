"""Resume with real workers and a real server: other ranks, other workers, through two kinds of loader."""

import pytest
from tests.data.made import parquet_of, tar_of
from torchdata.stateful_dataloader import StatefulDataLoader

import penstock
from penstock.data import ElasticSampler, merge_states

SAMPLES = 50

pytestmark = [
    # Three workers on two cores are the point here.
    pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes"),
    # torchdata calls what torch no longer wants called.
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]


def key_of(sample):
    return sample.key[-2:]


def rows_of(batch):
    return [f"{row:02}" for row in batch.data["id"]]


def as_it_is(batch):
    return batch


@pytest.fixture(scope="module")
def prefixes(put):
    names = [f"{i:02}" for i in range(SAMPLES)]
    return {
        "iterable": put({name: name.encode() for name in names}),
        "tar": put(
            {f"{n}.tar": tar_of([(f"{name}.txt", b"x") for name in names[n::3]]) for n in range(3)}
        ),
        "parquet": put(
            {
                f"{n}.parquet": parquet_of({"id": [*range(n, SAMPLES, 2)]}, group_rows=7)
                for n in range(2)
            }
        ),
    }


KINDS = pytest.mark.parametrize("name", ["iterable", "tar", "parquet"])


@pytest.fixture
def make(prefixes, config):
    """Makes a dataset of 50 samples, whose values are lists of their names or, of map style, names."""

    def build(name, rank=(0, 1), batch=4):
        options = {"config": config, "rank": rank, "shuffle": True, "seed": 3, "even": "drop"}
        if name == "parquet":
            return penstock.ParquetDataset.from_prefix(
                prefixes[name], batch_rows=batch, transform=rows_of, **options
            )
        kind = penstock.IterableDataset if name == "iterable" else penstock.TarDataset
        return kind.from_prefix(prefixes[name], batch_size=batch, transform=key_of, **options)

    return build


def flat(batches):
    return [name for batch in batches for name in batch]


def penstock_loader(dataset, workers, batch=4):
    return penstock.DataLoader(dataset, batch, num_workers=workers, collate_fn=as_it_is)


def stateful_loader(dataset, workers, batch=4):
    return StatefulDataLoader(
        dataset,
        None if dataset.makes_batches else batch,
        num_workers=workers,
        collate_fn=as_it_is,
        multiprocessing_context="fork" if workers else None,
    )


def take(loader, batches):
    """So many batches, and the state after them, with the workers ended."""
    stream = iter(loader)
    seen = [next(stream) for _ in range(batches)]
    return flat(seen), loader.state_dict()


@KINDS
@pytest.mark.parametrize(("ranks", "workers"), [(3, 1), (1, 0)])
def test_saved_with_2_ranks_and_3_workers_resumed_with_others(make, name, ranks, workers):
    seen, states = [], []
    for rank in range(2):
        found, state = take(penstock_loader(make(name, (rank, 2)), 3), 4)
        seen += found
        states.append(state)
    assert states[0] == states[1]
    for rank in range(ranks):
        loader = penstock_loader(make(name, (rank, ranks), batch=3), workers, batch=3)
        loader.load_state_dict(states[0])
        seen += flat(loader)
    left = (SAMPLES - len({*seen})) if ranks == 3 else 0
    assert left < 3, "fewer than one for each rank are dropped"
    assert len({*seen}) == len(seen) == SAMPLES - left


@pytest.mark.parametrize(
    ("name", "workers", "batches"),
    [
        ("iterable", 2, 0),
        ("iterable", 2, 1),
        ("iterable", 2, 5),
        ("iterable", 0, 5),
        ("tar", 2, 5),
        ("parquet", 2, 5),
    ],
)
def test_a_stateful_loader_resumes_with_as_many_workers(make, name, workers, batches):
    seen, state = take(stateful_loader(make(name), workers), batches)
    loader = stateful_loader(make(name), workers)
    loader.load_state_dict(state)
    seen += flat(loader)
    assert sorted(seen) == [f"{i:02}" for i in range(SAMPLES)]


@pytest.mark.parametrize(
    ("name", "before", "batches", "after"),
    [
        ("iterable", 3, 0, 0),
        ("iterable", 3, 1, 1),
        ("iterable", 3, 5, 0),
        ("iterable", 0, 5, 2),
        ("tar", 3, 5, 0),
        ("parquet", 3, 5, 0),
    ],
)
def test_a_stateful_loaders_merged_state_resumes_with_any_number(
    make, name, before, batches, after
):
    seen, state = take(stateful_loader(make(name), before), batches)
    dataset = make(name)
    dataset.load_state_dict(merge_states(state))
    seen += flat(stateful_loader(dataset, after))
    assert sorted(seen) == [f"{i:02}" for i in range(SAMPLES)]


def test_a_resumed_stateful_loader_may_be_saved_again(make):
    seen, state = take(stateful_loader(make("iterable"), 2), 3)
    for workers in (2, 2):
        loader = stateful_loader(make("iterable"), workers)
        loader.load_state_dict(state)
        found, state = take(loader, 3)
        seen += found
    dataset = make("iterable")
    dataset.load_state_dict(merge_states(state))
    seen += flat(penstock_loader(dataset, 0))
    assert sorted(seen) == [f"{i:02}" for i in range(SAMPLES)]


def test_the_next_epoch_after_a_resumed_one_is_whole(make):
    _, state = take(stateful_loader(make("iterable"), 2), 3)
    dataset = make("iterable")
    dataset.load_state_dict(merge_states(state))
    loader = stateful_loader(dataset, 1)
    assert len(flat(loader)) == SAMPLES - 12
    dataset.set_epoch(1)
    assert len(flat(loader)) == SAMPLES


def test_a_stateful_loader_resumes_a_map_by_its_sampler(prefixes, config):
    def make_loader():
        dataset = penstock.MapDataset.from_prefix(
            prefixes["iterable"], config=config, transform=key_of
        )
        sampler = ElasticSampler(len(dataset), 4, shuffle=True)
        return StatefulDataLoader(
            dataset,
            batch_sampler=sampler,
            num_workers=2,
            collate_fn=as_it_is,
            multiprocessing_context="fork",
        )

    seen, state = take(make_loader(), 5)
    loader = make_loader()
    loader.load_state_dict(state)
    seen += flat(loader)
    assert sorted(seen) == [f"{i:02}" for i in range(SAMPLES)]
