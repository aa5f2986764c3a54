"""Where to cut: strictly inside, for every pair of keys, in every alphabet, always with an answer in finite time."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.listing.partition import Alphabet, between, cut

# What keys are made of; "\0" is the slash of a store that goes by path segment.
KEYS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=12)
PATHS = st.lists(KEYS, min_size=1, max_size=4).map("\0".join)
SIMILAR = st.text("ab/0", max_size=6)
PAIRS = st.one_of(*(st.tuples(keys, keys) for keys in (KEYS, PATHS, SIMILAR)))


def exists_between(lower, upper):
    """Whether any string of characters from the space on lies between, apart from the slash."""
    rest = upper.removeprefix(lower)
    if rest == upper and lower:
        return True
    # Below `upper` and above `lower` means: goes on after `lower` with something less than the rest.
    while rest.startswith("\0"):
        rest = rest[1:]
    return rest not in ("", " ")


@given(PAIRS)
@example(("x", "x0"))
@example(("a", "aa"))
@example(("", "a"))
@example(("a", "a!"))
@example(("a", "a  "))
@example(("a.", "a0"))
@example(("a", "a\0b"))
@example(("\ud7ff", "\ue000"))
@example(("\U0010ffff", "\U0010ffff\U0010ffff"))
def test_a_string_is_found_strictly_between_any_two_that_have_one(pair):
    lower, upper = sorted(pair)
    found = between(lower, upper)
    if found is None:
        assert lower == upper or not exists_between(lower, upper)
    else:
        assert lower < found < upper
        found.encode()


@given(st.one_of(KEYS, PATHS))
def test_something_always_lies_above(lower):
    found = between(lower, None)
    assert found > lower
    found.encode()


@pytest.mark.parametrize(("lower", "upper"), [("a", "a "), ("b", "a"), ("a", "a")])
def test_nothing_is_found_where_nothing_is(lower, upper):
    assert between(lower, upper) is None


@given(
    PAIRS,
    st.lists(st.one_of(KEYS, PATHS), max_size=20),
    st.booleans(),
    st.one_of(st.none(), st.integers(0, 10**30)),
    st.floats(0.01, 0.99),
)
@example(("x", "x0"), ["x", "x0"], False, None, 0.5)
@example(("a", "aa"), ["a"], False, None, 0.5)
def test_a_cut_is_strictly_inside_whatever_the_sample(pair, sample, is_open, reach, share):
    lower, upper = sorted(pair)
    found = cut(
        lower,
        None if is_open else upper,
        alphabet=Alphabet.of(sample),
        first=min([lower, *sample]),
        reach=reach,
        share=share,
    )
    if found is not None:
        assert lower < found
        assert is_open or found < upper
    else:
        assert not is_open
        assert lower == upper or not exists_between(lower, upper)


@given(st.lists(st.text("ab/09é", max_size=5), min_size=1), PAIRS)
def test_numbers_never_fall_as_keys_rise(sample, pair):
    alphabet = Alphabet.of(sample)
    lower, upper = sorted(pair)
    assert 0 <= alphabet.number(lower) <= alphabet.number(upper) <= alphabet.last


@given(st.lists(st.text("ab/09é", min_size=1, max_size=5), min_size=1))
def test_a_sampled_key_is_its_own_number(sample):
    alphabet = Alphabet.of(sample)
    for key in sample:
        assert alphabet.key(alphabet.number(key)) == key


def test_the_middle_of_evenly_spread_keys_is_found():
    keys = [f"{i:08d}.jpg" for i in range(0, 10_000, 37)]
    alphabet = Alphabet.of(keys)
    found = cut("00004000.jpg", "00008000.jpg", alphabet=alphabet, first=keys[0])
    assert "00005990" < found < "00006010"


def test_a_counter_that_has_not_carried_yet_is_expected_to_carry():
    """The first pages of 00000000, 00000001, … show a single digit at most places."""
    alphabet = Alphabet.of(f"{i:08d}" for i in range(0, 4000, 37))
    reach = alphabet.number("00003999") - alphabet.number("00000000")
    assert cut("00003999", None, alphabet=alphabet, first="00000000", reach=reach) == "00007998"


def test_a_place_that_has_had_its_chance_is_not_expected_to_show_more():
    """Folders of 28 days have no day 77, though the month's digits show that there are digits up to 9."""
    days = [f"{m:02d}-{d:02d}/{i:03d}" for m in (1, 2, 3) for d in range(1, 29) for i in range(10)]
    found = cut("03-01/000", "04-01", alphabet=Alphabet.of(days), first=days[0])
    assert "03-10" < found < "03-20"
