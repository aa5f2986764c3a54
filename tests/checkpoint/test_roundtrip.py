"""What is saved is what is loaded, bit for bit; torch agrees, both ways."""

import io
import uuid
import warnings

import pytest
import torch
from hypothesis import given, settings
from tests.checkpoint.states import DTYPES, assert_same, states, tensor_of

from penstock import open_store
from penstock.checkpoint import load, save


@pytest.fixture(scope="module")
def memory():
    return f"memory://{uuid.uuid4().hex}"


def stored(url):
    store, _, key = url.rpartition("/")
    return io.BytesIO(open_store(store).get(key))


@given(states())
@settings(max_examples=100)
def test_load_of_save_is_the_state(memory, state):
    save(state, f"{memory}/state.pt")
    assert_same(load(f"{memory}/state.pt"), state)


@given(states())
def test_torch_loads_what_we_save(memory, state):
    save(state, f"{memory}/ours.pt")
    assert_same(torch.load(stored(f"{memory}/ours.pt")), state)


@given(states())
def test_we_load_what_torch_saves(memory, state):
    file = io.BytesIO()
    torch.save(state, file)
    open_store(memory).put("theirs.pt", file.getvalue())
    assert_same(load(f"{memory}/theirs.pt"), state)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_larger_than_a_part(memory, dtype):
    """Through the direct reads and the cutting into parts, which small states never see."""
    count = (18 << 20) // dtype.itemsize
    state = {"large": torch.zeros(count, dtype=torch.uint8 if dtype is torch.bool else dtype)}
    state["large"].view(torch.uint8)[:: 1 << 16] = 1
    state["large"] = state["large"].view(dtype)
    state["small"] = tensor_of(dtype, (3,), 1)
    save(state, f"{memory}/{dtype}.pt")
    found = load(f"{memory}/{dtype}.pt")
    assert found["large"].view(torch.uint8).equal(state["large"].view(torch.uint8))
    assert_same(found["small"], state["small"])


def exotic():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of features that are beta or on their way out
        yield "sparse", torch.eye(4).to_sparse()
        yield "csr", torch.eye(4).to_sparse_csr()
        yield "quantized", torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
        yield (
            "per channel",
            torch.quantize_per_channel(
                torch.ones(2, 3), torch.tensor([0.1, 0.2]), torch.tensor([0, 0]), 0, torch.quint8
            ),
        )
        yield "nested", torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
        yield "meta", torch.empty(3, device="meta")
        yield "conjugate", torch.tensor([1 + 2j]).conj()
        yield "generator", torch.Generator().get_state()


@pytest.mark.parametrize(("kind", "tensor"), [*exotic()], ids=lambda v: v if type(v) is str else "")
@pytest.mark.filterwarnings("ignore")
def test_exotic_tensors_need_no_way_around(memory, kind, tensor):
    save({"x": tensor}, f"{memory}/exotic.pt")
    found = load(f"{memory}/exotic.pt")["x"]
    assert (found.dtype, found.layout, str(found)) == (tensor.dtype, tensor.layout, str(tensor))
    assert found.is_conj() == tensor.is_conj()


def test_a_whole_module_and_a_cycle_travel_with_weights_only_false(memory):
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    loop = {"module": module}
    loop["self"] = loop
    save(loop, f"{memory}/module.pt")
    found = load(f"{memory}/module.pt", weights_only=False)
    assert found["self"] is found
    assert found["module"][0].weight.equal(module[0].weight)


def test_code_is_not_run_by_default(memory):
    save({"f": torch.nn.Linear(1, 1)}, f"{memory}/code.pt")
    with pytest.raises(Exception, match="weights_only"):
        load(f"{memory}/code.pt")


def test_a_state_that_cannot_be_pickled_leaves_nothing(memory):
    with pytest.raises((AttributeError, TypeError)):
        save({"x": torch.ones(3), "f": lambda: 0}, f"{memory}/never.pt")
    assert not open_store(memory).exists("never.pt")


def test_the_returned_meta_has_size_and_checksum(memory):
    from crc32c import crc32c

    meta = save({"x": torch.ones(1000)}, f"{memory}/meta.pt")
    data = stored(f"{memory}/meta.pt").getvalue()
    assert (meta.size, meta.crc32c) == (len(data), crc32c(data))
