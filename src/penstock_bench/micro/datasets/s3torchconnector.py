"""s3torchconnector: its two datasets, every object read to its end by the default reader."""

from typing import Any

from s3torchconnector import S3ClientConfig, S3IterableDataset, S3MapDataset, S3Reader
from torch.utils.data import Dataset

from penstock_bench.micro.datasets.protocol import Source

__all__ = ["iterable", "map_style"]

# Everything but the addressing is as it comes.
_CONFIG = S3ClientConfig(force_path_style=True)


def map_style(source: Source) -> Dataset[Any]:
    """Its clients are made in the workers, at the first item: it forks well."""
    dataset: Dataset[Any] = S3MapDataset.from_objects(
        source.urls,
        region=source.target.region,
        endpoint=source.target.endpoint,
        s3client_config=_CONFIG,
        transform=_read,
    )
    return dataset


def iterable(source: Source) -> Dataset[Any]:
    """Sharded, without which every worker would read everything."""
    dataset: Dataset[Any] = S3IterableDataset.from_objects(
        source.urls,
        region=source.target.region,
        endpoint=source.target.endpoint,
        s3client_config=_CONFIG,
        transform=_read,
        enable_sharding=True,
    )
    return dataset


def _read(reader: S3Reader) -> bytes:
    data: bytes = reader.read()
    return data
