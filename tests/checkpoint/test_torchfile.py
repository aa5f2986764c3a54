"""The layout of a torch.save file, read and written: torch and zipfile are the judges."""

import io
import zipfile
import zlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.checkpoint.states import states

from penstock.checkpoint.capture import capture
from penstock.checkpoint.memory import chunks_of
from penstock.checkpoint.torchfile import Unplannable, plan_archive, read_layout
from penstock.checkpoint.write import write_archive
from penstock.errors import InvalidCheckpoint

GIB = 1 << 30


def written_by_torch(state):
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def written_by_us(state):
    captured = capture(state)
    file = io.BytesIO()
    write_archive(file, captured.archive, lambda name: chunks_of(captured.storages[name]))
    assert file.tell() == captured.archive.size
    return file.getvalue()


def layout_of(data):
    return read_layout(len(data), lambda a, b: memoryview(data)[a:b], byteorder="little")


@given(states())
def test_we_write_the_bytes_that_torch_writes(state):
    """All but the last record, an id that torch makes up and nothing reads."""
    theirs = written_by_torch(state)
    with zipfile.ZipFile(io.BytesIO(theirs)) as archive:
        own_id = archive.getinfo("archive/.data/serialization_id")
    ours = written_by_us(state)
    assert ours[: own_id.header_offset] == theirs[: own_id.header_offset]
    with zipfile.ZipFile(io.BytesIO(ours)) as archive:
        assert archive.testzip() is None


@given(states())
def test_every_record_is_found_where_zipfile_finds_it(state):
    data = written_by_torch(state)
    layout = layout_of(data)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for record in [layout.pickle, *layout.storages.values()]:
            assert data[record.start : record.stop] == archive.read(record.name)
            assert record.crc32 == zlib.crc32(data[record.start : record.stop])


class Holes:
    """A file of which only headers and directory exist. Data may not be read."""

    def __init__(self, sizes):
        self.archive = plan_archive(b"pickle", [*enumerate(sizes)], byteorder="little")
        self.pieces = []
        crcs = {slot.name: 1 for slot in self.archive.slots}
        for slot in self.archive.slots:
            small = self.archive.contents.get(slot.name)
            self.pieces.append((slot.header_at, slot.header))
            self.pieces.append((slot.start, small or b""))
            self.pieces.append((slot.start + slot.size, slot.trailer(1)))
        self.pieces.append((self.archive.directory_at, self.archive.directory(crcs)))

    def read(self, start, stop):
        found = b"".join(
            data[max(0, start - at) : max(0, stop - at)]
            for at, data in self.pieces
            if at < stop and start < at + len(data)
        )
        assert len(found) == stop - start, "data was read, and not just what describes it"
        return memoryview(found)

    def to_file(self, path):
        with path.open("wb") as file:
            for at, data in self.pieces:
                file.seek(at)
                file.write(data)


@given(st.lists(st.one_of(st.integers(0, 200), st.integers(3 * GIB, 9 * GIB)), max_size=6))
def test_offsets_beyond_4_gib_are_found_without_reading_any_data(sizes):
    holes = Holes(sizes)
    layout = read_layout(holes.archive.size, holes.read, byteorder="little")
    slots = {slot.name: slot for slot in holes.archive.slots}
    for key, size in enumerate(sizes):
        record = layout.storages[str(key)]
        assert record.size == size
        if size:
            assert record.start == slots[record.name].start
            assert record.start % 64 == 0


@pytest.mark.parametrize("sizes", [[5 * GIB, 64], [64, 5 * GIB], [3 * GIB, 3 * GIB, 64]])
def test_torch_finds_beyond_4_gib_what_we_wrote(sizes, tmp_path):
    """In a file full of holes, so that it takes no room."""
    path = tmp_path / "large.pt"
    Holes(sizes).to_file(path)
    reader = torch._C.PyTorchFileReader(str(path))
    layout = read_layout(
        path.stat().st_size, lambda a, b: memoryview(read(path, a, b)), byteorder="little"
    )
    for key in range(len(sizes)):
        assert reader.get_record_offset(f"data/{key}") == layout.storages[str(key)].start


def read(path, start, stop):
    with path.open("rb") as file:
        file.seek(start)
        return file.read(stop - start)


def test_a_file_without_alignment_is_looked_up_header_by_header():
    """As zip tools write it, and not torch."""
    source = written_by_torch({"a": torch.arange(100), "b": torch.ones(3)})
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(source)) as one, zipfile.ZipFile(file, "w") as other:
        for info in one.infolist():
            other.writestr(info.filename, one.read(info.filename))
    data = file.getvalue()
    record = layout_of(data).storages["0"]
    assert data[record.start : record.stop] == torch.arange(100).numpy().tobytes()


def test_a_compressed_file_is_not_planned():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"x" * 1000)
    with pytest.raises(Unplannable, match="compressed"):
        layout_of(file.getvalue())


def test_another_byte_order_is_not_planned():
    data = written_by_torch({"a": torch.ones(3)})
    with pytest.raises(Unplannable, match="byte order"):
        read_layout(len(data), lambda a, b: memoryview(data)[a:b], byteorder="big")


@given(at=st.integers(0, 10_000), value=st.integers(0, 255))
def test_a_damaged_directory_never_points_outside_the_file(at, value):
    data = bytearray(written_by_torch({"a": torch.ones(300), "b": [torch.zeros(5)]}))
    data[len(data) - 1 - at % 900] = value
    try:
        layout = layout_of(bytes(data))
    except (Unplannable, InvalidCheckpoint):
        return
    for record in [layout.pickle, *layout.storages.values()]:
        assert 0 <= record.start <= record.stop <= len(data)
