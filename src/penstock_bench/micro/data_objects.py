"""The objects of `data`: files of one size, the same bytes again in tar shards, and a list of them as GCS has it."""

import json
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock_bench.micro.objects import Sizes, Stored, write_objects

__all__ = ["BATCH_SIZE", "FULL_DATA", "QUICK_DATA", "DataSizes", "Samples", "write_samples"]

BATCH_SIZE = 32
_SHARD_SAMPLES = 64


@dataclass(frozen=True, slots=True)
class DataSizes:
    """How much is read. An epoch visits the objects over and over until it has its samples."""

    objects: dict[int, int]
    """By their KiB."""
    samples: dict[int, int]
    """Of an epoch, by KiB, where nothing makes it shorter."""
    count_samples: int
    """Of the epoch whose requests are counted."""
    keys: int


FULL_DATA = DataSizes(
    objects={10: 2048, 100: 1536, 500: 512},
    samples={10: 4096, 100: 3072, 500: 1024},
    count_samples=384,
    keys=100_000,
)
QUICK_DATA = DataSizes(
    objects={10: 128, 100: 128, 500: 128},
    samples={10: 128, 100: 128, 500: 128},
    count_samples=128,
    keys=5_000,
)


@dataclass(frozen=True, slots=True)
class Samples:
    """Files below `root/bucket`, and the shards that hold the same samples."""

    root: Path
    bucket: str
    sample_bytes: int
    objects: Sequence[Stored]
    shards: Sequence[str]

    def epoch(self, count: int) -> tuple[list[str], list[int]]:
        """Keys and checksums of so many samples."""
        turns = [self.objects[index % len(self.objects)] for index in range(count)]
        return [stored.key for stored in turns], [stored.checksum for stored in turns]

    def tar_epoch(self, count: int) -> tuple[list[str], list[int]]:
        """Keys of shards with so many samples, which must be whole shards, and the samples' checksums."""
        shards = [self.shards[index % len(self.shards)] for index in range(count // _SHARD_SAMPLES)]
        return shards, self.epoch(len(shards) * _SHARD_SAMPLES)[1]


def write_samples(root: Path, bucket: str, *, count: int, sample_bytes: int) -> Samples:
    """Writes them all, and `root/BUCKET.json`, which a server may show to clients of GCS's JSON API."""
    sizes = Sizes(count, sample_bytes, large_bytes=0, warm_objects=0, warm_bytes=0)
    objects = write_objects(root, bucket, sizes).small
    folder = root / bucket
    shards = [
        _write_shard(folder, number, objects[first : first + _SHARD_SAMPLES])
        for number, first in enumerate(range(0, count - count % _SHARD_SAMPLES, _SHARD_SAMPLES))
    ]
    items = [
        {"name": stored.key, "size": str(stored.size), "storageClass": "STANDARD"}
        for stored in objects
    ]
    listing = {"kind": "storage#objects", "items": items}
    (root / f"{bucket}.json").write_text(json.dumps(listing))
    return Samples(root, bucket, sample_bytes, objects, shards)


def _write_shard(folder: Path, number: int, objects: Sequence[Stored]) -> str:
    key = f"shard-{number:04d}.tar"
    with tarfile.open(folder / key, "w") as tar:
        for stored in objects:
            tar.add(folder / stored.key, arcname=f"{stored.key}.bin")
    return key
