"""What a listing leaves in memory and in files."""

import multiprocessing
import os
import pickle
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock import Index, ObjectMeta, open_store
from penstock.errors import ConfigError, IntegrityError, NotFound, Unsupported
from penstock.listing.index import Builder, assemble
from penstock.store import Page

METAS = [
    ObjectMeta("a/1.jpg", 10, '"e1"'),
    ObjectMeta("a/2.png", 0, None),
    ObjectMeta("b b/é漢😀.jpg", 2**40, '"e3"'),
    ObjectMeta("z", 7, '"e4"'),
]
KEYS = [meta.key for meta in METAS]


@pytest.fixture
def index():
    return Index.of("s3://bucket", METAS)


def test_it_is_a_sequence_of_objects(index):
    assert len(index) == 4
    assert list(index) == METAS
    assert index[0] == METAS[0]
    assert index[-1] == METAS[-1]
    assert index.keys[-1] == "z"
    assert list(index.sizes) == [10, 0, 2**40, 7]
    assert list(index.etags) == ['"e1"', "", '"e3"', '"e4"']
    assert METAS[2] in index
    for wrong in (4, -5):
        with pytest.raises(IndexError):
            index[wrong]


def test_the_order_is_that_of_utf8_bytes():
    keys = ["é", "z", "😀", "\uffff", "a/x", "a-b", "a"]
    index = Index.of("s3://bucket", [ObjectMeta(key, 1) for key in keys])
    assert list(index.keys) == sorted(keys, key=str.encode)


def test_a_key_may_come_once():
    with pytest.raises(ValueError, match="'a' is there twice"):
        Index.of("s3://bucket", [ObjectMeta("a", 1), ObjectMeta("a", 2)])


@given(st.lists(st.text(max_size=5), unique=True), st.slices(10))
def test_a_slice_is_an_index_of_what_a_list_would_give(keys, rows):
    metas = [ObjectMeta(key, len(key), f'"{key}"') for key in sorted(keys)]
    cut = Index.of("s3://bucket", metas)[rows]
    assert list(cut) == sorted(metas[rows], key=lambda meta: meta.key)
    assert pickle.loads(pickle.dumps(cut)) == cut
    again = cut[1:]
    assert list(again) == list(cut)[1:]
    assert again == Index.of("s3://bucket", list(cut)[1:])


def test_a_slice_shares_the_memory(index):
    assert index[1:3].keys._data is index.keys._data


def test_equality_is_of_url_and_all_columns(index):
    assert index == Index.of("s3://bucket", METAS)
    assert index != Index.of("s3://other", METAS)
    assert index != index[:3]
    assert index != Index.of("s3://bucket", [*METAS[:3], ObjectMeta("z", 7, '"new"')])
    assert index[1:] != Index.of("s3://bucket", [ObjectMeta("a/2.pngb b", 0), *METAS[2:]])
    assert index != METAS


def test_sizes_are_summed(index):
    assert index.total_bytes == 2**40 + 17
    assert index[:0].total_bytes == 0


def test_it_shows_itself_in_one_short_line(index):
    assert repr(index) == "<Index of 's3://bucket': 4 objects, 1099511627793 bytes>"
    assert repr(index.keys) == "Strings(['a/1.jpg', 'a/2.png', 'b b/é漢😀.jpg', …], 4 in all)"


@pytest.mark.parametrize(
    ("wanted", "rows"),
    [
        ({}, [0, 1, 2, 3]),
        ({"suffix": ".jpg"}, [0, 2]),
        ({"suffix": (".jpg", ".png")}, [0, 1, 2]),
        ({"suffix": "漢😀.jpg"}, [2]),
        ({"glob": "a/*"}, [0, 1]),
        ({"glob": "*.jpg"}, [0, 2]),
        ({"glob": "a/[2-9].???"}, [1]),
        ({"glob": "A/*"}, []),
        ({"min_bytes": 1}, [0, 2, 3]),
        ({"max_bytes": 10}, [0, 1, 3]),
        ({"min_bytes": 7, "max_bytes": 7}, [3]),
        ({"suffix": ".jpg", "max_bytes": 100, "glob": "*1*"}, [0]),
    ],
)
def test_a_filter_keeps_what_meets_all_of_it(index, wanted, rows):
    assert list(index.filter(**wanted)) == [METAS[row] for row in rows]


def numbered(count):
    builder = Builder()
    for start in range(0, count, 1000):
        rows = range(start, start + 1000)
        builder.add(
            Page(
                [f"train/images/{row:09d}.jpeg" for row in rows],
                [*rows],
                [f'"{row:032x}"' for row in rows],
            )
        )
    return assemble("s3://bucket", [builder])


