"""ParquetDataset: rows shared by row group and row, and no byte of a column that nobody asked for."""

import os
import subprocess
import sys

import pyarrow as pa
import pytest
import torch
from tests.data.made import parquet_of
from torch.utils.data import DataLoader

import penstock
from penstock import errors, metrics
from penstock.data import SKIPPED
from penstock.data.lanes import Place

ROWS = 1000


def table(first=0, rows=ROWS):
    ids = [*range(first, first + rows)]
    return {"id": ids, "text": [f"text {i}" for i in ids], "score": [i / 2 for i in ids]}


@pytest.fixture(scope="module")
def tables(put):
    """Two files of 1,000 rows in groups of 128."""
    return put({f"{n}.parquet": parquet_of(table(n * ROWS), group_rows=128) for n in range(2)})


def ids_of(batches):
    return [row for batch in batches for row in batch.data["id"]]


def test_every_row_comes_once_in_order_in_exact_batches(tables, config):
    dataset = penstock.ParquetDataset.from_prefix(tables, config=config, batch_rows=300)
    batches = [*dataset]
    assert [len(batch.data["id"]) for batch in batches] == [300] * 6 + [200]
    assert len(dataset) == 7
    assert ids_of(batches) == [*range(2 * ROWS)]
    assert batches[0].data["text"][5] == "text 5"
    assert batches[1].key.endswith("/0.parquet#2"), "the row group of the first row"


def test_the_rows_of_a_group_are_all_there_when_shuffled(tables, config):
    dataset = penstock.ParquetDataset.from_prefix(tables, config=config, shuffle=True)
    one = ids_of(dataset)
    dataset.set_epoch(1)
    other = ids_of(dataset)
    assert sorted(one) == sorted(other) == [*range(2 * ROWS)]
    assert one != other
    assert one[:50] != sorted(one[:50])


