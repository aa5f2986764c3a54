"""Checksums of pieces make the checksum of the whole."""

import zlib

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from penstock.checkpoint.crc import CRC32, CRC32C, join


@pytest.mark.parametrize(("polynomial", "crc"), [(CRC32, zlib.crc32), (CRC32C, crc32c)])
@given(pieces=st.lists(st.binary(max_size=40), max_size=6))
def test_joined_pieces_have_the_checksum_of_the_whole(polynomial, crc, pieces):
    assert join(polynomial, [(crc(p), len(p)) for p in pieces]) == crc(b"".join(pieces))


def test_lengths_beyond_32_bits_are_right():
    """Zeros, doubled 33 times: 8 GiB that need not be there."""
    crc, length = zlib.crc32(bytes(1 << 20)), 1 << 20
    once = crc
    while length < 1 << 24:
        crc, length = join(CRC32, [(crc, length), (crc, length)]), 2 * length
    assert crc == zlib.crc32(bytes(1 << 24))
    while length < 8 << 30:
        crc, length = join(CRC32, [(crc, length), (crc, length)]), 2 * length
    assert crc == join(CRC32, [(once, 1 << 20)] * 8192)