def test_an_object_takes_about_a_hundred_bytes_and_pickles_as_much():
    index = numbered(100_000)
    assert len(pickle.dumps(index)) < 90 * 100_000
    code = """
import gc, sys
sys.path[:0] = ["."]
from tests.listing.test_index import numbered
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
before = resident()
index = numbered(1_000_000)
gc.collect()
print(resident() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 200e6


def _private_bytes():
    with open("/proc/self/smaps_rollup", encoding="ascii") as lines:
        return 1024 * sum(int(line.split()[1]) for line in lines if "Private_Dirty" in line)


def _read_all(index, answer):
    before = _private_bytes()
    total = sum(map(len, index.keys)) + sum(index.sizes)
    answer.put((total, _private_bytes() - before))


def test_a_forked_worker_reads_it_without_a_copy():
    index = numbered(200_000)
    fork = multiprocessing.get_context("fork")
    answer = fork.SimpleQueue()
    process = fork.Process(target=_read_all, args=(index, answer))
    process.start()
    total, copied = answer.get()
    process.join()
    assert total == 200_000 * len(index.keys[0]) + index.total_bytes
    assert copied < 2e6


@pytest.mark.parametrize("name", ["index.parquet", "index.arrow"])
@pytest.mark.parametrize("rows", [slice(None), slice(1, 3), slice(0), slice(None, None, 2)])
def test_a_file_gives_back_the_same_index(index, tmp_path, name, rows):
    pytest.importorskip("pyarrow", reason="needs penstock[parquet]")
    index[rows].save(tmp_path / name)
    assert Index.load(tmp_path / name) == index[rows]


@pytest.mark.parametrize("name", ["index.parquet", "index.arrow"])
def test_a_file_may_be_in_any_store(index, object_server, store_url, name):
    pytest.importorskip("pyarrow", reason="needs penstock[parquet]")
    url = f"{store_url}/{name}"
    index.save(url, config=object_server.config)
    assert Index.load(url, config=object_server.config) == index


def test_other_programs_can_read_the_file(index, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs penstock[parquet]")
    index.save(tmp_path / "index.parquet")
    table = parquet.read_table(tmp_path / "index.parquet")
    assert table.column_names == ["key", "size", "etag"]
    assert table["key"].to_pylist() == KEYS
    assert table["size"].to_pylist() == list(index.sizes)


def test_a_version_from_the_future_is_refused(index, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs penstock[parquet]")
    path = tmp_path / "index.parquet"
    index.save(path)
    table = parquet.read_table(path)
    newer = table.schema.metadata | {b"penstock.index.version": b"2"}
    parquet.write_table(table.replace_schema_metadata(newer), path)
    with pytest.raises(Unsupported, match=r"is an index of version 2, .* knows version 1; upgrade"):
        Index.load(path)
    parquet.write_table(table.replace_schema_metadata({}), path)
    with pytest.raises(Unsupported, match="is a table but no index"):
        Index.load(path)


@pytest.mark.parametrize("name", ["index.parquet", "index.arrow"])
def test_a_broken_file_is_refused(index, tmp_path, name):
    pytest.importorskip("pyarrow", reason="needs penstock[parquet]")
    path = tmp_path / name
    index.save(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(IntegrityError, match="cannot be read"):
        Index.load(path)


def test_mistakes_are_named(index, tmp_path):
    pytest.importorskip("pyarrow", reason="needs penstock[parquet]")
    with pytest.raises(ConfigError, match=r"named \.parquet or \.arrow"):
        index.save(tmp_path / "index.csv")
    with pytest.raises(NotFound):
        Index.load(tmp_path / "missing.parquet")


def test_without_pyarrow_the_message_names_the_extra(index, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"pip install 'penstock\[parquet\]'"):
        index.save(tmp_path / "index.parquet")
    with pytest.raises(ConfigError, match=r"pip install 'penstock\[parquet\]'"):
        Index.load(tmp_path / "index.parquet")


def test_neither_pyarrow_nor_torch_is_imported_for_an_index():
    code = (
        "import sys; from penstock.listing import Index, list_objects; "
        "list_objects('memory://none'); print('pyarrow' in sys.modules, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == "False"


def test_numpy_reads_the_sizes_in_place(index):
    numpy = pytest.importorskip("numpy")
    sizes = numpy.asarray(index.sizes)
    assert sizes.dtype == numpy.uint64
    assert sizes.tolist() == list(index.sizes)
    assert not sizes.flags.writeable


def test_its_url_opens_the_store_of_its_keys(object_server, store_url):
    store = open_store(store_url, object_server.config)
    store.put("a/x", b"data")
    index = penstock.list_objects(f"{store_url}/a", config=object_server.config)
    assert index.url == "s3://train"
    assert bytes(open_store(index.url, object_server.config).get(index.keys[0])) == b"data"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_it_unpickles_in_a_spawned_process(index):
    spawn = multiprocessing.get_context("spawn")
    answer = spawn.SimpleQueue()
    process = spawn.Process(target=_answer_length, args=(index, answer))
    process.start()
    assert answer.get() == len(index)
    process.join()


def _answer_length(index, answer):
    answer.put(len(index))
