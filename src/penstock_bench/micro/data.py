"""`data`: datasets under torch's DataLoader at 0 and 20 ms, and listings; this package beside the alternatives."""

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from penstock.config import AccessKey, StoreConfig
from penstock.store import open_store
from penstock_bench.micro.data_objects import DataSizes, Samples, write_samples
from penstock_bench.micro.data_rows import DATA_PACKAGES, data_rows, listing_rows, needs_gcs
from penstock_bench.micro.data_sections import Epochs, Listings
from penstock_bench.micro.list_server import keys_of
from penstock_bench.micro.report import Environment, Report, Row, RowResult, SectionResult
from penstock_bench.micro.servers import (
    Served,
    behind_proxy,
    list_server,
    scratch_folder,
    seaweedfs,
    serving,
)
from penstock_bench.micro.subjects.protocol import Target
from penstock_bench.micro.transfer import Announce, notes_on, sample_rows

__all__ = ["DATA_SECTIONS", "DEFAULT_DATA_SECTIONS", "DataPlan", "run_data"]

_BUCKET = "bench"
_LATENCY_MS = 20.0
_UPLOAD_THREADS = 16
_ALL_AT_KIB = 100
"""The size at which everyone is measured, with 0 and 2 workers; at the others some, with 2."""

_NOTE = (
    "Workers are forked, and stay from the warm-up on; the first batch counts from making the dataset, in a process"
    " that has imported its package. CPU and peak are summed over the processes. An epoch is shorter for those who"
    " are slow: the quantity is a rate. TarDataset's requests include those for the tables of contents, when it is"
    " made."
)
_SOME_NOTE = f"All are measured at {_ALL_AT_KIB} KiB, with 0 and 2 workers; here some, with 2."

DEFAULT_DATA_SECTIONS = (
    *("100k", "100k-20ms"),
    *("10k", "10k-20ms"),
    *("500k", "500k-20ms"),
    *("listing", "listing-20ms"),
)
DATA_SECTIONS = (*DEFAULT_DATA_SECTIONS, "listing-seaweedfs", "listing-seaweedfs-20ms")


@dataclass(frozen=True, slots=True)
class DataPlan:
    """What to measure, and how often."""

    sizes: DataSizes
    repeats: int
    sections: Collection[str]
    packages: Collection[str]

    def has(self, name: str) -> bool:
        return name in self.sections

    def chosen(self, rows: Sequence[Row]) -> list[Row]:
        return [row for row in rows if row.package in self.packages]


def run_data(plan: DataPlan, announce: Announce) -> Report:
    """Starts servers, measures, stops them. Rows whose package is missing or fails stay, with the reason."""
    environment = Environment.observe([*DATA_PACKAGES[:-1], "torch"])
    results: list[SectionResult] = []
    with scratch_folder(4 << 30) as folder:
        for kib, count in plan.sizes.objects.items():
            names = [name for name in (f"{kib}k", f"{kib}k-20ms") if plan.has(name)]
            if names:
                announce(f"writing {count:,} objects of {kib} KiB")
                samples = write_samples(
                    folder / f"{kib}k", _BUCKET, count=count, sample_bytes=kib << 10
                )
                results += _read_all(names, kib, samples, plan, announce)
        results += _list_all(plan, folder, announce)
    order = {name: index for index, name in enumerate(DATA_SECTIONS)}
    results.sort(key=lambda section: order[section.name])
    settings = {**asdict(plan.sizes), "repeats": plan.repeats, "latency_ms": _LATENCY_MS}
    return Report("data", settings, environment, results)


def _read_all(
    names: Sequence[str], kib: int, samples: Samples, plan: DataPlan, announce: Announce
) -> Iterator[SectionResult]:
    everyone = kib == _ALL_AT_KIB
    counted: dict[str, Mapping[str, int]] = {}
    with serving(samples.root, samples.bucket) as origin:
        for name in names:
            slow = name.endswith("ms")
            rows = data_rows(workers=(0, 2) if everyone else (2,), everyone=everyone, latency=slow)
            with _slowed(origin, slow=slow) as served:
                section = Epochs(
                    samples,
                    served,
                    origin,
                    epoch_samples=plan.sizes.samples[kib],
                    count_samples=plan.sizes.count_samples,
                    counted=counted,
                )
                yield _read(
                    name,
                    section,
                    plan.chosen(rows),
                    plan,
                    announce,
                    speaks_gcs=origin.speaks_gcs,
                )


