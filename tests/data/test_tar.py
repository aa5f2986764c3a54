"""TarDataset: samples grouped as WebDataset groups them, few requests, a table of contents that is kept."""

import gzip
import io
import json
import tarfile
from dataclasses import replace

import pytest
from tests.data.made import tar_of
from torch.utils.data import DataLoader

import penstock
from penstock import TransferConfig, errors
from penstock.data import SKIPPED

LONG = "a-very-long-name/" * 12 + "sample"


def shard(first, count, size=100):
    return [
        (f"{i:05}.{ext}", bytes([i % 251]) * size)
        for i in range(first, first + count)
        for ext in ("jpg", "cls")
    ]


@pytest.fixture(scope="module")
def shards(put):
    """Three shards of 20 samples."""
    return put({f"{n}.tar": tar_of(shard(20 * n, 20)) for n in range(3)})


def contents_of(dataset):
    """(stem, extensions and bytes) of every sample."""
    return [(sample.key.partition(".tar/")[2], sample.data) for sample in dataset]


def test_files_of_one_name_are_one_sample(shards, config):
    dataset = penstock.TarDataset.from_prefix(shards, config=config)
    samples = [*dataset]
    assert len(dataset) == len(samples) == 60
    assert samples[25].key.endswith("/1.tar/00025")
    assert samples[25].data == {"jpg": bytes([25]) * 100, "cls": bytes([25]) * 100}


ODD = [
    ("plain.jpg", b"1"),
    ("folder/plain.jpg", b"2"),
    ("folder/plain.seg.png", b"3"),
    ("dotted.folder/000.jpg", b"4"),
    ("UPPER.JPG", b"5"),
    ("README", b"of no sample"),
    (".hidden", b"of no sample"),
    ("empty.txt", b""),
    ("empty.cls", b""),
    ("plain.jpg", b"again, and so a sample of its own"),
    (f"{LONG}.jpg", b"6"),
    (f"{LONG}.cls", b"7"),
    ("größe-日本.txt", b"8"),
    ("last.txt", b""),
]
ODD_SAMPLES = [
    ("plain", {"jpg": b"1"}),
    ("folder/plain", {"jpg": b"2", "seg.png": b"3"}),
    ("dotted.folder/000", {"jpg": b"4"}),
    ("UPPER", {"jpg": b"5"}),
    ("empty", {"txt": b"", "cls": b""}),
    ("plain", {"jpg": b"again, and so a sample of its own"}),
    (LONG, {"jpg": b"6", "cls": b"7"}),
    ("größe-日本", {"txt": b"8"}),
    ("last", {"txt": b""}),
]


