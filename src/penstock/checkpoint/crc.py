"""Joins the checksums of neighbouring pieces into that of the whole, so that pieces may arrive in any order. Pure."""

from collections.abc import Iterable
from functools import cache

__all__ = ["CRC32", "CRC32C", "join"]

CRC32 = 0xEDB88320
"""The polynomial of zip files, bits reversed."""
CRC32C = 0x82F63B78
"""The polynomial of object stores, bits reversed."""


def join(polynomial: int, pieces: Iterable[tuple[int, int]]) -> int:
    """The checksum of pieces laid end to end, each given as (checksum, length). 10 µs a piece."""
    whole = 0
    for crc, length in pieces:
        whole = _times(polynomial, _power(polynomial, length), whole) ^ crc
    return whole


@cache
def _power(polynomial: int, length: int) -> int:
    """The power 8 × length of x, modulo the polynomial: appending that many zero bytes multiplies by it."""
    squares = _squares(polynomial)
    product, position = 1 << 31, 3
    while length:
        if length & 1:
            product = _times(polynomial, squares[position], product)
        length >>= 1
        position += 1
    return product


@cache
def _squares(polynomial: int) -> tuple[int, ...]:
    """The powers 2**n of x, for every n that a length of 64 bits needs."""
    found = [1 << 30]
    for _ in range(66):
        found.append(_times(polynomial, found[-1], found[-1]))
    return tuple(found)


def _times(polynomial: int, a: int, b: int) -> int:
    product, bit = 0, 1 << 31
    while a:
        if a & bit:
            product ^= b
            a ^= bit
        bit >>= 1
        b = (b >> 1) ^ polynomial if b & 1 else b >> 1
    return product
