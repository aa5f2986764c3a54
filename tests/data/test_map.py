"""MapDataset: objects by number, one request each, a whole batch in flight."""

import pickle
import time

import pytest
from torch.utils.data import DataLoader, default_collate

import penstock
from penstock import errors, metrics
from penstock.data import SKIPPED
from penstock.testing import Fault


@pytest.fixture(scope="module")
def dataset(objects, config):
    return penstock.MapDataset.from_prefix(objects, config=config)


def names_in(samples):
    return [sample.key.rpartition("/")[2] for sample in samples]


def test_it_has_a_length_and_every_object_by_its_number(dataset, names):
    assert len(dataset) == 32
    for i in (0, 7, 31, -1, -32):
        sample = dataset[i]
        assert names_in([sample]) == [names[i]]
        assert sample.data == names[i].encode()
        assert sample._fields == ("key", "data")


@pytest.mark.parametrize("index", [32, -33, 10**9])
def test_a_number_that_does_not_exist_is_an_index_error(dataset, index):
    with pytest.raises(IndexError, match=f"sample {index} of 32"):
        dataset[index]
    with pytest.raises(IndexError):
        dataset.__getitems__([0, index])


def test_it_can_be_gone_through_like_a_list(dataset, names):
    assert names_in(dataset) == names


@pytest.mark.parametrize(
    "part", [slice(3, 6), slice(None, None, 5), slice(-2, None), slice(40, 50)]
)
def test_a_slice_is_a_smaller_dataset(dataset, names, part):
    smaller = dataset[part]
    assert isinstance(smaller, penstock.MapDataset)
    assert len(smaller) == len(names[part])
    assert names_in(smaller) == names[part]


def test_a_slice_keeps_the_transform(objects, config):
    dataset = penstock.MapDataset.from_prefix(
        objects, config=config, transform=lambda s: len(s.data)
    )
    assert dataset[2:4][1] == len("003.bin")


def test_its_objects_tell_keys_and_sizes(dataset, names):
    assert [meta.key.rpartition("/")[2] for meta in dataset.objects] == names
    assert {meta.size for meta in dataset.objects} == {7}


def test_a_batch_comes_in_the_order_asked_for(dataset, names):
    asked = [5, 0, -1, 5, 17]
    assert names_in(dataset.__getitems__(asked)) == [names[i] for i in asked]


def test_a_sample_is_one_request_and_a_listing_one_more(objects, counted, fault_proxy):
    dataset = penstock.MapDataset.from_prefix(objects, config=counted)
    assert fault_proxy.count() == 1
    fault_proxy.clear_log()
    dataset.__getitems__(range(32))
    assert [request.method for request in fault_proxy.requests] == ["GET"] * 32
    assert all(request.range is None for request in fault_proxy.requests)


def test_making_one_of_urls_costs_nothing_and_a_sample_one_request(
    objects, names, counted, fault_proxy
):
    dataset = penstock.MapDataset.from_objects(
        (f"{objects}/{name}" for name in names), config=counted
    )
    assert fault_proxy.count() == 0
    assert names_in([dataset[3]]) == ["003.bin"]
    assert fault_proxy.count() == fault_proxy.count("GET") == 1


def test_a_whole_batch_is_in_flight_at_once(objects, counted, fault_proxy):
    """32 objects at 50 ms each take 1.6 s one by one."""
    dataset = penstock.MapDataset.from_prefix(objects, config=counted)
    dataset[0]
    fault_proxy.set(latency_ms=50)
    began = time.monotonic()
    dataset.__getitems__(range(32))
    assert time.monotonic() - began < 0.8


def first_byte(sample):
    return sample.key[-7:], sample.data[0]


@pytest.mark.parametrize("start_method", ["fork", "forkserver", "spawn"])
def test_it_works_in_workers_of_every_start_method(objects, config, names, start_method):
    dataset = penstock.MapDataset.from_prefix(objects, config=config, transform=first_byte)
    loader = DataLoader(dataset, 8, num_workers=1, multiprocessing_context=start_method)
    keys = [key for batch, _ in loader for key in batch]
    assert keys == names


