"""A state is plain values with a version, tells what it fits, and those of all workers make one."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.data import merge_states
from penstock.data.lanes import Leg
from penstock.data.state import Position, Run

EVENS = st.sampled_from(["pad", "drop", "error"])
COUNTS = st.integers(1, 5)
LEGS = st.builds(
    lambda ranks, batch, even, consumed: Leg(ranks, len(consumed), batch, even, tuple(consumed)),
    COUNTS,
    COUNTS,
    EVENS,
    st.lists(st.integers(0, 99), min_size=1, max_size=4),
)
POSITIONS = st.builds(
    Position,
    total=st.integers(0, 999),
    seed=st.integers(),
    shuffle=st.text(),
    epoch=st.integers(0, 99),
    legs=st.lists(LEGS, max_size=3).map(tuple),
    run=st.none() | st.builds(Run, COUNTS, COUNTS, COUNTS, EVENS, COUNTS, COUNTS),
)


@given(POSITIONS)
def test_a_state_survives_json(position):
    assert Position.from_dict(json.loads(json.dumps(position.to_dict()))) == position


@pytest.mark.parametrize("state", [{}, {"penstock_dataset": 2}, {"model": {}}])
def test_an_unknown_version_is_refused(state):
    with pytest.raises(ValueError, match="not a dataset state of version 1"):
        Position.from_dict(state)


def worker_states(consumed, **more):
    return [
        Position(
            9, 0, "in order", 2, run=Run(2, len(consumed), 3, "pad", worker, count), **more
        ).to_dict()
        for worker, count in enumerate(consumed)
    ]


def test_the_states_of_all_workers_make_one_leg():
    merged = Position.from_dict(merge_states(worker_states((3, 0, 2))))
    assert merged == Position(9, 0, "in order", 2, (Leg(2, 3, 3, "pad", (3, 0, 2)),))


def test_a_missing_worker_is_named():
    with pytest.raises(ValueError, match="worker 1 of 3 is missing"):
        merge_states([worker_states((3, 0, 2))[i] for i in (0, 2)])


def test_states_are_found_in_the_state_of_a_loader():
    nested = {"a": [{"b": state} for state in worker_states((1, 2))], "c": "text", "d": None}
    assert merge_states(nested) == merge_states(worker_states((1, 2)))


def test_a_loader_that_is_ahead_of_its_workers_states_is_refused():
    state = {"_steps_since_snapshot": 3, "_snapshot": worker_states((1, 2))}
    with pytest.raises(ValueError, match=r"3 batches older .* snapshot_every_n_steps=1"):
        merge_states(state)


def test_a_state_without_a_dataset_in_it_is_refused():
    with pytest.raises(ValueError, match="no penstock dataset state"):
        merge_states({"model": [1, 2]})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("few")
    for i in range(4):
        (folder / f"{i}").write_bytes(b"x")
    return folder


def test_a_state_of_other_samples_or_another_order_is_refused(folder):
    state = penstock.IterableDataset.from_prefix(folder, shuffle=True).state_dict()
    for other in (
        penstock.IterableDataset.from_prefix(folder),
        penstock.IterableDataset.from_prefix(folder, shuffle=True, seed=1),
        penstock.IterableDataset.from_objects([folder / "1"], shuffle=True),
    ):
        with pytest.raises(ValueError, match=r"list the same objects, and give the same seed"):
            other.load_state_dict(state)


def test_the_state_of_one_worker_is_refused_by_another(folder):
    dataset = penstock.IterableDataset.from_prefix(folder)
    state = Position(4, 0, "in order", run=Run(1, 2, 1, "pad", 1, 1)).to_dict()
    dataset.load_state_dict(state)
    with pytest.raises(ValueError, match=r"worker 1 of 2 .* load merge_states"):
        iter(dataset)