@pytest.mark.parametrize("layout", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_odd_names_are_grouped_too(put, config, layout):
    url = put({"odd.tar": tar_of(ODD, format=layout)})
    assert contents_of(penstock.TarDataset.from_prefix(url, config=config)) == ODD_SAMPLES


@pytest.mark.parametrize("layout", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_webdataset_groups_them_the_same_way(layout):
    theirs = pytest.importorskip("webdataset.tariterators", reason="webdataset is not installed")
    files = [
        file | {"__url__": "odd.tar"}
        for file in theirs.tar_file_iterator(io.BytesIO(tar_of(ODD, format=layout)))
    ]
    assert [
        (sample["__key__"], {k: v for k, v in sample.items() if not k.startswith("__")})
        for sample in theirs.group_by_keys(files)
    ] == ODD_SAMPLES


def test_an_empty_member_that_is_read_alone_is_empty(put, config):
    """Shuffled, so that no neighbour is read with it."""
    url = put({"a.tar": tar_of([(f"{i}.txt", b"") for i in range(4)])})
    dataset = penstock.TarDataset.from_prefix(url, config=config, shuffle=True)
    assert sorted(contents_of(dataset)) == [(f"{i}", {"txt": b""}) for i in range(4)]


def test_neighbours_are_read_in_one_request(shards, counted, fault_proxy):
    dataset = penstock.TarDataset.from_prefix(shards, config=counted)
    fault_proxy.clear_log()
    assert len([*dataset]) == 60
    assert fault_proxy.count() == 3


def test_a_large_shard_is_read_in_pieces_of_a_few_mib(put, counted, fault_proxy):
    url = put({"a.tar": tar_of([(f"{i}.bin", bytes(1 << 20)) for i in range(9)])})
    dataset = penstock.TarDataset.from_prefix(url, config=counted)
    fault_proxy.clear_log()
    assert [len(data["bin"]) for _, data in contents_of(dataset)] == [1 << 20] * 9
    assert 3 <= fault_proxy.count() <= 4
    assert max(request.bytes_sent for request in fault_proxy.requests) < 5 << 20


def test_the_contents_of_small_members_cost_few_requests(put, counted, fault_proxy):
    """200 members of 1 KiB: not a request each."""
    url = put({"a.tar": tar_of(shard(0, 100, 1024))})
    penstock.TarDataset.from_prefix(url, config=counted)
    assert fault_proxy.count() <= 1 + 4


def test_the_contents_of_large_members_cost_no_bodies(put, counted, fault_proxy):
    url = put({"a.tar": tar_of([(f"{i}.bin", bytes(1 << 20)) for i in range(6)])})
    fault_proxy.clear_log()
    penstock.TarDataset.from_prefix(url, config=counted)
    sent = sum(request.bytes_sent for request in fault_proxy.requests if request.key)
    assert sent < 1 << 20


def headers_read(proxy):
    return [request.key for request in proxy.requests if request.key.endswith(".tar")]


@pytest.mark.parametrize("by", ["prefix", "objects"])
def test_a_table_of_contents_is_kept_and_used_again(shards, counted, fault_proxy, store_url, by):
    kept = f"{store_url}/contents.json.gz"

    def make():
        fault_proxy.clear_log()
        if by == "prefix":
            return penstock.TarDataset.from_prefix(shards, config=counted, contents=kept)
        urls = [f"{shards}/{n}.tar" for n in range(3)]
        return penstock.TarDataset.from_objects(urls, config=counted, contents=kept)

    first = contents_of(make())
    again = make()
    heads = fault_proxy.count("HEAD")
    assert len(headers_read(fault_proxy)) == heads == (0 if by == "prefix" else 3)
    assert contents_of(again) == first


def test_a_kept_table_is_made_anew_when_a_shard_has_changed(put, config, store_url):
    url = put({"a.tar": tar_of(shard(0, 3)), "b.tar": tar_of(shard(3, 3))})
    kept = f"{store_url}/contents.json.gz"
    assert len(penstock.TarDataset.from_prefix(url, config=config, contents=kept)) == 6
    penstock.open_store(url, config).put("b.tar", tar_of(shard(3, 5)))
    changed = penstock.TarDataset.from_prefix(url, config=config, contents=kept)
    assert len(changed) == len([*changed]) == 8
    again = penstock.TarDataset.from_prefix(url, config=config, contents=kept)
    assert contents_of(again) == contents_of(changed)


def test_a_kept_table_of_another_version_is_refused(shards, config, store_url):
    state = gzip.compress(json.dumps({"penstock_tar_index": 99}).encode())
    penstock.open_store(store_url, config).put("kept", state)
    with pytest.raises(ValueError, match=r"not a tar index of version 1; make it anew"):
        penstock.TarDataset.from_prefix(shards, config=config, contents=f"{store_url}/kept")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"this is no tar at all" * 100, r"bad\.tar: not an uncompressed tar file"),
        (b"", r"bad\.tar: not an uncompressed tar file"),
        (gzip.compress(tar_of([("a.txt", b"1")])), r"bad\.tar: .*unpack what is compressed"),
        (tar_of(shard(0, 3))[:600], r"bad\.tar: not an uncompressed tar file \(unexpected end"),
        (tar_of(shard(0, 3))[:1500], r"bad\.tar: the header at byte 1024 is broken"),
        (
            tar_of([("a.txt", b"1")])[:1024] + b"\xff" * 512 + bytes(1024),
            r"bad\.tar: the header at byte 1024 is broken",
        ),
    ],
    ids=["garbage", "empty", "compressed", "cut body", "cut header", "broken header"],
)
def test_what_is_no_tar_is_named(put, config, data, message):
    url = put({"bad.tar": data, "good.tar": tar_of(shard(0, 1))})
    with pytest.raises(errors.BadSample, match=message):
        penstock.TarDataset.from_prefix(url, config=config)