def test_a_lambda_is_fine_under_fork(objects, config, names):
    dataset = penstock.MapDataset.from_prefix(
        objects, config=config, transform=lambda s: s.key[-7:]
    )
    loader = DataLoader(dataset, 8, num_workers=2, multiprocessing_context="fork")
    assert [key for batch in loader for key in batch] == names


def test_it_pickles(dataset, names):
    assert names_in(pickle.loads(pickle.dumps(dataset))[:2]) == names[:2]


def test_the_default_collate_makes_a_sample_of_lists(dataset, names):
    batch = default_collate(dataset.__getitems__([0, 1]))
    assert isinstance(batch, penstock.Sample)
    assert [key[-7:] for key in batch.key] == names[:2]
    assert [*batch.data] == [b"000.bin", b"001.bin"]


def test_an_index_gives_the_same_dataset(objects, config, names):
    index = penstock.list_objects(objects, config=config).filter(glob="*00?.bin")
    dataset = penstock.MapDataset.from_index(index, config=config)
    assert names_in(dataset) == names[:10]


def test_a_suffix_chooses(put, config):
    url = put({"a.jpg": b"1", "b.txt": b"2", "c.png": b"3"})
    dataset = penstock.MapDataset.from_prefix(url, config=config, suffix=(".jpg", ".png"))
    assert names_in(dataset) == ["a.jpg", "c.png"]


def fail_on_7(sample):
    if sample.key.endswith("007.bin"):
        raise RuntimeError("cannot decode")
    return sample


def test_a_bad_sample_raises_with_its_name(objects, config):
    dataset = penstock.MapDataset.from_prefix(objects, config=config, transform=fail_on_7)
    with pytest.raises(errors.BadSample, match=r"007\.bin: transform raised RuntimeError: cannot"):
        dataset.__getitems__(range(32))


def test_skipping_makes_a_batch_smaller_and_counts(objects, config):
    dataset = penstock.MapDataset.from_prefix(
        objects, config=config, transform=fail_on_7, on_error="skip"
    )
    before = metrics.snapshot()
    assert len(dataset.__getitems__(range(32))) == 31
    assert (metrics.snapshot() - before).bad_samples == 1
    with pytest.raises(errors.BadSample, match=r"007\.bin"):
        dataset[7]


def test_a_batch_of_bad_samples_alone_says_so(objects, config):
    dataset = penstock.MapDataset.from_prefix(
        objects, config=config, transform=fail_on_7, on_error="skip"
    )
    with pytest.raises(errors.BadSample, match=r"all 1 samples of a batch are bad.*007\.bin"):
        dataset.__getitems__([7])


def test_a_function_may_replace_a_bad_sample_or_skip_it(objects, config):
    seen = []

    def judge(key, error):
        seen.append((key[-7:], str(error)))
        return "instead" if len(seen) == 1 else SKIPPED

    dataset = penstock.MapDataset.from_prefix(
        objects, config=config, transform=fail_on_7, on_error=judge
    )
    assert dataset.__getitems__([7]) == ["instead"]
    assert len(dataset.__getitems__([6, 7])) == 1
    assert seen == [("007.bin", "cannot decode")] * 2


def test_skipping_does_not_hide_a_store_that_is_down(objects, counted, fault_proxy):
    dataset = penstock.MapDataset.from_prefix(objects, config=counted, on_error="skip")
    fault_proxy.add(Fault.status(401, error_code="ExpiredToken", key="*005.bin"))
    with pytest.raises(errors.CredentialsExpired):
        dataset.__getitems__(range(32))


def test_a_word_that_is_no_way_to_handle_errors_is_refused(objects, config):
    with pytest.raises(ValueError, match=r"'raise', 'skip' or a function .*'ignore'"):
        penstock.MapDataset.from_prefix(objects, config=config, on_error="ignore")
