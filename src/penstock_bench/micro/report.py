"""What a run leaves behind: every sample, the facts of the machine, and the figures computed from them."""

import importlib.metadata
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Literal

import psutil

from penstock_bench.micro.measure import Taken

__all__ = ["Environment", "Figures", "Report", "Role", "Row", "RowResult", "SectionResult", "Unit"]

_FORMAT_VERSION = 1
_MIB = 1 << 20

Role = Literal["ours", "rival", "limit", "baseline"]
Unit = Literal["object", "MiB", "sample", "listing"]


@dataclass(frozen=True, slots=True)
class Row:
    """One subject used in one way."""

    name: str
    package: str
    role: Role
    adapter: str
    """`module:class` under `subjects`."""
    how: str
    options: Mapping[str, int] = field(default_factory=dict)
    requires: tuple[str, ...] = ()
    """Modules without which the row is skipped."""
    group: str = ""
    """Rows of a section are compared within their group."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Medians over a row's samples; a unit is an object, a MiB, a sample of a dataset or a whole listing."""

    throughput: float
    throughput_low: float
    throughput_high: float
    cpu_us_per_unit: float
    peak_mib: float | None
    requests: int | None


@dataclass(frozen=True, slots=True)
class RowResult:
    """A row's samples, or why it has none."""

    row: Row
    taken: Sequence[Taken] = ()
    requests: Mapping[str, int] | None = None
    """By method, of one run that was not timed."""
    skipped: str | None = None
    failed: str | None = None
    units: float | None = None
    """How much it moved, where its section does not move the same for all rows."""
    counted_units: float | None = None
    """How much was moved while its requests were counted, where that was another amount."""

    def figures(self, units: float) -> Figures | None:
        """`units` is the section's."""
        units = self.units or units
        readings = [taken.reading for taken in self.taken if taken.reading is not None]
        if not readings or self.failed is not None:
            return None
        walls_s = [reading.wall_s for reading in readings]
        peaks_bytes = [reading.peak_rss_over_baseline_bytes for reading in readings]
        return Figures(
            throughput=units / median(walls_s),
            throughput_low=units / max(walls_s),
            throughput_high=units / min(walls_s),
            cpu_us_per_unit=median(reading.cpu_s for reading in readings) / units * 1e6,
            peak_mib=median(peak for peak in peaks_bytes if peak is not None) / _MIB
            if None not in peaks_bytes
            else None,
            requests=None if self.requests is None else sum(self.requests.values()),
        )

    def requests_per_unit(self, units: float) -> float | None:
        """`units` is the section's."""
        if self.requests is None:
            return None
        return sum(self.requests.values()) / (self.counted_units or self.units or units)

    def fact(self, name: str) -> float | None:
        """The median of what its tasks have measured themselves under this name."""
        found = [
            taken.reading.facts[name]
            for taken in self.taken
            if taken.reading is not None and name in taken.reading.facts
        ]
        return median(found) if found else None

    def busy(self, role: str) -> float | None:
        """How many cores a watched process used while the clock ran."""
        shares = [
            taken.reading.watched_cpu_s[role] / taken.reading.wall_s
            for taken in self.taken
            if taken.reading is not None and role in taken.reading.watched_cpu_s
        ]
        return median(shares) if shares else None

    @property
    def others_busy(self) -> float:
        """How many cores the rest of the machine used, in the worst sample."""
        return max(
            (
                taken.reading.others_cpu_s / taken.reading.wall_s
                for taken in self.taken
                if taken.reading is not None
            ),
            default=0.0,
        )


@dataclass(frozen=True, slots=True)
class SectionResult:
    """One table."""

    name: str
    title: str
    unit: Unit
    units: float
    server: str
    rows: Sequence[RowResult]
    notes: Sequence[str] = ()

    def figures_of(self, row: str) -> Figures | None:
        for result in self.rows:
            if result.row.name == row:
                return result.figures(self.units)
        return None

    def best(self, role: Role, *, group: str = "") -> tuple[str, Figures] | None:
        """The fastest row of that role in the group."""
        found = [
            (result.row.name, figures)
            for result in self.rows
            if result.row.role == role
            and result.row.group == group
            and (figures := result.figures(self.units)) is not None
        ]
        return max(found, key=lambda item: item[1].throughput, default=None)


@dataclass(frozen=True, slots=True)
class Environment:
    """The machine and what is installed on it."""

    cpu: str
    cores: int
    memory_gib: float
    kernel: str
    python: str
    versions: Mapping[str, str]
    load_average: float
    """Of the last minute before the run; each sample says what others took during it."""
    started: str

    @classmethod
    def observe(cls, packages: Sequence[str]) -> "Environment":
        return cls(
            cpu=_cpu_model(),
            cores=len(os.sched_getaffinity(0)),
            memory_gib=round(psutil.virtual_memory().total / (1 << 30), 1),
            kernel=platform.release(),
            python=platform.python_version(),
            versions=_versions(packages),
            load_average=round(os.getloadavg()[0], 2),
            started=datetime.now(UTC).isoformat(timespec="seconds"),
        )


@dataclass(frozen=True, slots=True)
class Report:
    """A whole run."""

    benchmark: str
    settings: Mapping[str, Any]
    environment: Environment
    sections: Sequence[SectionResult]

    def to_json(self) -> dict[str, Any]:
        return {"format_version": _FORMAT_VERSION, **asdict(self)}

    @property
    def failed(self) -> bool:
        return any(result.failed for section in self.sections for result in section.rows)


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _versions(packages: Sequence[str]) -> dict[str, str]:
    versions = {}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions
