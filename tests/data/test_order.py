"""The order of an epoch is a permutation, a pure function, and another one for another seed or epoch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.data.order import BlockShuffle, Shuffle

SIZES = st.integers(1, 600)
SEEDS = st.integers(-5, 1 << 70)


def order_of(size, **which):
    shuffle = Shuffle(size, **which)
    return [shuffle(i) for i in range(size)]


@given(SIZES, SEEDS, st.integers(0, 100))
def test_a_shuffle_visits_everything_once(size, seed, epoch):
    assert sorted(order_of(size, seed=seed, epoch=epoch)) == [*range(size)]


@given(st.integers(60, 600), SEEDS, st.integers(0, 100))
def test_another_seed_epoch_or_salt_is_another_order(size, seed, epoch):
    orders = {
        tuple(order_of(size, seed=seed, epoch=epoch)),
        tuple(order_of(size, seed=seed + 1, epoch=epoch)),
        tuple(order_of(size, seed=seed, epoch=epoch + 1)),
        tuple(order_of(size, seed=seed, epoch=epoch, salt=1)),
        tuple(range(size)),
    }
    assert len(orders) == 5


def test_the_order_is_the_same_in_every_version():
    """A state saved by one release is resumed by the next."""
    assert order_of(10, seed=7, epoch=3) == [0, 3, 2, 1, 7, 6, 5, 8, 4, 9]


def test_every_position_is_as_likely_for_an_index():
    """Over many epochs; 16 cells, 4,000 draws, five standard deviations."""
    counts = [0] * 16
    for epoch in range(4000):
        counts[Shuffle(16, seed=1, epoch=epoch)(0)] += 1
    assert all(abs(count - 250) < 5 * (250 * 15 / 16) ** 0.5 for count in counts)


@pytest.mark.parametrize("index", [-1, 5])
def test_an_index_outside_is_refused(index):
    with pytest.raises(IndexError):
        Shuffle(5, seed=0, epoch=0)(index)


@given(SIZES, st.integers(1, 50), SEEDS)
def test_a_block_shuffle_visits_everything_once_and_stays_inside_its_blocks(size, block, seed):
    shuffle = BlockShuffle(size, block=block, seed=seed, epoch=0)
    order = [shuffle(i) for i in range(size)]
    assert sorted(order) == [*range(size)]
    assert all(at // block == i // block for i, at in enumerate(order))


@given(st.integers(100, 300), SEEDS)
def test_blocks_are_shuffled_each_in_its_own_way(size, seed):
    shuffle = BlockShuffle(size, block=25, seed=seed, epoch=0)
    order = [shuffle(i) % 25 for i in range(size // 25 * 25)]
    blocks = {tuple(order[at : at + 25]) for at in range(0, len(order), 25)}
    assert len(blocks) == size // 25


@given(SIZES, st.integers(1, 50), SEEDS, st.randoms())
def test_a_block_shuffle_has_no_memory(size, block, seed, rng):
    shuffle = BlockShuffle(size, block=block, seed=seed, epoch=0)
    order = [shuffle(i) for i in range(size)]
    asked = [*range(size)]
    rng.shuffle(asked)
    assert [shuffle(i) for i in asked] == [order[i] for i in asked]
