"""The rows of `data`: every dataset under a DataLoader with 0 and 2 workers, and every lister."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from penstock_bench.micro.data_objects import BATCH_SIZE
from penstock_bench.micro.report import Role, Row

__all__ = [
    "DATA_PACKAGES",
    "FEW",
    "FLAT",
    "FOLDERS",
    "data_rows",
    "listing_rows",
    "needs_gcs",
    "samples_of",
]

DATA_PACKAGES = (
    *("penstock", "s3torchconnector", "s3fs", "gcs-torch-dataflux", "webdataset", "boto3"),
    # Not a package, but bytes without a store.
    "memory",
)
FOLDERS, FLAT, FEW = "many keys in folders", "many keys in one folder", "10 keys"
"""What is listed; the group of a listing's row."""

_DATAFLUX = "gcs-torch-dataflux"
_FEW_ROUNDS = 20
_SLOW_SAMPLES = 768
"""Enough for those who read a few hundred a second."""

Style = Literal["map", "iterable", "tar"]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A dataset, before it is known how many workers read it."""

    name: str
    package: str
    style: Style
    adapter: str
    how: str
    role: Role = "rival"
    requires: tuple[str, ...] = ()
    options: Mapping[str, int] = field(default_factory=dict)
    waits: bool = False
    """Whether a worker waits for each object before it asks for the next."""
    most_samples: int | None = None
    everywhere: bool = False
    """Also for the sizes that not all are measured at."""
    without_workers: bool = True
    """Also with none."""
    under_latency: bool = True
    """Also where answers come late."""


def _ours(name: str, style: Style, adapter: str, *, everywhere: bool) -> Loaded:
    return Loaded(
        f"penstock {name}",
        "penstock",
        style,
        f"ours:{adapter}",
        "as it comes",
        "ours",
        everywhere=everywhere,
    )


def _amazons(name: str, style: Style, adapter: str, how: str) -> Loaded:
    package = "s3torchconnector"
    return Loaded(
        name,
        package,
        style,
        f"{package}:{adapter}",
        how,
        requires=(package,),
        waits=True,
        everywhere=True,
    )


def _googles(name: str, style: Style, adapter: str, *, threads: int | None) -> Loaded:
    threaded = threads is not None and threads > 1
    return Loaded(
        f"{name}, {threads} threads" if threaded else name,
        _DATAFLUX,
        style,
        f"dataflux:{adapter}",
        f"not composed, threads_per_process={threads}" if threaded else "not composed",
        requires=("dataflux_pytorch",),
        options={} if threads is None else {"threads": threads},
        waits=not threaded,
        most_samples=_SLOW_SAMPLES,
        without_workers=not threaded,
    )


_LOADED = (
    _ours("MapDataset", "map", "map_style", everywhere=True),
    _amazons("S3MapDataset", "map", "map_style", "reader.read()"),
    Loaded(
        "s3fs",
        "s3fs",
        "map",
        "s3fs:map_style",
        "cat of a whole batch",
        requires=("s3fs",),
        most_samples=_SLOW_SAMPLES,
        everywhere=True,
    ),
    _googles("DataFluxMapStyleDataset", "map", "map_style", threads=1),
    _googles("DataFluxMapStyleDataset", "map", "map_style", threads=16),
    Loaded(
        "bytes in memory",
        "memory",
        "map",
        "memory:map_style",
        "no storage: the loader's own limit",
        "limit",
        without_workers=False,
        under_latency=False,
    ),
    _ours("IterableDataset", "iterable", "iterable", everywhere=True),
    _amazons("S3IterableDataset", "iterable", "iterable", "reader.read(), sharded"),
    _googles("DataFluxIterableDataset", "iterable", "iterable", threads=None),
    _ours("TarDataset", "tar", "tar", everywhere=False),
    Loaded(
        "webdataset",
        "webdataset",
        "tar",
        "webdataset:tar",
        "http, by curl",
        requires=("webdataset",),
    ),
)


def data_rows(*, workers: Collection[int], everyone: bool, latency: bool) -> list[Row]:
    """Each dataset with each number of workers, compared by style and workers."""
    return [
        Row(
            _name(loaded, count),
            loaded.package,
            loaded.role,
            loaded.adapter,
            loaded.how,
            {**loaded.options, "workers": count},
            loaded.requires,
            group=f"{loaded.style}, {count} workers",
        )
        for count in sorted(workers, reverse=True)
        for loaded in _LOADED
        if (everyone or loaded.everywhere)
        and (count or loaded.without_workers)
        and (loaded.under_latency or not latency)
    ]


def samples_of(row: Row, samples: int, *, latency: bool) -> int:
    """How long an epoch is. Who waits for each object gets three batches a worker under latency: about 2 s."""
    workers = row.options["workers"]
    loaded = next(loaded for loaded in _LOADED if _name(loaded, workers) == row.name)
    if latency and loaded.waits:
        return min(samples, 3 * BATCH_SIZE * max(1, workers))
    return min(samples, loaded.most_samples or samples)


def needs_gcs(row: Row) -> bool:
    """Whether it reads from GCS alone."""
    return row.package == _DATAFLUX


def _name(loaded: Loaded, workers: int) -> str:
    return f"{loaded.name}, {workers} workers"


def listing_rows() -> list[Row]:
    """Each lister and each set of keys, compared by the keys. boto3 takes seconds for many, and lists only ten."""
    return [
        Row(
            f"{name}, {group}",
            package,
            role,
            adapter,
            how,
            {"rounds": _FEW_ROUNDS if group == FEW else 1},
            () if package == "penstock" else (package,),
            group=group,
        )
        for group in (FOLDERS, FLAT, FEW)
        for name, package, role, adapter, how in _LISTERS
        if group == FEW or package != "boto3"
    ]


_LISTERS: tuple[tuple[str, str, Role, str, str], ...] = (
    ("penstock list_objects", "penstock", "ours", "walk", "as it comes"),
    ("penstock Store.list", "penstock", "baseline", "plain", "plain: page after page"),
    (
        "s3torchconnector",
        "s3torchconnector",
        "rival",
        "s3torchconnector",
        "S3MapDataset.from_prefix",
    ),
    ("boto3", "boto3", "rival", "boto3", "paginator"),
)
