"""Loads over a real server: how little is read, into what, and what happens to files that cannot be planned."""

import io
import zipfile
from dataclasses import replace
from typing import ClassVar

import pytest
import torch

from penstock import load, open_store, save
from penstock.checkpoint import SlowLoadWarning, describe
from penstock.errors import InvalidCheckpoint, NotFound, ObjectChanged
from penstock.testing import Fault

MIB = 1 << 20


class Wrapped(torch.Tensor):
    """A tensor without memory of its own, around another one."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError(func)


@pytest.fixture
def seen(object_server, fault_proxy):
    """The config of a store whose requests are counted, and the proxy that counts."""
    return replace(object_server.config, endpoint=fault_proxy.endpoint), fault_proxy


def put(url, data, config):
    store, _, key = url.rpartition("/")
    open_store(store, config).put(key, data)


def torch_saved(state, **options):
    file = io.BytesIO()
    torch.save(state, file, **options)
    return file.getvalue()


@pytest.fixture
def large():
    return {f"layer{i}": torch.randn(MIB) for i in range(6)} | {
        f"norm{i}": torch.randn(100) for i in range(50)
    }


def test_a_small_file_is_one_request(store_url, seen):
    config, proxy = seen
    save({"a": torch.ones(1000)}, f"{store_url}/s.pt", config=config)
    proxy.clear_log()
    load(f"{store_url}/s.pt", config=config)
    assert [r.method for r in proxy.requests] == ["GET"]


def test_a_large_file_is_read_once_in_few_requests(store_url, seen, large):
    config, proxy = seen
    meta = save(large, f"{store_url}/l.pt", config=config)
    proxy.clear_log()
    found = load(f"{store_url}/l.pt", config=config)
    assert all(found[name].equal(large[name]) for name in large)
    assert len(proxy.requests) <= 10
    assert sum(r.bytes_sent for r in proxy.requests) <= meta.size + 2 * MIB
    assert all(r.method == "GET" for r in proxy.requests)


def test_only_reads_only_its_share(store_url, seen, large):
    config, proxy = seen
    save({"model": large, "epoch": 3}, f"{store_url}/l.pt", config=config)
    proxy.clear_log()
    found = load(f"{store_url}/l.pt", only=["model.layer3", "epoch"], config=config)
    assert found["epoch"] == 3
    assert [*found["model"]] == ["layer3"]
    assert found["model"]["layer3"].equal(large["layer3"])
    assert sum(r.bytes_sent for r in proxy.requests) <= 4 * MIB + 2 * MIB


def test_describing_reads_no_tensor(store_url, seen, large):
    config, proxy = seen
    save(large, f"{store_url}/l.pt", config=config)
    proxy.clear_log()
    found = describe(f"{store_url}/l.pt", config=config)
    assert [(t.name, t.shape) for t in found] == [(k, tuple(v.shape)) for k, v in large.items()]
    assert found[0].size_bytes == 4 * MIB
    assert len(proxy.requests) == 2


def test_nothing_that_matches_is_an_error_that_shows_keys(store_url, object_server):
    save({"a": torch.ones(1)}, f"{store_url}/s.pt", config=object_server.config)
    with pytest.raises(KeyError, match="nothing matches"):
        load(f"{store_url}/s.pt", only="b.*", config=object_server.config)


def test_all_reads_are_of_one_version(store_url, seen, large):
    """The object is replaced between the first request and the others."""
    config, proxy = seen
    url = f"{store_url}/l.pt"
    save(large, url, config=config)
    proxy.add(Fault.latency(1500, method="GET", key="*l.pt", skip=2))
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(load, url, config=config)
        while proxy.count("GET", "*l.pt") < 3:
            pass
        save({"other": torch.zeros(9 * MIB)}, url, config=config)
        with pytest.raises(ObjectChanged):
            loading.result()


class TestInto:
    def test_a_module_is_filled_in_place(self, store_url, object_server):
        config = object_server.config
        one, other = (
            torch.nn.Sequential(torch.nn.Linear(900, 900), torch.nn.BatchNorm1d(900)) for _ in "ab"
        )
        url = f"{store_url}/m.pt"
        save(one.state_dict(), url, config=config)
        where = other[0].weight.data_ptr()
        assert load(url, into=other, config=config) is other
        assert other[0].weight.data_ptr() == where
        found = other.state_dict()
        assert all(found[name].equal(tensor) for name, tensor in one.state_dict().items())

    def test_every_layout_arrives(self, store_url, object_server):
        """Contiguous, channels last, a view of a larger storage, half of another tensor; and plain values."""
        config = object_server.config
        base = torch.randn(8, 3, 4, 4)
        state = {
            "rows": base,
            "channels": torch.randn(8, 3, 4, 4).contiguous(memory_format=torch.channels_last),
            "part": torch.arange(10.0)[3:6],
            "turned": torch.arange(6.0).reshape(2, 3).t(),
            "scalar": torch.tensor(2),
            "empty": torch.empty(0, 3),
            "nested": [{"step": 5, "t": torch.ones(2, dtype=torch.bfloat16)}],
            "betas": (0.9, 0.99),
        }
        into = {
            "rows": torch.zeros(8, 3, 4, 4).contiguous(memory_format=torch.channels_last),
            "channels": torch.zeros(8, 3, 4, 4).contiguous(memory_format=torch.channels_last),
            "part": torch.zeros(6)[::2],
            "turned": torch.zeros(3, 2),
            "scalar": torch.tensor(0),
            "empty": torch.empty(0, 3),
            "nested": [{"step": 0, "t": torch.zeros(2, dtype=torch.bfloat16)}],
            "betas": (0.0, 0.0),
        }
        save(state, f"{store_url}/s.pt", config=config)
        load(f"{store_url}/s.pt", into=into, config=config)
        for name in ("rows", "channels", "part", "turned", "scalar", "empty"):
            assert into[name].equal(state[name]), name
        assert into["nested"][0]["step"] == 5
        assert into["nested"][0]["t"].equal(state["nested"][0]["t"])
        assert into["betas"] == (0.9, 0.99)

    @pytest.mark.parametrize(
        ("into", "message"),
        [
            (
                {"a": torch.zeros(4), "b": torch.zeros(2)},
                r"a is float32 \[3\] in the file and float32 \[4\] here",
            ),
            ({"a": torch.zeros(3).double(), "b": torch.zeros(2)}, "a is float32 .* and float64"),
            ({"a": torch.zeros(3)}, "b is in the file and not here"),
            (
                {"a": torch.zeros(3), "b": torch.zeros(2), "c": torch.zeros(1)},
                "c is not in the file",
            ),
        ],
    )
    def test_what_does_not_fit_is_named_before_anything_is_written(
        self, into, message, store_url, object_server
    ):
        state = {"a": torch.ones(3), "b": torch.ones(2)}
        save(state, f"{store_url}/s.pt", config=object_server.config)
        with pytest.raises(ValueError, match=message):
            load(f"{store_url}/s.pt", into=into, config=object_server.config)
        assert all(not tensor.any() for tensor in into.values())

    def test_only_narrows_both_sides(self, store_url, object_server):
        save(
            {"a": torch.ones(3), "b": torch.ones(2)},
            f"{store_url}/s.pt",
            config=object_server.config,
        )
        into = {"a": torch.zeros(3), "c": torch.zeros(1)}
        load(f"{store_url}/s.pt", into=into, only="a", config=object_server.config)
        assert into["a"].all()
        assert not into["c"].any()


class TestMapLocation:
    STATE: ClassVar = {"a": torch.ones(3), "b": [torch.zeros(2)]}

    @pytest.fixture
    def url(self, store_url, object_server):
        save(self.STATE, f"{store_url}/s.pt", config=object_server.config)
        return f"{store_url}/s.pt"

    @pytest.mark.parametrize(
        "where", [None, "cpu", torch.device("cpu"), {"cuda:0": "cpu"}, lambda storage, _: storage]
    )
    def test_the_cpu_by_any_name(self, where, url, object_server):
        found = load(url, map_location=where, config=object_server.config)
        assert found["a"].equal(self.STATE["a"])

    def test_meta_reads_no_tensor(self, url, object_server):
        found = load(url, map_location="meta", config=object_server.config)
        assert found["a"].is_meta

    def test_a_function_is_given_the_filled_storage_and_its_place(self, url, object_server):
        given = []

        def where(storage, location):
            given.append((storage.nbytes(), location))
            return None if location == "cpu" else storage

        found = load(url, map_location=where, config=object_server.config)
        assert given == [(12, "cpu"), (8, "cpu")]
        assert found["a"].equal(self.STATE["a"])

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
    def test_a_device_that_is_not_there_is_refused(self, url, object_server):
        with pytest.raises(RuntimeError, match="CUDA"):
            load(url, map_location="cuda", config=object_server.config)


class TestOtherFiles:
    STATE: ClassVar = {"a": torch.arange(5), "b": [torch.ones(3)[1:]]}

    @pytest.fixture
    def load_bytes(self, store_url, object_server):
        def load_them(data, **options):
            put(f"{store_url}/x.pt", data, object_server.config)
            return load(f"{store_url}/x.pt", config=object_server.config, **options)

        return load_them

    def test_the_format_before_torch_1_6_is_read_by_torch(self, load_bytes):
        data = torch_saved(self.STATE, _use_new_zipfile_serialization=False)
        with pytest.warns(SlowLoadWarning, match="not a zip file"):
            assert load_bytes(data)["a"].equal(self.STATE["a"])
        with pytest.warns(SlowLoadWarning):
            assert [*load_bytes(data, only="b")] == ["b"]
        into = {"a": torch.zeros(5, dtype=torch.int64), "b": [torch.zeros(2)]}
        with pytest.warns(SlowLoadWarning):
            load_bytes(data, into=into)
        assert into["a"].equal(self.STATE["a"])

    def test_the_layout_of_older_torch(self, load_bytes):
        """No format version, no alignment, no byte order; storages in the order of their names as text."""
        state = {str(i): torch.full((i + 1,), i) for i in range(12)}
        with zipfile.ZipFile(io.BytesIO(torch_saved(state))) as new:
            pickled = new.read("archive/data.pkl")
            data = {i: new.read(f"archive/data/{i}") for i in range(12)}
        file = io.BytesIO()
        writer = torch._C.PyTorchFileWriter(file)
        writer.write_record("data.pkl", pickled, len(pickled))
        for name in sorted(map(str, data)):
            writer.write_record(f"data/{name}", data[int(name)], len(data[int(name)]))
        writer.write_end_of_file()
        found = load_bytes(file.getvalue())
        assert all(found[name].equal(state[name]) for name in state)

    def test_without_checksums(self, load_bytes):
        from torch.utils.serialization import config

        with config.patch({"save.compute_crc32": False}):
            data = torch_saved(self.STATE)
        assert load_bytes(data)["a"].equal(self.STATE["a"])

    def test_a_tensor_subclass_that_wraps_is_read_by_torch(self, load_bytes):
        data = torch_saved({"x": Wrapped(torch.ones(3))})
        with pytest.warns(SlowLoadWarning, match="subclass"):
            found = load_bytes(data, map_location="cpu", weights_only=False)
        assert found["x"].inner.equal(torch.ones(3))

    def test_a_pickle_that_lies_about_a_storage_is_refused(self, load_bytes):
        data = torch_saved({"a": torch.ones(100)})
        file = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(data)) as one, zipfile.ZipFile(file, "w") as other:
            for info in one.infolist():
                content = one.read(info.filename)
                short = content[:-4] if info.filename == "archive/data/0" else content
                other.writestr(info.filename, short)
        with pytest.raises(InvalidCheckpoint, match="storage 0 with 400 bytes, which has 396"):
            load_bytes(file.getvalue())

    def test_a_file_cut_short_is_refused(self, load_bytes):
        data = torch_saved({"a": torch.ones(100_000)})
        with pytest.raises(InvalidCheckpoint, match=r"x\.pt: its zip directory cannot be read"):
            load_bytes(data[:-1000])


def test_a_missing_object_is_named(store_url, object_server):
    with pytest.raises(NotFound, match=r"none\.pt"):
        load(f"{store_url}/none.pt", config=object_server.config)
