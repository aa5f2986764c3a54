"""s3torchconnector: its map-style dataset, its checkpoint reader and writer, and its range reader."""

from collections.abc import Sequence

from s3torchconnector import (
    S3Checkpoint,
    S3ClientConfig,
    S3MapDataset,
    S3Reader,
    S3ReaderConstructor,
)
from typing_extensions import Buffer

from penstock_bench.micro.subjects.protocol import Take, Target
from penstock_bench.micro.subjects.threads import Crew

__all__ = ["Checkpoint", "Dataset", "RangeReader"]

_PIECE_BYTES = 8 << 20
# Everything but the addressing is as it comes.
_CONFIG = S3ClientConfig(force_path_style=True)


def _read_whole(reader: S3Reader) -> bytes:
    data: bytes = reader.read()
    return data


class Dataset:
    """`S3MapDataset`, its items read as a DataLoader's process reads them: one after another.

    With more than one thread it is read as nobody documents it, but as somebody might.
    """

    def __init__(self, target: Target, keys: Sequence[str], *, threads: int) -> None:
        self._crew = Crew(threads)
        self._dataset = S3MapDataset.from_objects(
            [target.url(key) for key in keys],
            region=target.region,
            endpoint=target.endpoint,
            s3client_config=_CONFIG,
            transform=_read_whole,
        )

    def read_many(self, count: int, take: Take) -> None:
        self._crew.each(range(count), lambda index: take(index, self._dataset[index]))

    def close(self) -> None:
        self._crew.close()


class Checkpoint:
    """`S3Checkpoint(...).reader(url).read()` and `.writer(url)`."""

    def __init__(self, target: Target, _: Sequence[str]) -> None:
        self._target = target
        self._checkpoint = S3Checkpoint(
            target.region, endpoint=target.endpoint, s3client_config=_CONFIG
        )

    def read(self, key: str) -> Buffer:
        return _read_whole(self._checkpoint.reader(self._target.url(key)))

    def write(self, key: str, source: bytes) -> None:
        view = memoryview(source)
        with self._checkpoint.writer(self._target.url(key)) as file:
            for start in range(0, len(view), _PIECE_BYTES):
                file.write(view[start : start + _PIECE_BYTES])

    def close(self) -> None:
        """Its client's threads end with the process."""


class RangeReader:
    """`readinto` of the range-based reader, which copies each piece once, into the caller's memory."""

    def __init__(self, target: Target, keys: Sequence[str]) -> None:
        self._keys = list(keys)
        self._dataset = S3MapDataset.from_objects(
            [target.url(key) for key in keys],
            region=target.region,
            endpoint=target.endpoint,
            s3client_config=_CONFIG,
            reader_constructor=S3ReaderConstructor.range_based(),
        )

    def read_into(self, key: str, buffer: memoryview) -> None:
        self._dataset[self._keys.index(key)].readinto(buffer)

    def close(self) -> None:
        """Its client's threads end with the process."""