def _read(
    name: str,
    section: Epochs,
    rows: Sequence[Row],
    plan: DataPlan,
    announce: Announce,
    *,
    speaks_gcs: bool,
) -> SectionResult:
    kib = name.partition("k")[0]
    silent = [row for row in rows if needs_gcs(row) and not speaks_gcs]
    results = sample_rows(
        section,
        [row for row in rows if row not in silent],
        plan.repeats,
        lambda what: announce(f"{name}: {what}"),
    )
    results += [
        RowResult(row, skipped="no GCS endpoint here: nginx would be one; apt-get install nginx")
        for row in silent
    ]
    results = [
        replace(result, units=section.units(result.row), counted_units=plan.sizes.count_samples)
        for result in sorted(results, key=lambda result: rows.index(result.row))
    ]
    title = f"{kib} KiB objects, {_latency(name)}"
    found = SectionResult(
        name, title, "sample", plan.sizes.samples[int(kib)], section.server, results
    )
    notes = [*notes_on(found), _NOTE if int(kib) == _ALL_AT_KIB else _SOME_NOTE]
    return replace(found, notes=notes)


def _list_all(plan: DataPlan, folder: Path, announce: Announce) -> Iterator[SectionResult]:
    keys = plan.sizes.keys
    for name, latency_ms in (("listing", 0.0), ("listing-20ms", _LATENCY_MS)):
        if plan.has(name):
            with list_server(folder, _BUCKET, keys=keys, latency_ms=latency_ms) as served:
                section = Listings(served, served, proxy_latency_ms=0, keys=keys)
                yield _list(name, section, plan, announce)
    names = [name for name in DATA_SECTIONS if "seaweedfs" in name and plan.has(name)]
    if not names:
        return
    with seaweedfs(folder / "seaweedfs", _BUCKET) as origin:
        stored = [key for part in keys_of(keys).values() for key in part]
        announce(f"writing {len(stored):,} keys to SeaweedFS")
        _write_keys(origin.target, stored)
        for name in names:
            slow = name.endswith("ms")
            with _slowed(origin, slow=slow) as served:
                section = Listings(
                    served, origin, proxy_latency_ms=_LATENCY_MS if slow else 0, keys=keys
                )
                yield _list(name, section, plan, announce)


def _list(name: str, section: Listings, plan: DataPlan, announce: Announce) -> SectionResult:
    results = sample_rows(
        section,
        plan.chosen(listing_rows()),
        plan.repeats,
        lambda what: announce(f"{name}: {what}"),
    )
    results = [
        replace(result, units=result.row.options["rounds"], counted_units=1) for result in results
    ]
    title = f"listing {plan.sizes.keys:,} keys and 10, {_latency(name)}"
    found = SectionResult(name, title, "listing", 1, section.server, results)
    return replace(found, notes=notes_on(found))


@contextlib.contextmanager
def _slowed(origin: Served, *, slow: bool) -> Iterator[Served]:
    if not slow:
        yield origin
        return
    with behind_proxy(origin, latency_ms=_LATENCY_MS) as served:
        yield served


def _latency(name: str) -> str:
    return f"{_LATENCY_MS:.0f} ms before each answer" if name.endswith("ms") else "no added latency"


def _write_keys(target: Target, keys: Sequence[str]) -> None:
    config = StoreConfig(
        endpoint=target.endpoint,
        region=target.region,
        credentials=AccessKey(target.access_key_id, target.secret_access_key),
    )
    store = open_store(f"s3://{target.bucket}", config)
    with ThreadPoolExecutor(_UPLOAD_THREADS) as pool:
        for _ in pool.map(lambda key: store.put(key, b"x"), keys):
            pass
