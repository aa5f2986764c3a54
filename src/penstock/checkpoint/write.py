"""Writes a laid out `torch.save` file to an upload, record by record. Needs no torch: a child process does it too."""

import zlib
from collections.abc import Callable, Iterable
from typing import Protocol

from penstock.checkpoint.crc import CRC32, join
from penstock.checkpoint.torchfile import Archive, Slot
from penstock.transfer.threads import part_threads

__all__ = ["BytesOf", "Writes", "write_archive"]

BytesOf = Callable[[str], Iterable[memoryview]]
"""From a record's name to its bytes, in order; each chunk is done with when the next is asked for."""

_WORTH_A_THREAD_BYTES = 1 << 20


class Writes(Protocol):
    """Takes bytes, in order."""

    def write(self, data: memoryview, /) -> int:
        """Takes all of `data`, which may change once this returns."""
        ...


def write_archive(target: Writes, archive: Archive, bytes_of: BytesOf) -> None:
    """Writes the whole file. Holds nothing but the directory."""
    crcs: dict[str, int] = {}
    for slot in archive.slots:
        target.write(memoryview(slot.header))
        small = archive.contents.get(slot.name)
        chunks = bytes_of(slot.name) if small is None else (memoryview(small),)
        crcs[slot.name] = _write_data(target, slot, chunks)
        target.write(memoryview(slot.trailer(crcs[slot.name])))
    target.write(memoryview(archive.directory(crcs)))


def _write_data(target: Writes, slot: Slot, chunks: Iterable[memoryview]) -> int:
    pieces: list[tuple[int, int]] = []
    for chunk in chunks:
        if len(chunk) < _WORTH_A_THREAD_BYTES:
            target.write(chunk)
            pieces.append((zlib.crc32(chunk), len(chunk)))
        else:
            # The zip's checksum takes as long as the copy into the upload; beside it, it costs no time.
            crc = part_threads().submit(zlib.crc32, chunk)
            target.write(chunk)
            pieces.append((crc.result(), len(chunk)))
    written = sum(size for _, size in pieces)
    if written != slot.size:
        raise RuntimeError(f"{slot.name}: {slot.size} bytes were planned, {written} came")
    return join(CRC32, pieces)
