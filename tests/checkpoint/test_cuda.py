"""A GPU's memory, to the store and back. Skipped where there is none."""

import pytest
import torch

from penstock import CheckpointManager, load, save

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


@pytest.fixture
def state():
    base = torch.randn(5 << 20, device="cuda")
    return {
        "large": base,
        "view": base[3:100].view(97),
        "tiny": [torch.full((3,), float(i), device="cuda") for i in range(100)],
        "half": torch.randn(3000, 1000, device="cuda", dtype=torch.bfloat16).t(),
        "cpu": torch.arange(1000),
        "empty": torch.empty(0, device="cuda"),
    }


def same(found, expected, device=None):
    for name in ("large", "view", "half", "cpu", "empty"):
        assert found[name].device == (device or expected[name].device), name
        assert found[name].cpu().equal(expected[name].cpu()), name
    assert all(a.cpu().equal(b.cpu()) for a, b in zip(found["tiny"], expected["tiny"], strict=True))


@pytest.mark.parametrize("where", [None, "cuda", {"cpu": "cuda:0"}, lambda s, _: s.cuda(), "cpu"])
def test_a_state_goes_there_and_back(store_url, object_server, state, where):
    url, config = f"{store_url}/s.pt", object_server.config
    save(state, url, config=config)
    found = load(url, map_location=where, config=config)
    expected = {None: None, "cpu": torch.device("cpu")}.get(
        where if where is None or where == "cpu" else 0, torch.device("cuda:0")
    )
    same(found, state, expected)
    assert found["view"].untyped_storage().data_ptr() == found["large"].untyped_storage().data_ptr()


def test_tensors_on_the_device_are_filled_in_place(store_url, object_server, state):
    url, config = f"{store_url}/s.pt", object_server.config
    plain = {k: v for k, v in state.items() if k in ("large", "half", "cpu", "empty")}
    save(plain, url, config=config)
    into = {k: torch.zeros_like(v) for k, v in plain.items()}
    where = into["large"].data_ptr()
    load(url, into=into, config=config)
    assert into["large"].data_ptr() == where
    assert all(into[k].equal(plain[k]) for k in plain)


@pytest.mark.parametrize("background", ["thread", "process"])
def test_a_kernel_queued_before_save_is_in_it_and_one_after_is_not(
    store_url, object_server, background
):
    with CheckpointManager(
        store_url, config=object_server.config, background=background
    ) as manager:
        weights = torch.zeros(32 << 20, device="cuda")
        for step in (1, 2, 3):
            for _ in range(50):
                weights += 1
            pending = manager.save(step, {"w": weights})
            for _ in range(50):
                weights += 1
            pending.result()
            assert manager.load(step, map_location="cpu")["w"].unique().tolist() == [
                100 * step - 50
            ]
            assert manager.load(step)["w"].is_cuda
