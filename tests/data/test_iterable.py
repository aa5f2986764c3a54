"""IterableDataset: every object once an epoch, evenly shared, bad ones named, never a neighbour's bytes."""

import copy
import pickle
from dataclasses import replace

import pytest
from torch.utils.data import DataLoader

import penstock
from penstock import TransferConfig, errors, metrics
from penstock.data import SKIPPED
from penstock.data.lanes import Place


def names_in(samples):
    return [sample.key.rpartition("/")[2] for sample in samples]


def test_every_object_comes_once_in_order_with_its_own_bytes(objects, config, names):
    dataset = penstock.IterableDataset.from_prefix(objects, config=config)
    samples = [*dataset]
    assert names_in(samples) == names
    assert [sample.data.decode() for sample in samples] == names
    assert len(dataset) == 32


def test_a_sample_is_one_request(objects, counted, fault_proxy):
    dataset = penstock.IterableDataset.from_prefix(objects, config=counted)
    fault_proxy.clear_log()
    assert len([*dataset]) == 32
    assert [request.method for request in fault_proxy.requests] == ["GET"] * 32


def test_a_generator_of_urls_is_good_for_every_epoch(objects, config, names):
    dataset = penstock.IterableDataset.from_objects(
        (f"{objects}/{name}" for name in names), config=config
    )
    assert names_in(dataset) == names
    dataset.set_epoch(1)
    assert names_in(dataset) == names


def test_a_generator_that_was_used_before_is_refused(objects, config):
    with pytest.raises(errors.ConfigError, match="a generator that was used before is empty"):
        penstock.IterableDataset.from_objects(iter([]), config=config)


def test_one_url_where_a_list_is_wanted_is_refused(objects, config):
    with pytest.raises(errors.ConfigError, match="use from_prefix"):
        penstock.IterableDataset.from_objects(objects, config=config)


def test_objects_of_two_buckets_are_refused(config):
    with pytest.raises(errors.ConfigError, match=r"one bucket, got s3://one.*s3://two"):
        penstock.IterableDataset.from_objects(["s3://one/a", "s3://two/b"], config=config)


def test_an_empty_prefix_is_an_error_that_says_so(store_url, config):
    with pytest.raises(errors.NotFound, match=r"no objects there; check the prefix"):
        penstock.IterableDataset.from_prefix(store_url, config=config)
    with pytest.raises(errors.NotFound, match=r"no objects ending with \.jpg there"):
        penstock.IterableDataset.from_prefix(store_url, config=config, suffix=".jpg")


@pytest.mark.parametrize("persistent", [False, True])
def test_set_epoch_changes_the_order_in_workers_too(objects, config, names, persistent):
    dataset = penstock.IterableDataset.from_prefix(objects, config=config, shuffle=True)
    loader = DataLoader(
        dataset, None, num_workers=2, persistent_workers=persistent, multiprocessing_context="fork"
    )
    orders = []
    for epoch in (0, 1, 0):
        dataset.set_epoch(epoch)
        orders.append(names_in(loader))
    assert sorted(orders[0]) == sorted(orders[1]) == names
    assert orders[0] != orders[1]
    assert orders[0] == orders[2]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_workers_of_a_copy_see_its_epoch_change(objects, config, copied):
    dataset = copied(penstock.IterableDataset.from_prefix(objects, config=config, shuffle=True))
    loader = DataLoader(
        dataset, None, num_workers=1, persistent_workers=True, multiprocessing_context="fork"
    )
    first = names_in(loader)
    dataset.set_epoch(1)
    assert names_in(loader) != first


def lanes(objects, config, *, ranks, workers, **options):
    return [
        [
            names_in(
                penstock.IterableDataset.from_prefix(
                    objects, config=config, rank=(rank, ranks), **options
                )._at(Place(rank, ranks, worker, workers))
            )
            for worker in range(workers)
        ]
        for rank in range(ranks)
    ]


@pytest.mark.parametrize(("even", "each"), [("pad", 11), ("drop", 10)])
def test_ranks_are_even_by_padding_or_dropping(objects, config, names, even, each):
    found = lanes(objects, config, ranks=3, workers=2, even=even)
    assert [sum(map(len, workers)) for workers in found] == [each] * 3
    assert len({tuple(map(len, workers)) for workers in found}) == 1
    flat = [name for workers in found for worker in workers for name in worker]
    assert set(flat) == set(names) if even == "pad" else len(set(flat)) == len(flat) == 30


def test_error_refuses_what_cannot_be_even(objects, config):
    dataset = penstock.IterableDataset.from_prefix(
        objects, config=config, rank=(0, 3), even="error"
    )
    with pytest.raises(ValueError, match="32 samples cannot be shared evenly by 3 ranks"):
        next(iter(dataset))


def test_ranks_are_told_by_the_launchers_variables(objects, config, monkeypatch):
    dataset = penstock.IterableDataset.from_prefix(objects, config=config)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert names_in(dataset)[0] == "016.bin"
    monkeypatch.setenv("RANK", "2")
    with pytest.raises(errors.ConfigError, match="RANK=2 and WORLD_SIZE=2"):
        iter(dataset)


@pytest.mark.parametrize("options", [{"even": "maybe"}, {"on_error": "ignore"}, {"batch_size": 0}])
def test_an_option_that_means_nothing_is_refused(objects, config, options):
    with pytest.raises(ValueError, match=r"must be"):
        penstock.IterableDataset.from_prefix(objects, config=config, **options)


