"""This package: its three datasets of bytes, with the settings they come with."""

from typing import Any

from torch.utils.data import Dataset

import penstock
from penstock.data import IterableDataset, MapDataset, Sample, TarDataset
from penstock_bench.micro.datasets.protocol import Source

__all__ = ["iterable", "map_style", "tar"]


def map_style(source: Source) -> Dataset[Any]:
    """A batch is one call, and all of it is in flight at once."""
    return MapDataset.from_objects(source.urls, config=_config(source), transform=_bytes)


def iterable(source: Source) -> Dataset[Any]:
    """Reads ahead across batches."""
    return IterableDataset.from_objects(source.urls, config=_config(source), transform=_bytes)


def tar(source: Source) -> Dataset[Any]:
    """Reads the tables of contents when it is made."""
    return TarDataset.from_objects(source.urls, config=_config(source), transform=_member)


def _config(source: Source) -> penstock.StoreConfig:
    target = source.target
    return penstock.StoreConfig(
        endpoint=target.endpoint,
        region=target.region,
        credentials=penstock.AccessKey(target.access_key_id, target.secret_access_key),
    )


def _bytes(sample: Sample) -> bytes:
    return sample.data


def _member(sample: Any) -> bytes:
    data: bytes = sample.data["bin"]
    return data