def test_groups_of_the_same_number_are_shuffled_each_in_its_own_way(tables, config):
    dataset = penstock.ParquetDataset.from_prefix(
        tables, config=config, shuffle=True, batch_rows=128
    )
    orders = {}
    for row in ids_of(dataset):
        if row % ROWS < 128:
            orders.setdefault(row // ROWS, []).append(row % ROWS)
    assert orders[0] != orders[1]


def test_only_the_bytes_of_wanted_columns_are_read(put, counted, fault_proxy):
    columns = {
        "small": [*range(20_000)],
        "large": [os.urandom(100) for _ in range(20_000)],
        "after": [*range(20_000)],
    }
    data = parquet_of(columns, group_rows=20_000, compression="none", use_dictionary=False)
    url = put({"a.parquet": data})
    dataset = penstock.ParquetDataset.from_prefix(
        url, config=counted, columns=["small", "after"], batch_rows=1000
    )
    footer = sum(request.bytes_sent for request in fault_proxy.requests if request.key)
    assert footer <= 64 << 10
    fault_proxy.clear_log()
    batches = [*dataset]
    assert [*batches[0].data] == ["small", "after"]
    assert sum(len(batch.data["after"]) for batch in batches) == 20_000
    sent = sum(request.bytes_sent for request in fault_proxy.requests)
    assert sent < len(data) / 4
    assert fault_proxy.count() == 2, "one for each side of the large column"


def test_neighbouring_columns_are_read_in_one_request(tables, counted, fault_proxy):
    dataset = penstock.ParquetDataset.from_prefix(tables, config=counted)
    fault_proxy.clear_log()
    assert len(ids_of(dataset)) == 2 * ROWS
    assert fault_proxy.count() == 16, "one for each row group"


def test_more_workers_than_files_all_have_rows(put, config):
    url = put({"one.parquet": parquet_of(table(), group_rows=100)})
    found = []
    for rank in range(2):
        for worker in range(4):
            dataset = penstock.ParquetDataset.from_prefix(
                url, config=config, batch_rows=50, rank=(rank, 2)
            )
            rows = ids_of(dataset._at(Place(rank, 2, worker, 4)))
            assert len(rows) in (100, 150)
            found += rows
    assert found == [*range(ROWS)]


def test_real_workers_share_one_file(put, config):
    url = put({"one.parquet": parquet_of(table(), group_rows=100)})
    dataset = penstock.ParquetDataset.from_prefix(url, config=config, batch_rows=100)
    loader = DataLoader(dataset, None, num_workers=2, multiprocessing_context="fork")
    assert sorted(ids_of(loader)) == [*range(ROWS)]


def test_a_spawned_worker_reads_rows(put, config):
    url = put({"one.parquet": parquet_of(table(), group_rows=100)})
    dataset = penstock.ParquetDataset.from_prefix(url, config=config, batch_rows=300, rank=(0, 1))
    loader = DataLoader(dataset, None, num_workers=1, multiprocessing_context="forkserver")
    assert ids_of(loader) == [*range(ROWS)]


@pytest.mark.parametrize("form", ["dict", "arrow", "torch"])
def test_a_batch_comes_in_the_form_asked_for(tables, config, form):
    dataset = penstock.ParquetDataset.from_prefix(tables, config=config, batch_rows=10, format=form)
    data = next(iter(dataset)).data
    if form == "dict":
        assert data["score"] == [i / 2 for i in range(10)]
    elif form == "arrow":
        assert data.schema.names == ["id", "text", "score"]
        assert data.num_rows == 10
    else:
        assert torch.equal(data["id"], torch.arange(10))
        assert data["score"].dtype == torch.float64
        assert data["text"][1] == "text 1"


NESTED = pa.table(
    {
        "point": pa.array([{"x": 1, "y": [1, 2]}, None, {"x": 3, "y": None}, {"x": None, "y": []}]),
        "number": pa.array([1, None, 3, 4], pa.int32()),
        "word": pa.array(["a", "b", "a", None]).dictionary_encode(),
        "a.b": pa.array([1, 2, 3, 4]),
    }
)


@pytest.mark.parametrize("column", ["point", "number", "word", "a.b"])
@pytest.mark.parametrize("form", ["dict", "torch"])
def test_nested_null_dictionary_and_dotted_columns_come_as_they_are(put, config, column, form):
    url = put({"a.parquet": parquet_of(NESTED, group_rows=3)})
    dataset = penstock.ParquetDataset.from_prefix(
        url, config=config, columns=[column], batch_rows=4, format=form
    )
    (batch,) = dataset
    found = batch.data[column]
    assert (found.tolist() if torch.is_tensor(found) else found) == NESTED[column].to_pylist()


def test_a_part_of_a_nested_column_may_be_asked_for(put, config):
    url = put({"a.parquet": parquet_of(NESTED)})
    dataset = penstock.ParquetDataset.from_prefix(url, config=config, columns=["point.x"])
    (batch,) = dataset
    assert batch.data["point"][0] == {"x": 1}


def test_a_column_that_is_not_there_is_named_with_those_that_are(tables, config):
    with pytest.raises(
        errors.ConfigError, match=r"0\.parquet: no column 'txt'; there are id, text, score"
    ):
        penstock.ParquetDataset.from_prefix(tables, config=config, columns=["id", "txt"])


@pytest.mark.parametrize("data", [b"", b"PAR1", b"this is not Parquet" * 100])
def test_what_is_no_parquet_file_is_named(put, config, data):
    url = put({"bad.parquet": data})
    with pytest.raises(errors.BadSample, match=r"bad\.parquet: not a Parquet file"):
        penstock.ParquetDataset.from_prefix(url, config=config)


def test_a_long_footer_is_read_whole(put, config):
    columns = {f"{'column' * 20}{i}": [i] for i in range(500)}
    url = put({"wide.parquet": parquet_of(columns)})
    (batch,) = penstock.ParquetDataset.from_prefix(url, config=config)
    assert len(batch.data) == 500


@pytest.mark.parametrize("options", [{"batch_rows": 0}, {"format": "numpy"}])
def test_an_option_that_means_nothing_is_refused(tables, config, options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} must be"):
        penstock.ParquetDataset.from_prefix(tables, config=config, **options)


@pytest.fixture
def changed(put, config):
    """A function that makes a dataset of three files, of which the second is then overwritten."""

    def make(**options):
        url = put({f"{n}.parquet": parquet_of(table(n * 100, 100)) for n in range(3)})
        dataset = penstock.ParquetDataset.from_prefix(url, config=config, columns=["id"], **options)
        penstock.open_store(url, config).put("1.parquet", parquet_of(table(500, 100)))
        return dataset

    return make


def test_a_file_that_changed_since_is_an_error(changed):
    with pytest.raises(errors.ObjectChanged, match=r"1\.parquet"):
        [*changed(batch_rows=40)]


def test_skipped_rows_leave_as_many_batches(changed):
    """So that ranks stay even: 300 rows are eight batches of 40, whatever is bad in them."""
    before = metrics.snapshot()
    batches = [*changed(batch_rows=40, on_error="skip")]
    assert len(batches) == 8
    assert {*ids_of(batches)} == {*range(100), *range(200, 300)}
    assert [len(batch.data["id"]) for batch in batches] == [40, 40, 20, 20, 20, 40, 40, 20]
    assert (metrics.snapshot() - before).bad_samples == 1


def test_a_position_is_exact_where_rows_were_skipped(changed):
    one = changed(batch_rows=40, on_error="skip")
    for stop in range(1, 8):
        stream = iter(one)
        found = [next(stream) for _ in range(stop)]
        state = one.state_dict()
        other = changed(batch_rows=40, on_error="skip")
        other.load_state_dict(state)
        found += other
        assert len(found) == 8
        assert {*ids_of(found)} == {*range(100), *range(200, 300)}


def test_a_function_may_give_other_rows_or_skip_them(changed):
    other = pa.table({"id": [-1] * 100})
    batches = [*changed(batch_rows=100, on_error=lambda _key, _error: other)]
    assert [batch.data["id"][0] for batch in batches] == [0, -1, 200]
    batches = [*changed(batch_rows=100, on_error=lambda _key, _error: SKIPPED)]
    assert [batch.data["id"][0] for batch in batches] == [0, 0, 200]
    with pytest.raises(errors.ConfigError, match=r"returned a str .* return a pyarrow\.Table"):
        [*changed(batch_rows=100, on_error=lambda _key, _error: "rows")]


def test_a_transform_that_fails_names_the_row_group(tables, config):
    dataset = penstock.ParquetDataset.from_prefix(
        tables, config=config, transform=lambda batch: batch.data["missing"]
    )
    with pytest.raises(errors.BadSample, match=r"0\.parquet#0: transform raised KeyError"):
        next(iter(dataset))


def test_files_of_different_columns_are_an_error_that_names_one(put, config):
    url = put({"a.parquet": parquet_of({"id": [1]}), "b.parquet": parquet_of({"id": ["one"]})})
    dataset = penstock.ParquetDataset.from_prefix(url, config=config)
    with pytest.raises(errors.BadSample, match=r"a\.parquet#0: .*Schema"):
        list(dataset)


WITHOUT_PYARROW = """
import sys
sys.modules["pyarrow"] = None  # what `import pyarrow` finds where it is not installed
import penstock
penstock.IterableDataset
try:
    penstock.ParquetDataset
except penstock.errors.ConfigError as exc:
    print(exc)
"""


def test_without_pyarrow_the_remedy_is_named_and_the_rest_works():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PYARROW], capture_output=True, text=True, check=True
    )
    assert done.stdout == "ParquetDataset needs pyarrow; pip install 'penstock[parquet]'\n"