class Undecodable:
    """A transform that fails on some names; pickles."""

    def __init__(self, *bad):
        self.bad = bad

    def __call__(self, sample):
        if sample.data.decode() in self.bad:
            raise RuntimeError("cannot decode")
        return sample.data.decode()


def made(objects, config, *bad, **options):
    return penstock.IterableDataset.from_prefix(
        objects, config=config, transform=Undecodable(*bad), **options
    )


def test_a_bad_sample_raises_and_names_its_object(objects, config):
    with pytest.raises(
        errors.BadSample, match=r"s3://train/.*/003\.bin: transform raised RuntimeError"
    ):
        [*made(objects, config, "003.bin")]


def test_another_sample_comes_in_the_place_of_one_that_is_skipped(objects, config, names):
    before = metrics.snapshot()
    found = [*made(objects, config, "000.bin", "005.bin", "031.bin", on_error="skip")]
    assert len(found) == 32
    assert set(found) == {*names} - {"000.bin", "005.bin", "031.bin"}
    assert (found[0], found[5], found[31]) == ("001.bin", "004.bin", "030.bin")
    assert (metrics.snapshot() - before).bad_samples == 3


def test_ranks_stay_even_where_one_has_bad_samples_alone(objects, config, names):
    counts = []
    for rank in range(2):
        dataset = made(objects, config, *names[:16], on_error="skip", rank=(rank, 2))
        counts.append(len([*dataset]))
    assert counts == [16, 16]


def test_nothing_but_bad_samples_is_an_error(objects, config, names):
    with pytest.raises(errors.BadSample, match="every sample is bad"):
        [*made(objects, config, *names, on_error="skip")]


def test_a_position_is_exact_where_samples_were_skipped(objects, config, names):
    """Good samples come once, however the epoch is cut; only the replacements repeat."""
    bad = ("000.bin", "004.bin", "005.bin", "012.bin", "031.bin")
    for stop in range(1, 32, 3):
        one = made(objects, config, *bad, on_error="skip")
        stream = iter(one)
        found = [next(stream) for _ in range(stop)]
        other = made(objects, config, *bad, on_error="skip")
        other.load_state_dict(one.state_dict())
        found += other
        assert len(found) == 32
        assert set(found) == {*names} - {*bad}


def test_a_function_decides_about_a_bad_sample(objects, config):
    seen = []

    def judge(key, error):
        seen.append((key[-7:], type(error)))
        return "instead" if key.endswith("003.bin") else SKIPPED

    found = [*made(objects, config, "003.bin", "004.bin", on_error=judge)]
    assert found[2:6] == ["002.bin", "instead", "instead", "005.bin"]
    assert seen == [("003.bin", RuntimeError), ("004.bin", RuntimeError)]


@pytest.fixture
def listed(put, config, names):
    """An index of objects of which one was then deleted and another overwritten."""
    url = put({name: name.encode() for name in names[:10]})
    index = penstock.list_objects(url, config=config)
    store = penstock.open_store(url, config)
    store.delete("003.bin")
    store.put("006.bin", b"another")
    return index


@pytest.mark.parametrize("make", ["IterableDataset", "MapDataset"])
def test_what_vanished_or_changed_since_the_listing_is_an_error_for_that_key_alone(
    listed, config, names, make
):
    failed = {}

    def note(key, error):
        failed[key[-7:]] = type(error)
        return SKIPPED

    dataset = getattr(penstock, make).from_index(listed, config=config, on_error=note)
    samples = dataset.__getitems__(range(10)) if make == "MapDataset" else [*dataset]
    assert failed == {"003.bin": errors.NotFound, "006.bin": errors.ObjectChanged}
    assert all(sample.data.decode() == sample.key[-7:] for sample in samples)
    assert {sample.key[-7:] for sample in samples} == {*names[:10]} - {*failed}


def test_the_message_for_what_changed_names_the_object(listed, config):
    dataset = penstock.IterableDataset.from_index(listed[4:], config=config)
    with pytest.raises(errors.ObjectChanged, match=r"006\.bin"):
        list(dataset)


def test_what_is_read_ahead_stays_within_the_byte_budget(put, counted, fault_proxy):
    """A consumer that holds on to the first sample: six of 1 MiB fit, and no more are asked for."""
    url = put({f"{i:02}": bytes(1 << 20) for i in range(20)})
    transfer = TransferConfig(budget_bytes=6 << 20, part_bytes=5 << 20)
    dataset = penstock.IterableDataset.from_prefix(url, config=replace(counted, transfer=transfer))
    fault_proxy.clear_log()
    stream = iter(dataset)
    next(stream)
    for asked in range(7, 20):
        # Each further sample asked for makes room for one more read, and only then.
        assert fault_proxy.count("GET") <= asked - 1
        next(stream)
    assert len([*stream]) == 20 - 14


def test_the_next_objects_are_under_way_while_a_sample_is_decoded(objects, counted, fault_proxy):
    """At 50 ms each, 32 objects take 1.6 s one by one."""
    dataset = penstock.IterableDataset.from_prefix(objects, config=counted)
    fault_proxy.set(latency_ms=50)
    fault_proxy.clear_log()
    stream = iter(dataset)
    next(stream)
    assert fault_proxy.count("GET") > 8
    stream.close()


def test_it_works_in_a_spawned_worker(objects, config, names):
    dataset = penstock.IterableDataset.from_prefix(objects, config=config, rank=(0, 1))
    loader = DataLoader(dataset, 8, num_workers=1, multiprocessing_context="spawn")
    assert sorted(key[-7:] for batch in loader for key in batch.key) == names
