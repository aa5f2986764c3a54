"""Decides where to cut a range of keys so that its parts can be listed side by side. Pure; walk.py does the I/O.

Keys are compared as Python compares strings, by code point, which is UTF-8's order too. A store with another order
is walked in keys translated to this one.
"""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile, zip_longest
from typing import Self

__all__ = ["Alphabet", "between", "cut"]

_BELOW_ALL = 0x1F
_ABOVE_ALL = 0x110000
_ABOVE_LETTERS = ord("z") + 1
_EXTRA_DIGITS = 3


@dataclass(frozen=True, slots=True)
class Alphabet:
    """The characters that keys have at each position, by which a key can be read as a number.

    Up to the first position that has changed, a listing has not shown all there is: those borrow from the positions
    they share a character with, so that `0000` to `0399` counts in tens at every place. `""` is where keys end.
    """

    positions: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, keys: Iterable[str]) -> Self:
        """Learns from a sample; a few keys of every page are enough."""
        seen = [set(characters) for characters in zip_longest(*keys, fillvalue="")]
        shared: dict[str, set[str]] = {}
        for characters in seen:
            for character in characters - {""}:
                shared.setdefault(character, set()).update(characters - {""})
        constant = next((i for i, characters in enumerate(seen) if len(characters) > 1), len(seen))
        for characters in seen[: constant + 1]:
            characters.update(*(shared.get(character, ()) for character in [*characters]))
        return cls(tuple(tuple(sorted(characters)) for characters in seen))

    def number(self, key: str) -> int:
        """Never falls as keys rise; two keys that differ beyond the sample's may share one."""
        number = 0
        beyond: int | None = None
        for position, digits in enumerate(self.positions):
            digit = 0
            if beyond is not None:
                digit = beyond * (len(digits) - 1)
            elif position < len(key):
                digit = bisect_left(digits, key[position])
                if digit == len(digits):
                    digit, beyond = digit - 1, 1
                elif digits[digit] != key[position]:
                    beyond = 0
            number = number * len(digits) + digit
        return number

    def key(self, number: int) -> str:
        """The key that a number stands for, up to the first position where keys end."""
        characters = []
        for digits in reversed(self.positions):
            number, digit = divmod(number, len(digits))
            characters.append(digits[digit])
        return "".join(takewhile(bool, reversed(characters)))

    @property
    def last(self) -> int:
        """The greatest number."""
        size = 1
        for digits in self.positions:
            size *= len(digits)
        return size - 1


def cut(
    lower: str,
    upper: str | None,
    *,
    alphabet: Alphabet,
    first: str,
    reach: int | None = None,
    share: float = 0.5,
) -> str | None:
    """A key strictly between `lower` and `upper`, with a `share` of the numbers between them on its left.

    With a `reach` it lies that far above `lower` instead, where that is nearer. Where numbers cannot tell the two
    apart, it lies as far above `lower` as that is above `first`, or anywhere between. None where no key is.
    """
    if upper is not None and not lower < upper:
        return None
    here = alphabet.number(lower)
    room = (alphabet.last if upper is None else alphabet.number(upper)) - here
    distance = int(room * share) if reach is None or reach >= room else reach
    at = _shortest(alphabet.key(here + max(distance, 0)), lower, upper)
    if at is None and upper is None:
        at = _as_far_again(first, lower)
    return at or between(lower, upper)


def between(lower: str, upper: str | None) -> str | None:
    """A string strictly between two others, near their middle; None is no upper end.

    Made of `lower`, `upper` and characters from the space on, without slash, DEL or surrogates, so that it can be
    a key. None only where no such string lies between, as between `a` and `a `.
    """
    if upper is None:
        return _above(lower)
    if not lower < upper:
        return None
    at = _common(lower, upper)
    character = _character(ord(lower[at]) if at < len(lower) else _BELOW_ALL, ord(upper[at]))
    if character is not None:
        return lower[:at] + character
    if at < len(lower):
        return lower[: at + 1] + _above(lower[at + 1 :])
    # `lower` ends here, so only what goes on as `upper` does lies between.
    stem, rest = upper[: at + 1], upper[at + 1 :]
    inner = between("", rest)
    if inner is not None:
        return stem + inner
    return stem if rest and ord(upper[at]) > _BELOW_ALL else None


def _above(lower: str) -> str:
    for at, low in enumerate(lower):
        character = _character(ord(low), _ABOVE_ALL)
        if character is not None:
            return lower[:at] + character
    return lower + "U"


def _character(low: int, high: int) -> str | None:
    """A character strictly between two code points that may stand in a key, in ASCII where that is possible."""
    low = max(low, _BELOW_ALL)
    if low < _ABOVE_LETTERS - 1:
        high = min(high, _ABOVE_LETTERS)
    middle = (low + high) // 2
    # The next one is good unless the middle lies among the surrogates, and then one end of them is.
    for code in (middle, middle - 1, middle + 1, 0xD7FF, 0xE000):
        if low < code < high and code not in (0x2F, 0x7F) and not 0xD800 <= code <= 0xDFFF:
            return chr(code)
    return None


def _as_far_again(first: str, lower: str) -> str | None:
    """Doubles the distance at the character where the two part, for keys whose characters no sample foretells."""
    at = _common(first, lower)
    if at >= len(lower):
        return None
    before = ord(first[at]) if at < len(first) else _BELOW_ALL
    code = 2 * ord(lower[at]) - before
    if not ord(lower[at]) < code < _ABOVE_ALL - 1 or 0xD800 <= code <= 0xDFFF or code == 0x7F:
        return None
    return lower[:at] + chr(code)


def _shortest(key: str, lower: str, upper: str | None) -> str | None:
    """The beginning of `key` that still lies between, and a few characters more for precision."""
    if not lower < key or (upper is not None and not key < upper):
        return None
    need = _common(lower, key) + 1
    # A cut that ends with a slash would name a folder.
    short = key[: need + _EXTRA_DIGITS].rstrip("/\0")
    return short if lower < short else None


def _common(one: str, other: str) -> int:
    """How many leading characters two strings share."""
    length = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        length += 1
    return length
