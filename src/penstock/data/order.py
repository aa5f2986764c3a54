"""The global order of an epoch: a pure function of seed, epoch and index, with no memory of its own. Pure."""

import hashlib

__all__ = ["BlockShuffle", "Shuffle"]

_ROUNDS = 6
_MASK = (1 << 64) - 1
_MULTIPLIERS = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9)


class Shuffle:
    """A permutation of `range(size)`, computed index by index: a Feistel network, walked until it lands inside.

    Costs a few microseconds an index and nothing for the size, so a worker never holds the order of all others.
    """

    def __init__(self, size: int, *, seed: int, epoch: int, salt: int = 0) -> None:
        self._size = size
        bits = max(2, (size - 1).bit_length())
        self._low_bits = bits // 2
        self._low = (1 << self._low_bits) - 1
        self._high = (1 << (bits - self._low_bits)) - 1
        digest = hashlib.blake2b(
            f"{seed}:{epoch}:{salt}".encode(), digest_size=8 * _ROUNDS
        ).digest()
        self._keys = [int.from_bytes(digest[8 * i : 8 * i + 8], "big") for i in range(_ROUNDS)]

    def __len__(self) -> int:
        return self._size

    def __call__(self, index: int) -> int:
        """Where the order leads at `index`."""
        if not 0 <= index < self._size:
            raise IndexError(f"{index} is not below {self._size}")
        while True:
            index = self._encrypt(index)
            if index < self._size:
                return index

    def _encrypt(self, value: int) -> int:
        low, high = value & self._low, value >> self._low_bits
        for i in range(0, _ROUNDS, 2):
            low ^= _mix(high ^ self._keys[i]) & self._low
            high ^= _mix(low ^ self._keys[i + 1]) & self._high
        return (high << self._low_bits) | low


class BlockShuffle:
    """Shuffles inside blocks of `block` neighbours: what a shuffle buffer does, and yet a pure function."""

    def __init__(self, size: int, *, block: int, seed: int, epoch: int) -> None:
        self._size = size
        self._block = block
        self._seed = seed
        self._epoch = epoch
        self._current: tuple[int, Shuffle] | None = None

    def __call__(self, index: int) -> int:
        """Where the order leads at `index`."""
        number = index // self._block
        if self._current is None or self._current[0] != number:
            first = number * self._block
            size = min(self._block, self._size - first)
            shuffle = Shuffle(size, seed=self._seed, epoch=self._epoch, salt=number + 1)
            self._current = (number, shuffle)
        return number * self._block + self._current[1](index - number * self._block)


def _mix(value: int) -> int:
    for multiplier in _MULTIPLIERS:
        value = value * multiplier & _MASK
        value ^= value >> 29
    return value
