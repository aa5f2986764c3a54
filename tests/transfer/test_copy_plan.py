"""What a copy decides to do, before it does anything."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.transfer.copy_plan import (
    Compare,
    Entry,
    Verdict,
    judge,
    md5_in,
    parts_of,
    plan_copies,
    shadowed,
)

MD5 = '"5d41402abc4b2a76b9719d911017c592"'
PARTS = '"5d41402abc4b2a76b9719d911017c592-3"'
NAMES = st.lists(st.sampled_from("ab"), min_size=1, max_size=4).map("/".join)
ENTRIES = st.builds(
    Entry, NAMES, st.integers(0, 3), st.sampled_from([None, MD5, PARTS, '"0x8D"', '"other"'])
)


@given(st.lists(ENTRIES), st.dictionaries(NAMES, ENTRIES), st.sets(NAMES), st.sampled_from(Compare))
def test_every_source_is_planned_once_or_refused(sources, present, refused, compare):
    plan = plan_copies(
        [(entry, entry.name) for entry in sources],
        present,
        refused=dict.fromkeys(refused, "why"),
        compare=compare,
    )
    done = [task.source for task in plan.tasks] + [entry for entry, _ in plan.refused]
    assert sorted(done, key=repr) == sorted(sources, key=repr)
    assert not refused & {task.target for task in plan.tasks}


@given(ENTRIES, st.none() | ENTRIES)
def test_an_object_is_left_alone_only_on_evidence_of_its_content(source, present):
    if judge(source, present, Compare.CONTENT) is Verdict.SAME:
        assert source.size == present.size
        assert source.size == 0 or (source.etag == present.etag and source.etag in (MD5, PARTS))


@given(ENTRIES, st.none() | ENTRIES)
def test_another_size_is_always_copied(source, present):
    if present is None or present.size != source.size:
        assert {judge(source, present, compare) for compare in Compare} == {Verdict.COPY}


def test_force_copies_what_is_the_same_and_size_only_does_not_look_further():
    one, other = Entry("a", 5, MD5), Entry("a", 5, '"other"')
    assert judge(one, one, Compare.NOTHING) is Verdict.COPY
    assert judge(one, other, Compare.SIZE) is Verdict.SAME
    assert judge(one, other, Compare.CONTENT) is Verdict.COMPARE


@pytest.mark.parametrize(("etag", "digest"), [(MD5, MD5[1:-1]), (PARTS, None), (None, None)])
def test_only_the_etag_of_a_single_put_is_a_digest(etag, digest):
    assert md5_in(etag) == digest


@given(st.integers(0, 200 << 30), st.integers(5 << 20, 64 << 20))
def test_parts_touch_and_cover_the_object_exactly(size, first_bytes):
    parts = parts_of(size, first_bytes=first_bytes)
    assert [part.start for part in parts] == [0, *(part.stop for part in parts)][: len(parts)]
    assert (parts[-1].stop if parts else 0) == size
    assert all(len(part) >= first_bytes for part in parts[:-1])
    assert len(parts) <= 10_000


@given(st.lists(NAMES))
def test_a_name_is_shadowed_exactly_if_another_lies_below_it(names):
    expected = {a for a in names if any(b.startswith(f"{a}/") for b in names)}
    assert shadowed(names) == expected
