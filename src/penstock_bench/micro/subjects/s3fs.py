"""s3fs, the fsspec file system: batches of `cat` for small objects, `cat_file` and `pipe_file` for large ones."""

from collections.abc import Sequence

import s3fs
from typing_extensions import Buffer

from penstock_bench.micro.subjects.protocol import Take, Target

__all__ = ["S3fs"]

# What `cat` returns is held at once: as many as a careful reader would take.
_BATCH = 256


class S3fs:
    """As many connections as fsspec keeps requests in flight; botocore's default of 10 would hold it back."""

    def __init__(self, target: Target, keys: Sequence[str]) -> None:
        self._bucket = target.bucket
        self._keys = keys
        self._fs = s3fs.S3FileSystem(
            key=target.access_key_id,
            secret=target.secret_access_key,
            endpoint_url=target.endpoint,
            client_kwargs={"region_name": target.region},
            config_kwargs={"max_pool_connections": 128, "s3": {"addressing_style": "path"}},
            use_listings_cache=False,
            skip_instance_cache=True,
        )
        self._fs.connect()

    def read_many(self, count: int, take: Take) -> None:
        for first in range(0, count, _BATCH):
            paths = [self._path(key) for key in self._keys[first : min(first + _BATCH, count)]]
            # max_concurrency=1, within one object, spares a HEAD for each.
            found = self._fs.cat(paths, max_concurrency=1)
            for index, path in enumerate(paths, first):
                take(index, found.pop(path))

    def read(self, key: str) -> Buffer:
        data: bytes = self._fs.cat_file(self._path(key))
        return data

    def write(self, key: str, source: bytes) -> None:
        self._fs.pipe_file(self._path(key), source)

    def _path(self, key: str) -> str:
        return f"{self._bucket}/{key}"

    def close(self) -> None:
        """Its event loop's thread ends with the process."""
