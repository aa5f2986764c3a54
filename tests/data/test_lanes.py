"""Who takes which samples, over random worlds: nothing is lost, nothing is given twice, all ranks are even."""

from collections import Counter
from itertools import islice
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.simulated import in_turn

from penstock.data.lanes import (
    Leg,
    Place,
    batches_behind,
    batches_per_rank,
    lane_of,
    remaining,
    worker_progress,
)


class World(NamedTuple):
    ranks: int
    workers: int
    batch: int
    even: str


WORLDS = st.builds(
    World, st.integers(1, 5), st.integers(1, 4), st.integers(1, 7), st.sampled_from(["pad", "drop"])
)
STOPS = st.floats(0, 1)


def lanes_of(left, rank, world):
    places = [Place(rank, world.ranks, worker, world.workers) for worker in range(world.workers)]
    return [lane_of(left, place, batch=world.batch, even=world.even) for place in places]


def taken_by(lanes, batch, batches):
    """What each worker has given once a loader has yielded so many batches."""
    given_ = [[] for _ in lanes]
    streams = [lane.positions() for lane in lanes]
    for worker, found in islice(in_turn(streams, batch), batches):
        given_[worker] += found
    return given_


@given(st.integers(0, 80), st.lists(st.tuples(WORLDS, STOPS), max_size=4), WORLDS)
def test_after_any_legs_every_position_was_given_once_or_is_left(n, legs, last):
    behind, seen = [], Counter()
    for world, stop in [*legs, (last, 1.0)]:
        left = remaining(n, behind)
        total = batches_per_rank(left, **world._asdict())
        batches = round(stop * total)
        counts = set()
        for rank in range(world.ranks):
            lanes = lanes_of(left, rank, world)
            given_ = taken_by(lanes, world.batch, batches)
            counts.add(tuple(map(len, given_)))
            for lane, positions in zip(lanes, given_, strict=True):
                seen.update(positions[: lane.own])
        consumed = worker_progress(left, batches, **world._asdict())
        assert counts == {consumed}, "every rank's workers have given as much as was computed"
        behind.append(Leg(*world, consumed))
    for start, stop in remaining(n, behind):
        seen.update(range(start, stop))
    assert seen == Counter(range(n))


@given(st.integers(0, 80), WORLDS)
def test_all_ranks_yield_the_same_batches_in_number_and_size(n, world):
    left = remaining(n, [])
    sizes = set()
    for rank in range(world.ranks):
        streams = [lane.positions() for lane in lanes_of(left, rank, world)]
        sizes.add(tuple(len(found) for _, found in in_turn(streams, world.batch)))
    assert len(sizes) == 1
    assert len(sizes.pop()) == batches_per_rank(left, **world._asdict())


@given(st.integers(1, 80), WORLDS)
def test_only_the_last_batch_of_a_rank_is_short(n, world):
    left = remaining(n, [])
    lanes = lanes_of(left, 0, world)
    sizes = [len(found) for _, found in in_turn([lane.positions() for lane in lanes], world.batch)]
    assert set(sizes[:-1]) <= {world.batch}


@given(st.integers(1, 80), WORLDS)
def test_padding_is_less_than_one_sample_a_rank_and_dropping_too(n, world):
    left = remaining(n, [])
    lanes = [lane for rank in range(world.ranks) for lane in lanes_of(left, rank, world)]
    given_ = sum(map(len, lanes))
    beyond = given_ - n if world.even == "pad" else n - given_
    assert 0 <= beyond < world.ranks
    assert sum(lane.own for lane in lanes) == min(n, given_)


@given(st.integers(0, 80), st.lists(st.tuples(WORLDS, STOPS), max_size=3), st.integers(0, 90))
def test_a_lane_without_its_beginning_is_its_rest(n, legs, skip):
    behind = []
    for world, stop in legs:
        left = remaining(n, behind)
        total = batches_per_rank(left, **world._asdict())
        consumed = worker_progress(left, round(stop * total), **world._asdict())
        behind.append(Leg(*world, consumed))
    lane = lane_of(remaining(n, behind), Place(1, 2), batch=3, even="pad")
    assert [*lane.positions(skip=skip)] == [*lane.positions()][skip:]


def test_the_batches_behind_are_those_that_were_yielded():
    legs = [Leg(2, 3, 4, "pad", (8, 4, 3)), Leg(1, 1, 5, "pad", (11,))]
    assert batches_behind(legs) == 2 + 1 + 1 + 3


def test_error_refuses_a_rest_and_says_what_would_fit():
    place = Place(0, 3)
    with pytest.raises(ValueError, match=r"10 samples .* 3 ranks; .*'pad' or 'drop', or take 9"):
        lane_of([(0, 10)], place, batch=1, even="error")
    assert len(lane_of([(0, 9)], place, batch=1, even="error")) == 3


def test_more_ranks_than_samples_repeat_them_as_often_as_it_takes():
    lanes = [lane_of([(5, 7)], Place(rank, 5), batch=1, even="pad") for rank in range(5)]
    assert [[*lane.positions()] for lane in lanes] == [[5], [6], [5], [6], [5]]
    assert [lane.own for lane in lanes] == [1, 1, 0, 0, 0]


@pytest.mark.parametrize("place", [(2, 2, 0, 1), (0, 1, 1, 1), (-1, 2, 0, 1)])
def test_a_place_outside_its_world_is_refused(place):
    with pytest.raises(ValueError, match="below their count"):
        Place(*place)


def test_a_leg_needs_a_count_for_every_worker():
    with pytest.raises(ValueError, match="3 workers need as many counts"):
        Leg(1, 3, 1, "pad", (1, 2))
