"""webdataset: tar shards over HTTP, through the curl that it starts for each."""

from typing import Any

import webdataset
from torch.utils.data import Dataset

from penstock_bench.micro.datasets.protocol import Source

__all__ = ["tar"]


def tar(source: Source) -> Dataset[Any]:
    """Shards are shared by workers, whole; nothing is shuffled or decoded."""
    target = source.target
    urls = [f"{target.endpoint}/{target.bucket}/{key}" for key in source.keys]
    dataset: Dataset[Any] = webdataset.WebDataset(urls, shardshuffle=False).map(_member)
    return dataset


def _member(sample: dict[str, Any]) -> bytes:
    data: bytes = sample["bin"]
    return data
