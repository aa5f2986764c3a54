"""Samples served: who takes which (`lanes`, `order`, pure), reads ahead, decodes, and never loses its place."""

from typing import TYPE_CHECKING, Any

from penstock.data.bad import SKIPPED
from penstock.data.iterable import IterableDataset
from penstock.data.loader import DataLoader
from penstock.data.map import MapDataset
from penstock.data.sample import Sample
from penstock.data.sampler import ElasticSampler
from penstock.data.state import merge_states
from penstock.data.tar import TarDataset
from penstock.errors import ConfigError

__all__ = [
    "SKIPPED",
    "DataLoader",
    "ElasticSampler",
    "IterableDataset",
    "MapDataset",
    "ParquetDataset",
    "Sample",
    "TarDataset",
    "merge_states",
]

if TYPE_CHECKING:
    from penstock.data.parquet import ParquetDataset


def __getattr__(name: str) -> Any:
    """Parquet needs pyarrow, which not everybody has."""
    if name != "ParquetDataset":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from penstock.data.parquet import ParquetDataset
    except ImportError as exc:
        raise ConfigError("ParquetDataset needs pyarrow; pip install 'penstock[parquet]'") from exc
    return ParquetDataset