def test_a_sparse_member_is_refused_rather_than_read_wrongly(put, config, tmp_path):
    data = bytearray(tar_of([("a.bin", b"data")], format=tarfile.GNU_FORMAT))
    data[156:157] = tarfile.GNUTYPE_SPARSE
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    url = put({"sparse.tar": bytes(data)})
    with pytest.raises(errors.BadSample, match=r"sparse\.tar: a\.bin is a sparse file"):
        penstock.TarDataset.from_prefix(url, config=config)


def test_a_shard_that_changed_since_is_an_error_for_its_samples_alone(put, config):
    url = put({"a.tar": tar_of(shard(0, 3)), "b.tar": tar_of(shard(3, 3))})
    failed = {}

    def note(key, error):
        failed[key.partition(".tar/")[2]] = type(error)
        return SKIPPED

    dataset = penstock.TarDataset.from_prefix(url, config=config, on_error=note)
    penstock.open_store(url, config).put("b.tar", tar_of(shard(100, 3)))
    found = contents_of(dataset)
    assert failed == dict.fromkeys(["00003", "00004", "00005"], errors.ObjectChanged)
    assert {stem for stem, _ in found} == {"00000", "00001", "00002"}
    assert len(found) == 6


def test_shuffling_mixes_shards_and_neighbours(shards, config):
    dataset = penstock.TarDataset.from_prefix(shards, config=config, shuffle=True)
    one = [stem for stem, _ in contents_of(dataset)]
    dataset.set_epoch(1)
    other = [stem for stem, _ in contents_of(dataset)]
    assert sorted(one) == sorted(other) == [f"{i:05}" for i in range(60)]
    assert one != other
    assert {int(stem) // 20 for stem in one[:20]} == {0, 1, 2}


def test_a_small_shuffle_buffer_stays_near(shards, config):
    dataset = penstock.TarDataset.from_prefix(shards, config=config, shuffle=True, shuffle_buffer=5)
    stems = [int(stem) for stem, _ in contents_of(dataset)]
    assert all(len({stem // 5 for stem in stems[at : at + 5]}) == 1 for at in range(0, 60, 5))


def test_a_shuffle_buffer_of_nothing_is_refused(shards, config):
    with pytest.raises(ValueError, match="shuffle_buffer must be at least 1, got 0"):
        penstock.TarDataset.from_prefix(shards, config=config, shuffle_buffer=0)


def test_workers_share_one_shard(put, config):
    """Shared by samples, not by shards: two workers of one shard both have work."""
    url = put({"a.tar": tar_of(shard(0, 10))})
    dataset = penstock.TarDataset.from_prefix(
        url, config=config, transform=lambda s: s.key[-5:], batch_size=5
    )
    loader = DataLoader(dataset, 5, num_workers=2, multiprocessing_context="fork")
    assert [*loader] == [[f"{i:05}" for i in range(5)], [f"{i:05}" for i in range(5, 10)]]


def test_a_transform_that_fails_names_the_sample(shards, config):
    dataset = penstock.TarDataset.from_prefix(
        shards, config=config, transform=lambda sample: sample.data["png"]
    )
    with pytest.raises(errors.BadSample, match=r"/0\.tar/00000: transform raised KeyError: 'png'"):
        next(iter(dataset))


def test_an_index_gives_the_same_dataset(shards, config):
    index = penstock.list_objects(shards, config=replace(config, transfer=TransferConfig()))
    dataset = penstock.TarDataset.from_index(index[1:2], config=config)
    assert [stem for stem, _ in contents_of(dataset)] == [f"{i:05}" for i in range(20, 40)]
