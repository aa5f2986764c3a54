"""The objects of a run: random bytes, which no server compresses, as files that a server may serve as they are."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from crc32c import crc32c

__all__ = ["FULL", "QUICK", "Objects", "Sizes", "Stored", "write_objects"]

_MIB = 1 << 20
_BLOCK_BYTES = 16 * _MIB


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is moved."""

    objects: int
    object_bytes: int
    large_bytes: int
    warm_objects: int
    warm_bytes: int


FULL = Sizes(
    objects=2000,
    object_bytes=100 << 10,
    large_bytes=1 << 30,
    # More than any subject keeps in flight, so that all connections are there when the clock starts.
    warm_objects=256,
    warm_bytes=64 * _MIB,
)
QUICK = Sizes(
    objects=48,
    object_bytes=100 << 10,
    large_bytes=24 * _MIB,
    warm_objects=8,
    warm_bytes=6 * _MIB,
)


@dataclass(frozen=True, slots=True)
class Stored:
    """An object, and the CRC32C of its bytes."""

    key: str
    size: int
    checksum: int


@dataclass(frozen=True, slots=True)
class Objects:
    """Files below `root/bucket`, named by their keys."""

    root: Path
    bucket: str
    small: Sequence[Stored]
    warm: Stored
    large: Stored

    @property
    def large_path(self) -> Path:
        return self.root / self.bucket / self.large.key


def write_objects(root: Path, bucket: str, sizes: Sizes) -> Objects:
    """Writes them all; a GiB takes a few seconds."""
    folder = root / bucket
    folder.mkdir(parents=True)
    return Objects(
        root,
        bucket,
        [_write(folder, f"small-{i:05d}", sizes.object_bytes) for i in range(sizes.objects)],
        _write(folder, "warm", sizes.warm_bytes),
        _write(folder, "large", sizes.large_bytes),
    )


def _write(folder: Path, key: str, size: int) -> Stored:
    checksum = 0
    with (folder / key).open("wb") as file:
        for start in range(0, size, _BLOCK_BYTES):
            block = os.urandom(min(_BLOCK_BYTES, size - start))
            checksum = crc32c(block, checksum)
            file.write(block)
    return Stored(key, size, checksum)
