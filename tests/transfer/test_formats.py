"""The readers and writers of other libraries work on `open_reader` and `open_writer` as on files."""

import io
import tarfile
import zipfile

import pytest
import torch

from penstock import open_reader, open_writer


@pytest.fixture
def url(store_url):
    return f"{store_url}/object"


@pytest.fixture
def config(object_server):
    return object_server.config


def test_torch(url, config):
    state = {"weights": torch.arange(700_000, dtype=torch.float32), "epoch": torch.tensor(3)}
    with open_writer(url, config=config) as file:
        torch.save(state, file)
    with open_reader(url, config=config) as file:
        loaded = torch.load(file, weights_only=True)
    assert torch.equal(loaded["weights"], state["weights"])
    assert torch.equal(loaded["epoch"], state["epoch"])


def test_torch_in_the_old_format(url, config):
    with open_writer(url, config=config) as file:
        torch.save({"weights": torch.arange(1000)}, file, _use_new_zipfile_serialization=False)
    with open_reader(url, config=config) as file:
        assert torch.equal(torch.load(file, weights_only=True)["weights"], torch.arange(1000))


def test_zipfile(url, config):
    with open_writer(url, config=config) as file, zipfile.ZipFile(file, "w") as archive:
        for number in range(50):
            archive.writestr(f"{number}.txt", f"{number}" * 1000)
    with open_reader(url, config=config) as file, zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None
        assert archive.read("37.txt") == b"37" * 1000


@pytest.mark.parametrize("compression", ["", "gz"])
def test_tarfile(url, config, compression):
    with (
        open_writer(url, config=config) as file,
        tarfile.open(fileobj=file, mode=f"w|{compression}") as archive,
    ):
        for number in range(50):
            data = f"{number}".encode() * 1000
            member = tarfile.TarInfo(f"{number}.txt")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    with open_reader(url, config=config) as file, tarfile.open(fileobj=file) as archive:
        assert archive.extractfile("37.txt").read() == b"37" * 1000
    with (
        open_reader(url, config=config) as file,
        tarfile.open(fileobj=file, mode=f"r|{compression}") as archive,
    ):
        assert [member.name for member in archive] == [f"{number}.txt" for number in range(50)]


def test_pillow(url, config):
    image_module = pytest.importorskip("PIL.Image")
    image = image_module.radial_gradient("L")
    with open_writer(url, config=config) as file:
        image.save(file, "PNG")
    with open_reader(url, config=config) as file:
        loaded = image_module.open(file)
        loaded.load()
    assert loaded.tobytes() == image.tobytes()


def test_parquet(url, config):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"number": list(range(100_000)), "text": ["word"] * 100_000})
    with open_writer(url, config=config) as file:
        parquet.write_table(table, file, row_group_size=10_000)
    with open_reader(url, config=config) as file:
        assert parquet.read_table(file) == table
    with open_reader(url, config=config) as file:
        groups = parquet.ParquetFile(file)
        assert groups.read_row_group(7, columns=["number"])["number"][0].as_py() == 70_000


def test_arrow_streams(url, config):
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"number": list(range(10_000))})
    with (
        open_writer(url, config=config) as file,
        pyarrow.ipc.new_stream(file, table.schema) as stream,
    ):
        stream.write_table(table)
    with open_reader(url, config=config) as file:
        assert pyarrow.ipc.open_stream(file).read_all() == table


def test_safetensors(url, config):
    safetensors = pytest.importorskip("safetensors.torch")
    state = {"weights": torch.arange(700_000, dtype=torch.float32)}
    with open_writer(url, config=config) as file:
        file.write(safetensors.save(state))
    with open_reader(url, config=config) as file:
        assert torch.equal(safetensors.load(file.read())["weights"], state["weights"])
