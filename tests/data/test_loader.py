"""penstock.DataLoader: good defaults, epochs that advance, a position counted by what the loop has received."""

import os
import pty
import re
import select
import subprocess
import sys

import pytest
import torch
from tests.data.made import parquet_of
from torch.utils.data import TensorDataset

import penstock
from penstock.data import loader as module


def key_of(sample):
    return sample.key[-7:]


@pytest.fixture
def make(objects, config):
    """Makes a loader of `objects`: a stream or of map style."""

    def build(batch=4, *, stream=True, shuffle=False, dataset=None, **options):
        if stream:
            made = penstock.IterableDataset.from_prefix(
                objects, config=config, transform=key_of, shuffle=shuffle, **(dataset or {})
            )
            return penstock.DataLoader(made, batch, **options)
        made = penstock.MapDataset.from_prefix(objects, config=config, transform=key_of)
        return penstock.DataLoader(made, batch, shuffle=shuffle, **options)

    return build


STYLES = pytest.mark.parametrize("stream", [True, False], ids=["stream", "map"])


def flat(batches):
    return [key for batch in batches for key in batch]


def test_it_chooses_workers_start_method_and_pinning(make):
    loader = make()
    cores = len(os.sched_getaffinity(0))
    assert loader.num_workers == max(1, min(4, cores - 1))
    assert loader.multiprocessing_context.get_start_method() == "fork"
    assert loader.pin_memory == torch.cuda.is_available()
    assert not loader.persistent_workers


def test_what_is_given_is_taken(make):
    loader = make(num_workers=2, multiprocessing_context="spawn", prefetch_factor=3)
    assert (loader.num_workers, loader.prefetch_factor) == (2, 3)
    assert loader.multiprocessing_context.get_start_method() == "spawn"


def test_beside_cuda_in_use_it_does_not_fork(make, monkeypatch):
    monkeypatch.setattr(module, "_cuda_in_use", lambda: True)
    assert make(num_workers=1).multiprocessing_context.get_start_method() == "forkserver"


def test_without_workers_their_options_are_left_out(make, names):
    loader = make(num_workers=0, prefetch_factor=4, persistent_workers=True)
    assert flat(loader) == names


@STYLES
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_its_length_is_what_it_yields(make, names, stream, workers):
    loader = make(5, stream=stream, num_workers=workers)
    batches = [*loader]
    assert len(loader) == len(batches) == 7
    assert sorted(flat(batches)) == names
    assert [len(batch) for batch in batches].count(5) == 6


@STYLES
def test_each_iteration_is_another_epoch(make, names, stream):
    loader = make(stream=stream, shuffle=True, num_workers=1)
    orders = []
    for epoch in range(3):
        assert loader.epoch == epoch
        orders.append(tuple(flat(loader)))
    assert loader.epoch == 3
    assert len({*orders}) == 3
    assert all(sorted(order) == names for order in orders)
    loader.set_epoch(1)
    assert tuple(flat(loader)) == orders[1]


def test_persistent_workers_take_the_next_epoch_too(make, names):
    loader = make(shuffle=True, num_workers=1, persistent_workers=True)
    one, other = flat(loader), flat(loader)
    assert one != other
    assert sorted(one) == sorted(other) == names


@STYLES
def test_a_loop_that_was_broken_off_is_followed_by_the_next_epoch(make, names, stream):
    loader = make(stream=stream, shuffle=True, num_workers=0)
    first = next(iter(loader))
    assert loader.epoch == 0
    again = flat(loader)
    assert again[:4] != first
    assert sorted(again) == names
    assert loader.epoch == 2


@STYLES
def test_a_loop_that_was_broken_off_may_be_gone_on_with(make, names, stream):
    loader = make(stream=stream, shuffle=True, num_workers=0)
    seen = []
    for batch in loader:
        seen += batch
        if len(seen) == 12:
            break
    loader.load_state_dict(loader.state_dict())
    assert loader.epoch == 0
    assert len(loader) == 8, "those behind are counted"
    seen += flat(loader)
    assert sorted(seen) == names
    assert loader.epoch == 1


@STYLES
def test_a_loop_that_knows_the_length_and_never_asks_for_the_end_still_advances(
    make, names, stream
):
    """As Lightning's does."""
    loader = make(stream=stream, shuffle=True, num_workers=0)
    orders = []
    for _ in range(2):
        batches = iter(loader)
        orders.append(flat(next(batches) for _ in range(len(loader))))
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) == names


