"""s3fs: the dataset that a careful user writes over it, a batch in one `cat`."""

from collections.abc import Sequence
from typing import Any

import s3fs
from torch.utils.data import Dataset

from penstock_bench.micro.datasets.protocol import Source
from penstock_bench.micro.subjects.protocol import Target

__all__ = ["map_style"]


def map_style(source: Source) -> Dataset[Any]:
    """A file system is made in each worker, since fsspec's event loop does not survive a fork."""
    return _Cat(source)


class _Cat(Dataset[Any]):
    def __init__(self, source: Source) -> None:
        self._target = source.target
        self._paths = [f"{source.target.bucket}/{key}" for key in source.keys]
        self._fs: s3fs.S3FileSystem | None = None

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> bytes:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[bytes]:
        if self._fs is None:
            self._fs = _open(self._target)
        paths = [self._paths[index] for index in indices]
        # max_concurrency=1, within one object, spares a HEAD for each.
        found = self._fs.cat(paths, max_concurrency=1)
        if isinstance(found, bytes):
            return [found]
        return [found[path] for path in paths]


def _open(target: Target) -> s3fs.S3FileSystem:
    return s3fs.S3FileSystem(
        key=target.access_key_id,
        secret=target.secret_access_key,
        endpoint_url=target.endpoint,
        client_kwargs={"region_name": target.region},
        # As many connections as fsspec keeps requests in flight; botocore's 10 would hold it back.
        config_kwargs={"max_pool_connections": 128, "s3": {"addressing_style": "path"}},
        use_listings_cache=False,
        skip_instance_cache=True,
    )
