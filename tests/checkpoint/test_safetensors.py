"""Our reader and writer of safetensors, beside the reference implementation."""

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
from tests.checkpoint.states import DTYPES, tensor_of

from penstock.checkpoint import describe, load, save
from penstock.checkpoint.safetensors import header_bytes, parse_header
from penstock.errors import InvalidCheckpoint

HELD = [d for d in DTYPES if d is not torch.complex128]


@pytest.fixture
def state():
    found = {f"{i}.{dtype}": tensor_of(dtype, (3, i % 4, 2), i) for i, dtype in enumerate(HELD)}
    return found | {"scalar": torch.tensor(1.5), "ünicode": torch.ones(1)}


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert bits(found[name]) == bits(tensor), name


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).tolist() if tensor.numel() else []


def test_the_reference_reads_what_we_write(state, tmp_path):
    path = tmp_path / "ours.safetensors"
    meta = save(state, path)
    assert meta.size == path.stat().st_size
    same(safetensors.torch.load_file(path), state)


def test_we_read_what_the_reference_writes(state, tmp_path):
    path = tmp_path / "theirs.safetensors"
    safetensors.torch.save_file(state, path, metadata={"format": "pt"})
    same(load(path), state)


def test_views_are_written_row_by_row(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    save({"a": base.t()}, tmp_path / "a.safetensors")
    save({"a": base[1:]}, tmp_path / "b.safetensors")
    assert load(tmp_path / "a.safetensors")["a"].equal(base.t())
    assert load(tmp_path / "b.safetensors")["a"].equal(base[1:])


def test_a_part_is_loaded_and_a_module_filled(tmp_path):
    path = tmp_path / "m.safetensors"
    one, other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    save(one.state_dict(), path)
    assert [*load(path, only="w*")] == ["weight"]
    load(path, into=other)
    assert other.weight.equal(one.weight)
    assert [(t.name, t.shape) for t in describe(path)] == [("bias", (2,)), ("weight", (2, 3))]


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        ([1], "dict of tensors"),
        ({"a": 1}, "tensors by name"),
        ({"a": torch.ones(1, dtype=torch.complex128)}, "cannot hold"),
        ({"a": torch.eye(2).to_sparse()}, "sparse"),
    ],
)
def test_what_the_format_cannot_hold_is_refused_and_nothing_appears(obj, message, tmp_path):
    with pytest.raises((TypeError, ValueError), match=message):
        save(obj, tmp_path / "x.safetensors")
    assert not [*tmp_path.iterdir()]


def test_shared_memory_is_refused(tmp_path):
    base = torch.ones(3)
    with pytest.raises(ValueError, match="'a' and 'b' share memory"):
        save({"a": base, "b": base}, tmp_path / "x.safetensors")


def described(dtype="F32", shape=(2,), offsets=(0, 8), **more):
    return {"dtype": dtype, "shape": [*shape], "data_offsets": [*offsets], **more}


HOSTILE = {
    "a hole at the beginning": ({"a": described(offsets=(4, 12))}, 12),
    "a hole between": ({"a": described(), "b": described(offsets=(12, 20))}, 20),
    "an overlap": ({"a": described(), "b": described(offsets=(4, 12))}, 12),
    "data left over": ({"a": described()}, 12),
    "data missing": ({"a": described()}, 4),
    "a shape that does not fit": ({"a": described(shape=(3,))}, 8),
    "a bomb": ({"a": described(shape=(1 << 40, 1 << 40), offsets=(0, 8))}, 8),
    "an overflow": ({"a": described(shape=(1 << 64, 0), offsets=(0, 0))}, 0),
    "a negative shape": ({"a": described(shape=(-2,))}, 8),
    "true for a number": ({"a": described(shape=(True,), offsets=(0, 4))}, 4),
    "offsets in reverse": ({"a": described(offsets=(8, 0))}, 8),
    "an unknown dtype": ({"a": described(dtype="F99")}, 8),
    "an unknown field": ({"a": described(extra=1)}, 8),
    "a tensor that is none": ({"a": 5}, 8),
    "metadata that is none": ({"__metadata__": {"a": 1}}, 0),
}


def file_of(header, size):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(size)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_header_that_lies_is_refused_as_by_the_reference(name, tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(file_of(*HOSTILE[name]))
    with pytest.raises(InvalidCheckpoint, match="damaged or hostile"):
        load(path)
    if name not in ("true for a number", "an unknown field"):  # it is laxer there
        with pytest.raises(safetensors.SafetensorError):
            safetensors.torch.load_file(path)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\1\0\0",
        (1 << 40).to_bytes(8, "little") + b"{}",
        (200).to_bytes(8, "little") + b"{}",
        file_of(b"[]", 0),
        file_of(b"{", 0),
        file_of(b"{}}", 0),
        file_of(b' {"a":1}', 0),
        file_of(b'{"a": %b, "a": %b}' % ((json.dumps(described()).encode(),) * 2), 8),
        file_of(b"[" * 100_000, 0),
        file_of(b'{"a":' * 100_000, 0),
    ],
    ids=lambda data: bytes(data[:20]).hex(),
)
def test_what_is_no_header_is_refused(data, tmp_path):
    path = Path(tmp_path / "x.safetensors")
    path.write_bytes(data)
    with pytest.raises(InvalidCheckpoint):
        load(path)


def test_a_header_is_refused_by_its_length_alone():
    """Before it is read, and before anything is allocated."""
    with pytest.raises(InvalidCheckpoint, match="100000000"):
        header_bytes(memoryview((100_000_001).to_bytes(8, "little")), size=1 << 50)
    header = file_of({}, 0)
    assert parse_header(memoryview(header), size=len(header)) == []
