"""Checks what is stored, byte by byte, against the checksum that the manifest keeps. Needs no torch."""

import threading

from crc32c import crc32c

from penstock.checkpoint.crc import CRC32C, join
from penstock.checkpoint.manifest import StoredFile
from penstock.errors import IntegrityError
from penstock.store import Store
from penstock.transfer import ByteRange
from penstock.transfer.plan import split
from penstock.transfer.threads import part_threads

__all__ = ["check_size", "verify_object"]

_AT_ONCE = 4


def verify_object(store: Store, key: str, expected: StoredFile) -> None:
    """Reads the whole object, in parts side by side, and raises `IntegrityError` if it is not the one expected."""
    meta = store.head(key)
    check_size(f"{store.url.rstrip('/')}/{key}", meta.size, expected)
    turn = threading.Semaphore(_AT_ONCE)

    def read(span: ByteRange) -> tuple[int, int]:
        with turn:
            data = store.get(key, start=span.start, stop=span.stop, if_match=meta.etag)
            return crc32c(data), len(data)

    spans = split(ByteRange(0, meta.size), part_bytes=store.config.transfer.part_bytes)
    found = join(CRC32C, part_threads().map(read, spans))
    if found != expected.crc32c:
        raise IntegrityError(
            f"{store.url.rstrip('/')}/{key}: its bytes have CRC32C {found:08x}, the manifest says "
            f"{expected.crc32c:08x}; the object is damaged, restore it or load another checkpoint"
        )


def check_size(url: str, size: int, expected: StoredFile) -> None:
    """Raises `IntegrityError` for an object of another size than was committed."""
    if size != expected.size:
        raise IntegrityError(
            f"{url}: has {size} bytes, the manifest says {expected.size}; the object is damaged, restore it or "
            "load another checkpoint"
        )
