"""What goes and what stays."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.checkpoint.manifest import MANIFEST, folder_of, state_name
from penstock.checkpoint.retention import Best, Retention, contested, debris, surplus
from penstock.store import ObjectMeta

NOW = datetime(2026, 11, 15, tzinfo=UTC)
RULES = st.builds(
    Retention,
    last=st.none() | st.integers(1, 5),
    every=st.none() | st.integers(1, 10),
    best=st.none()
    | st.builds(Best, st.just("loss"), st.integers(1, 3), st.sampled_from(["min", "max"])),
)
COMMITTED = st.dictionaries(
    st.integers(0, 60),
    st.dictionaries(st.just("loss"), st.floats(), max_size=1),
    max_size=20,
)


@given(COMMITTED, RULES, st.sets(st.integers(0, 60)))
def test_the_newest_and_those_in_use_never_go(committed, rules, in_use):
    gone = surplus(committed, rules, in_use=in_use)
    assert set(gone) <= set(committed) - in_use
    assert not committed or max(committed) not in gone


@given(COMMITTED, RULES)
def test_what_a_rule_keeps_stays(committed, rules):
    kept = sorted(set(committed) - set(surplus(committed, rules, in_use=())))
    steps = sorted(committed)
    if rules.last is not None:
        assert set(steps[-rules.last :]) <= set(kept)
    if rules.every is not None:
        assert {step for step in steps if step % rules.every == 0} <= set(kept)
    if rules.best is not None:
        measured = [
            m["loss"] for m in committed.values() if m.get("loss", None) == m.get("loss", 0)
        ]
        best = sorted(measured, reverse=rules.best.mode == "max")[: rules.best.count]
        assert [committed[s]["loss"] for s in kept if "loss" in committed[s]].count(
            best[0] if best else None
        ) >= bool(best)


@given(COMMITTED, RULES)
def test_letting_go_twice_is_letting_go_once(committed, rules):
    gone = surplus(committed, rules, in_use=())
    left = {step: metrics for step, metrics in committed.items() if step not in gone}
    assert surplus(left, rules, in_use=()) == []


def test_without_rules_everything_stays():
    assert surplus({1: {}, 2: {}}, Retention(), in_use=()) == []


def test_a_metric_that_is_no_number_is_never_the_best():
    committed = {1: {"loss": float("nan")}, 2: {"loss": 3.0}, 3: {}, 4: {}}
    assert surplus(committed, Retention(best=Best("loss")), in_use=()) == [1, 3]


@pytest.mark.parametrize("bad", [{"last": 0}, {"every": -1}])
def test_a_rule_that_keeps_nothing_is_refused(bad):
    with pytest.raises(ValueError, match="must be at least 1"):
        Retention(**bad)


NAMES = st.sampled_from(
    [MANIFEST, state_name("0" * 16), state_name("1" * 16), "notes.txt", "state.pt", "state-x.pt"]
)
KEYS = st.one_of(
    st.builds(lambda step, name: f"{folder_of(step)}/{name}", st.integers(0, 6), NAMES),
    st.sampled_from(["other/file", "step-1/manifest.json", "step-0000000001/deeper/manifest.json"]),
)


@given(st.sets(KEYS), st.dictionaries(KEYS, st.integers(0, 9)))
def test_debris_is_old_ours_owned_by_nobody_and_not_newer_than_the_newest(keys, ages):
    found = [ObjectMeta(k, 1, None, NOW - timedelta(hours=ages.get(k, 5))) for k in sorted(keys)]
    committed = {
        int(k[5:15]) for k in keys if k in {f"{folder_of(s)}/{MANIFEST}" for s in range(7)}
    }
    owned = {step: {state_name("0" * 16)} for step in contested(keys) & committed}
    gone = debris(found, owned, before=NOW - timedelta(hours=5))
    for key in gone:
        step, name = int(key[5:15]), key[16:]
        assert name in (state_name("0" * 16), state_name("1" * 16))
        assert step <= max(committed)
        assert ages.get(key, 5) >= 5
        if step in committed:
            assert name not in owned.get(step, {name})
    both = {f"{folder_of(s)}/{state_name('1' * 16)}" for s in owned}
    assert {k for k in both & keys if ages.get(k, 5) >= 5} <= set(gone)
