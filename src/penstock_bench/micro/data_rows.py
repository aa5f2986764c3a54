"""The rows of `data`: every dataset under a DataLoader with 0 and 2 workers, and every lister."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from penstock_bench.micro.data_objects import BATCH_SIZE
from penstock_bench.micro.report import Row

__all__ = [
    "DATA_PACKAGES",
    "FEW",
    "MANY",
    "Pace",
    "data_rows",
    "listing_rows",
    "needs_gcs",
    "samples_of",
]

DATA_PACKAGES = (
    "penstock",
    "s3torchconnector",
    "s3fs",
    "gcs-torch-dataflux",
    "webdataset",
    "boto3",
)

_DATAFLUX = "gcs-torch-dataflux"
_FEW_ROUNDS = 20
MANY, FEW = "many keys", "10 keys"

Style = Literal["map", "iterable", "tar"]
Pace = Literal["many in flight", "one at a time"]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A dataset, before it is known how many workers read it."""

    name: str
    package: str
    style: Style
    adapter: str
    how: str
    pace: Pace
    requires: tuple[str, ...] = ()
    options: Mapping[str, int] = field(default_factory=dict)
    everywhere: bool = True
    """Off: only for the size that all are measured at."""


_LOADED = (
    Loaded(
        "penstock MapDataset", "penstock", "map", "ours:map_style", "as it comes", "many in flight"
    ),
    Loaded(
        "S3MapDataset",
        "s3torchconnector",
        "map",
        "s3torchconnector:map_style",
        "reader.read()",
        "one at a time",
        ("s3torchconnector",),
    ),
    Loaded(
        "s3fs", "s3fs", "map", "s3fs:map_style", "cat of a whole batch", "many in flight", ("s3fs",)
    ),
    Loaded(
        "DataFluxMapStyleDataset",
        _DATAFLUX,
        "map",
        "dataflux:map_style",
        "not composed",
        "one at a time",
        ("dataflux_pytorch",),
        {"threads": 1},
        everywhere=False,
    ),
    Loaded(
        "DataFluxMapStyleDataset, 16 threads",
        _DATAFLUX,
        "map",
        "dataflux:map_style",
        "not composed, threads_per_process=16",
        "many in flight",
        ("dataflux_pytorch",),
        {"threads": 16},
        everywhere=False,
    ),
    Loaded(
        "penstock IterableDataset",
        "penstock",
        "iterable",
        "ours:iterable",
        "as it comes",
        "many in flight",
    ),
    Loaded(
        "S3IterableDataset",
        "s3torchconnector",
        "iterable",
        "s3torchconnector:iterable",
        "reader.read(), sharded",
        "one at a time",
        ("s3torchconnector",),
    ),
    Loaded(
        "DataFluxIterableDataset",
        _DATAFLUX,
        "iterable",
        "dataflux:iterable",
        "not composed",
        "one at a time",
        ("dataflux_pytorch",),
        everywhere=False,
    ),
    Loaded(
        "penstock TarDataset",
        "penstock",
        "tar",
        "ours:tar",
        "as it comes",
        "many in flight",
        everywhere=False,
    ),
    Loaded(
        "webdataset",
        "webdataset",
        "tar",
        "webdataset:tar",
        "http, by curl",
        "many in flight",
        ("webdataset",),
        everywhere=False,
    ),
)


def data_rows(*, workers: Collection[int], everyone: bool) -> list[Row]:
    """Each dataset with each number of workers, compared by style and workers."""
    return [
        Row(
            f"{loaded.name}, {count} workers",
            loaded.package,
            "ours" if loaded.package == "penstock" else "rival",
            loaded.adapter,
            loaded.how,
            {**loaded.options, "workers": count},
            loaded.requires,
            group=f"{loaded.style}, {count} workers",
        )
        for count in sorted(workers, reverse=True)
        for loaded in _LOADED
        if everyone or loaded.everywhere
    ]


def pace_of(row: Row) -> Pace:
    """Threads make one that reads one at a time into one that does not."""
    if row.options.get("threads", 1) > 1:
        return "many in flight"
    return next(loaded.pace for loaded in _LOADED if loaded.adapter == row.adapter)


def samples_of(row: Row, samples: int, *, latency: bool) -> int:
    """How long an epoch is. Who waits for each object gets three batches a worker under latency: about 2 s."""
    slow = latency and pace_of(row) == "one at a time"
    return min(samples, 3 * BATCH_SIZE * max(1, row.options["workers"])) if slow else samples


def needs_gcs(row: Row) -> bool:
    """Whether it reads from GCS alone."""
    return row.package == _DATAFLUX


def listing_rows() -> list[Row]:
    """Each lister with many keys and with ten, compared by how many keys there are."""
    rows = []
    for group, rounds in ((MANY, 1), (FEW, _FEW_ROUNDS)):
        options = {"rounds": rounds}
        rows += [
            Row(
                f"penstock list_objects, {group}",
                "penstock",
                "ours",
                "walk",
                "as it comes",
                options,
                group=group,
            ),
            Row(
                f"penstock Store.list, {group}",
                "penstock",
                "baseline",
                "plain",
                "plain: page after page",
                options,
                group=group,
            ),
            Row(
                f"s3torchconnector, {group}",
                "s3torchconnector",
                "rival",
                "s3torchconnector",
                "S3MapDataset.from_prefix",
                options,
                ("s3torchconnector",),
                group=group,
            ),
            Row(
                f"boto3, {group}",
                "boto3",
                "rival",
                "boto3",
                "paginator",
                options,
                ("boto3",),
                group=group,
            ),
        ]
    return rows