@STYLES
@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_counts_what_was_received_not_what_was_read_ahead(make, names, stream, workers):
    loader = make(stream=stream, shuffle=True, num_workers=workers)
    seen = []
    for batch in loader:
        seen += batch
        if len(seen) == 20:
            break
    again = make(7, stream=stream, shuffle=True, num_workers=1)
    again.load_state_dict(loader.state_dict())
    assert sorted(seen + flat(again)) == names


@STYLES
def test_a_state_before_the_first_batch_is_the_beginning(make, names, stream):
    loader = make(stream=stream, num_workers=0)
    state = loader.state_dict()
    iter(loader)
    assert loader.state_dict() == state
    again = make(stream=stream, num_workers=0)
    again.load_state_dict(state)
    assert flat(again) == names


@STYLES
def test_a_state_after_the_last_batch_is_the_next_epoch(make, names, stream):
    loader = make(stream=stream, shuffle=True, num_workers=0)
    for _ in loader:
        inside = loader.state_dict()
    assert loader.state_dict()["epoch"] == inside["epoch"] == 1
    again = make(stream=stream, shuffle=True, num_workers=0)
    again.load_state_dict(inside)
    assert flat(again) == flat(loader)


@STYLES
def test_choosing_an_epoch_forgets_the_position(make, names, stream):
    loader = make(stream=stream, shuffle=True, num_workers=0)
    next(iter(loader))
    loader.load_state_dict(loader.state_dict())
    loader.set_epoch(5)
    assert sorted(flat(loader)) == names


def test_persistent_workers_of_a_stream_cannot_be_told_a_new_position(make, names):
    loader = make(num_workers=1, persistent_workers=True)
    state = loader.state_dict()
    loader.load_state_dict(state)
    assert flat(loader) == names
    with pytest.raises(ValueError, match="make a new loader, or load it first"):
        loader.load_state_dict(state)


def test_persistent_workers_of_a_map_can(make, names):
    loader = make(stream=False, num_workers=1, persistent_workers=True)
    state = loader.state_dict()
    assert flat(loader) == names
    loader.load_state_dict(state)
    assert flat(loader) == names


@STYLES
def test_a_state_of_another_order_is_refused(make, stream):
    with pytest.raises(ValueError, match="give the same seed and shuffle"):
        make(stream=stream).load_state_dict(make(stream=stream, shuffle=True).state_dict())


def test_a_stream_is_told_where_shuffling_belongs(objects, config):
    dataset = penstock.IterableDataset.from_prefix(objects, config=config)
    with pytest.raises(ValueError, match="pass shuffle=True to the dataset"):
        penstock.DataLoader(dataset, shuffle=True)


def test_batches_of_rows_are_left_as_they_are(put, config):
    url = put({"a.parquet": parquet_of({"id": [*range(10)]})})
    dataset = penstock.ParquetDataset.from_prefix(url, config=config, batch_rows=4)
    loader = penstock.DataLoader(dataset, num_workers=0)
    assert len(loader) == 3
    assert [batch.data["id"] for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_any_dataset_of_map_style_will_do():
    loader = penstock.DataLoader(TensorDataset(torch.arange(10)), 4, shuffle=True, num_workers=0)
    first = next(iter(loader))[0].tolist()
    state = loader.state_dict()
    again = penstock.DataLoader(TensorDataset(torch.arange(10)), 3, shuffle=True, num_workers=0)
    again.load_state_dict(state)
    assert sorted(first + [i for batch in again for i in batch[0].tolist()]) == [*range(10)]


@pytest.mark.parametrize("even", ["pad", "drop"])
def test_ranks_of_a_map_get_equal_batches(make, names, even, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    shares = []
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        shares.append([*make(stream=False, even=even, num_workers=0)])
    assert len({tuple(map(len, share)) for share in shares}) == 1
    found = [key for share in shares for key in flat(share)]
    assert {*found} == {*names} if even == "pad" else len({*found}) == len(found) == 30


PROGRAM = """
import sys
import torch
import penstock
from torch.utils.data import TensorDataset

loader = penstock.DataLoader(
    TensorDataset(torch.arange(6)), 2, num_workers=0, progress=sys.argv[1] == "yes"
)
for _ in loader:
    pass
"""


@pytest.mark.parametrize("asked", ["yes", "no"])
def test_a_progress_bar_is_shown_in_a_terminal_if_asked_for(asked):
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, asked],
        stdout=theirs,
        stderr=theirs,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(theirs)
    shown = b""
    while select.select([ours], [], [], 60)[0]:
        try:
            data = os.read(ours, 4096)
        except OSError:  # the other side is closed
            break
        if not data:
            break
        shown += data
    os.close(ours)
    assert process.wait(60) == 0
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    if asked == "yes":
        assert "epoch 0" in text
        assert "3/3" in text
    else:
        assert text == ""
