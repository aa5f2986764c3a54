"""gcs-torch-dataflux: its two datasets, on the calls of GCS's JSON API that nginx can answer from files.

Composing is off: it needs a store that composes. The library finds the endpoint in `STORAGE_EMULATOR_HOST`.
"""

from typing import Any

from dataflux_pytorch import dataflux_iterable_dataset, dataflux_mapstyle_dataset
from torch.utils.data import Dataset

from penstock_bench.micro.datasets.protocol import Source

__all__ = ["iterable", "map_style"]

_PROJECT = "penstock"


def map_style(source: Source, *, threads: int) -> Dataset[Any]:
    """`threads` are those of a worker for one batch; 1 is what it comes with."""
    dataset = dataflux_mapstyle_dataset.DataFluxMapStyleDataset(
        _PROJECT,
        source.target.bucket,
        dataflux_mapstyle_dataset.Config(threads_per_process=threads, disable_compose=True),
    )
    return _reading(dataset, source)


def iterable(source: Source) -> Dataset[Any]:
    """One object after another."""
    dataset = dataflux_iterable_dataset.DataFluxIterableDataset(
        _PROJECT,
        source.target.bucket,
        dataflux_iterable_dataset.Config(disable_compose=True),
    )
    return _reading(dataset, source)


def _reading(dataset: Any, source: Source) -> Dataset[Any]:
    """It always lists the whole bucket; then it is told to read what the others read.

    Not with the sizes that it has found: they matter to composing alone, and now and then its listing comes back empty.
    """
    dataset.objects = [(key, 1) for key in source.keys]
    made: Dataset[Any] = dataset
    return made
