"""`transfer`: small reads at 0 and 20 ms, a large read, a large upload; this package beside the alternatives."""

import contextlib
import importlib.util
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from penstock_bench.micro.measure import SampleFailed, Taken, interleave
from penstock_bench.micro.objects import Objects, Sizes, write_objects
from penstock_bench.micro.probe import Reading
from penstock_bench.micro.report import Environment, Report, Row, RowResult, SectionResult
from penstock_bench.micro.rows import PACKAGES, read_rows, small_rows, upload_rows
from penstock_bench.micro.sections import LargeReads, Section, SmallReads, Uploads
from penstock_bench.micro.servers import behind_proxy, scratch_folder, serving

__all__ = ["SECTIONS", "Announce", "Plan", "notes_on", "run", "sample_rows"]

_MIB = 1 << 20
_BUCKET = "bench"
_LATENCY_MS = 20.0
_SATURATED_CORES = 0.9
_QUIET_CORES = 0.25

SECTIONS = ("small", "small-20ms", "read", "upload")

Announce = Callable[[str], None]
"""Told what is about to be measured, for a progress display."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure, and how often."""

    sizes: Sizes
    repeats: int
    sections: Collection[str]
    packages: Collection[str]


def run(plan: Plan, announce: Announce) -> Report:
    """Starts servers, measures, stops them. Rows whose package is missing or fails stay, with the reason."""
    environment = Environment.observe([*PACKAGES[:-1], "torch", "fsspec", "aiobotocore"])
    with scratch_folder(4 * plan.sizes.large_bytes) as folder:
        announce("writing the objects")
        objects = write_objects(folder / "objects", _BUCKET, plan.sizes)
        results = [
            _measure(name, plan, objects, folder, announce)
            for name in SECTIONS
            if name in plan.sections
        ]
    settings = {**asdict(plan.sizes), "repeats": plan.repeats, "latency_ms": _LATENCY_MS}
    return Report("transfer", settings, environment, results)


def _measure(
    name: str, plan: Plan, objects: Objects, folder: Path, announce: Announce
) -> SectionResult:
    sizes = plan.sizes
    rows = [row for row in _rows(name, sizes) if row.package in plan.packages]
    with _opened(name, objects, folder, sizes) as section:
        results = sample_rows(section, rows, plan.repeats, lambda what: announce(f"{name}: {what}"))
        server = section.server
    unit: Literal["object", "MiB"] = "object" if name.startswith("small") else "MiB"
    units = sizes.objects if unit == "object" else sizes.large_bytes / _MIB
    result = SectionResult(name, _title(name, sizes), unit, units, server, results)
    return replace(result, notes=notes_on(result))


@contextlib.contextmanager
def _opened(name: str, objects: Objects, folder: Path, sizes: Sizes) -> Iterator[Section]:
    if name == "upload":
        yield Uploads(objects, folder)
        return
    with serving(objects.root, objects.bucket) as origin:
        if name == "small-20ms":
            with behind_proxy(origin, latency_ms=_LATENCY_MS) as slow:
                yield SmallReads(objects, slow, origin, sizes.warm_objects)
        elif name == "small":
            yield SmallReads(objects, origin, origin, sizes.warm_objects)
        else:
            yield LargeReads(objects, origin)


def _rows(name: str, sizes: Sizes) -> list[Row]:
    if name == "read":
        return read_rows()
    if name == "upload":
        return upload_rows()
    return small_rows(latency=name == "small-20ms", object_bytes=sizes.object_bytes)


def _title(name: str, sizes: Sizes) -> str:
    small = f"{sizes.objects:,} × {sizes.object_bytes >> 10} KiB reads"
    large = f"{sizes.large_bytes // _MIB:,} MiB"
    return {
        "small": f"{small}, no added latency",
        "small-20ms": f"{small}, {_LATENCY_MS:.0f} ms added to each request",
        "read": f"a {large} read into memory",
        "upload": f"a {large} upload from memory",
    }[name]


def sample_rows(
    section: Section, rows: Sequence[Row], repeats: int, announce: Announce
) -> list[RowResult]:
    """Counts each row's requests, then takes the timed samples in turn."""
    by_name = {row.name: row for row in rows}
    results = {row.name: RowResult(row, skipped=_missing(row)) for row in rows}
    present = []
    for row in rows:
        if results[row.name].skipped is not None:
            continue
        announce(f"requests of {row.name}")
        try:
            results[row.name] = replace(results[row.name], requests=section.count(row))
        except SampleFailed as exc:
            results[row.name] = replace(results[row.name], failed=str(exc))
        else:
            present.append(row.name)
    taken: dict[str, list[Taken]] = {name: [] for name in present}

    def take(name: str, repetition: int) -> Reading:
        announce(f"{name}, sample {repetition + 1} of {repeats}")
        return section.sample(by_name[name], repetition)

    for item in interleave(present, take, repeats=repeats):
        taken[item.row].append(item)
        results[item.row] = replace(
            results[item.row], taken=tuple(taken[item.row]), failed=item.failure
        )
    return list(results.values())


def _missing(row: Row) -> str | None:
    for module in row.requires:
        if importlib.util.find_spec(module) is None:
            return f"{module} is not installed; pip install 'penstock[rivals]'"
    return None


def notes_on(section: SectionResult) -> list[str]:
    """What must be known to read the table rightly."""
    notes = []
    busy = [cores for row in section.rows if (cores := row.busy("server")) is not None]
    if busy:
        notes.append(f"The server used {min(busy):.1f} to {max(busy):.1f} cores meanwhile.")
    noisy = [row for row in section.rows if row.others_busy > _QUIET_CORES]
    if noisy:
        notes.append(
            f"NOISY: other programs used up to {max(row.others_busy for row in noisy):.1f} cores during samples of"
            f" {len(noisy)} of {len(section.rows)} rows. Repeat it on a quiet machine."
        )
    limit = section.best("limit")
    above = [
        row.row.name
        for row in section.rows
        if row.row.role != "limit"
        and limit is not None
        and (figures := row.figures(section.units)) is not None
        and figures.throughput > limit[1].throughput
    ]
    if above:
        notes.append(
            f"Faster than the bare socket, which is no upper bound here: {', '.join(above)}."
        )
    limited = [
        row.row.name for row in section.rows if (row.busy("proxy") or 0.0) > _SATURATED_CORES
    ]
    if limited:
        notes.append(f"Limited by FaultProxy, which has one core: {', '.join(limited)}.")
    if section.name == "read":
        notes.append(
            "Peaks: what reads into a bytearray finds it there before; what returns new memory has its result"
            " in its peak."
        )
    if section.name == "upload":
        notes.append("Peaks: the source lies in memory before, and is in nobody's peak.")
    return notes
