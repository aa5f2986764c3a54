"""Plans cover exactly what was asked for, in reads and parts that a store takes."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.transfer.plan import ByteRange, plan_reads, split, upload_part_bytes

MIB, GIB, TIB = 1 << 20, 1 << 30, 1 << 40


@st.composite
def spans(draw):
    start = draw(st.integers(0, 60))
    return ByteRange(start, start + draw(st.integers(0, 8)))


@given(spans(), st.integers(1, 12))
def test_a_split_touches_and_covers_the_span_exactly(span, part_bytes):
    parts = split(span, part_bytes=part_bytes)
    assert b"".join(bytes([1]) * len(part) for part in parts) == bytes([1]) * len(span)
    edges = [span.start, *(part.stop for part in parts)]
    assert [part.start for part in parts] == edges[:-1]
    assert edges[-1] == span.stop
    assert all(len(part) == part_bytes for part in parts[:-1])
    assert all(0 < len(part) <= part_bytes for part in parts)


@given(st.lists(spans(), max_size=8), st.integers(0, 6), st.integers(1, 30))
def test_every_wanted_range_lies_in_exactly_one_read(wanted, max_gap_bytes, max_read_bytes):
    reads = plan_reads(wanted, max_gap_bytes=max_gap_bytes, max_read_bytes=max_read_bytes)
    planned = [index for read in reads for index in read.wanted]
    assert sorted(planned) == [index for index, span in enumerate(wanted) if len(span)]
    for read in reads:
        inside = [wanted[index] for index in read.wanted]
        assert read.span == ByteRange(
            min(span.start for span in inside), max(span.stop for span in inside)
        )


@given(st.lists(spans(), max_size=8), st.integers(0, 6), st.integers(1, 30))
def test_a_read_exceeds_the_limit_only_for_a_single_range(wanted, max_gap_bytes, max_read_bytes):
    for read in plan_reads(wanted, max_gap_bytes=max_gap_bytes, max_read_bytes=max_read_bytes):
        assert len(read.span) <= max_read_bytes or len(read.wanted) == 1


@given(st.lists(spans(), max_size=8), st.integers(0, 6), st.integers(1, 30))
def test_no_gap_inside_a_read_is_larger_than_allowed(wanted, max_gap_bytes, max_read_bytes):
    for read in plan_reads(wanted, max_gap_bytes=max_gap_bytes, max_read_bytes=max_read_bytes):
        reached = read.span.start
        for span in sorted(wanted[index] for index in read.wanted):
            assert span.start - reached <= max_gap_bytes
            reached = max(reached, span.stop)


@given(st.lists(spans(), max_size=8), st.integers(0, 6))
def test_neighbours_that_could_share_a_read_do(wanted, max_gap_bytes):
    reads = plan_reads(wanted, max_gap_bytes=max_gap_bytes, max_read_bytes=10**9)
    for one, other in pairwise(reads):
        assert other.span.start - one.span.stop > max_gap_bytes


@given(st.integers(5 * MIB, 5 * GIB))
def test_ten_thousand_parts_hold_five_tebibytes_and_each_is_one_that_a_store_takes(first_bytes):
    sizes = [upload_part_bytes(number, first_bytes=first_bytes) for number in range(0, 10_000, 100)]
    assert 100 * sum(sizes) >= 5 * TIB
    assert sizes[0] == first_bytes
    assert sizes == sorted(sizes), "parts of equal size come first, so that offsets can be summed"
    assert min(sizes) >= 5 * MIB
    assert max(sizes) <= 5 * GIB


def test_the_steps_of_a_part_size_fall_where_the_test_above_looks():
    sizes = [upload_part_bytes(number, first_bytes=5 * MIB) for number in range(10_000)]
    changes = [n for n, (one, other) in enumerate(pairwise(sizes)) if one != other]
    assert all((n + 1) % 100 == 0 for n in changes)


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (3, 2)])
def test_what_is_no_range_is_refused(start, stop):
    with pytest.raises(ValueError, match=r"0 <= start <= stop"):
        ByteRange(start, stop)
