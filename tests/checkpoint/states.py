"""States to save, and what it means for two of them to be the same, bit for bit."""

from collections import OrderedDict

import torch
from hypothesis import strategies as st

from penstock.checkpoint.memory import host_view

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e8m0fnu,
    torch.complex64,
    torch.complex128,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.bool,
]


def tensor_of(dtype, shape, seed):
    """Any bits at all, but for bool, which has two values."""
    count = torch.Size(shape).numel()
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=_dice(seed)).to(torch.bool)
    raw = torch.randint(0, 256, (count * dtype.itemsize,), generator=_dice(seed)).to(torch.uint8)
    return raw.view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)


def _dice(seed):
    return torch.Generator().manual_seed(seed)


SHAPES = st.lists(st.integers(0, 4), max_size=3)
BASES = st.builds(tensor_of, st.sampled_from(DTYPES), SHAPES, st.integers(0, 1000))
VIEWS = {
    "itself": lambda t: t,
    "transposed": lambda t: t.transpose(0, -1) if t.dim() > 1 else t,
    "every other": lambda t: t[::2] if t.dim() else t,
    "the rest": lambda t: t[1:] if t.dim() else t,
    "expanded": lambda t: t.unsqueeze(0).expand(3, *t.shape),
    "first": lambda t: t[0] if t.dim() and len(t) else t,
    "parameter": lambda t: (
        torch.nn.Parameter(t, requires_grad=t.dtype.is_floating_point)
        if t.dtype in (torch.float32, torch.bfloat16, torch.float64)
        else t
    ),
}
PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.binary(min_size=1, max_size=5),
)


@st.composite
def states(draw):
    """Nested containers of views that share their storages, and of plain values."""
    bases = draw(st.lists(BASES, min_size=1, max_size=4))
    which = st.integers(0, len(bases) - 1)
    view = st.builds(lambda i, how: VIEWS[how](bases[i]), which, st.sampled_from([*VIEWS]))
    leaf = st.one_of(view, view, PLAIN)
    key = st.one_of(st.text(max_size=4), st.integers(0, 9))
    return draw(
        st.recursive(
            leaf,
            lambda inner: st.one_of(
                st.dictionaries(key, inner, max_size=4),
                st.dictionaries(key, inner, max_size=4).map(OrderedDict),
                st.lists(inner, max_size=4),
                st.lists(inner, max_size=3).map(tuple),
            ),
            max_leaves=12,
        )
    )


def assert_same(found, expected):
    """The same structure, the same bits, the same sharing."""
    homes = {}
    _same(found, expected, homes, "state")
    assert len(set(homes.values())) == len(homes), "storages that were apart are shared"


def _same(found, expected, homes, path):
    assert type(found) is type(expected), path
    if isinstance(expected, torch.Tensor):
        _same_tensor(found, expected, homes, path)
    elif isinstance(expected, dict):
        assert [*found] == [*expected], path
        for key in expected:
            _same(found[key], expected[key], homes, f"{path}.{key}")
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected), path
        for i, (one, other) in enumerate(zip(found, expected, strict=True)):
            _same(one, other, homes, f"{path}.{i}")
    else:
        assert found == expected, path


def _same_tensor(found, expected, homes, path):
    facts = ("dtype", "shape", "requires_grad", "is_sparse", "layout", "is_quantized")
    for fact in facts:
        assert getattr(found, fact) == getattr(expected, fact), f"{path}: {fact}"
    if expected.layout is not torch.strided or expected.is_quantized:
        assert str(found) == str(expected), path
        return
    assert found.stride() == expected.stride(), path
    assert found.storage_offset() == expected.storage_offset(), path
    one, other = found.untyped_storage(), expected.untyped_storage()
    assert bytes(host_view(one)) == bytes(host_view(other)), f"{path}: bytes"
    if other.nbytes():
        assert homes.setdefault(other.data_ptr(), one.data_ptr()) == one.data_ptr(), (
            f"{path}: a storage that was shared is not"
        )
