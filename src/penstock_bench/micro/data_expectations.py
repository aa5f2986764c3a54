"""What the datasets and the listing are expected to reach beside the others, held against one run."""

from collections.abc import Iterator

from penstock_bench.micro.data_rows import FEW, FLAT, FOLDERS
from penstock_bench.micro.expectations import Expectation
from penstock_bench.micro.report import Figures, Report, SectionResult

__all__ = ["data_expectations"]

_NAMES = (
    ("penstock MapDataset, 2 workers", "S3MapDataset, 2 workers"),
    ("penstock IterableDataset, 2 workers", "S3IterableDataset, 2 workers"),
)
# What two rows that are equally fast may differ by.
_NOISE = 0.05


def data_expectations(report: Report) -> list[Expectation]:
    """Those for which the report has the rows."""
    return list(_all(report))


def _all(report: Report) -> Iterator[Expectation]:
    sections = {section.name: section for section in report.sections}
    for name, factor in (("100k-20ms", 20.0), ("100k", 2.0)):
        if name in sections:
            yield from _reads(sections[name], factor)
    for section in report.sections:
        if section.unit == "sample":
            yield from _requests(section)
    for section in report.sections:
        if section.unit == "listing":
            yield from _listing(section)


def _reads(section: SectionResult, factor: float) -> Iterator[Expectation]:
    for ours_name, theirs_name in _NAMES:
        ours, theirs = section.figures_of(ours_name), section.figures_of(theirs_name)
        if ours is not None and theirs is not None:
            text = f"{section.title}: {ours_name}, × {theirs_name.partition(',')[0]}"
            yield _at_least(text, ours, theirs, factor)


def _requests(section: SectionResult) -> Iterator[Expectation]:
    counts = [
        count
        for result in section.rows
        if result.row.role == "ours" and not result.row.group.startswith("tar")
        if (count := result.requests_per_unit(section.units)) is not None
    ]
    if counts and not section.name.endswith("ms"):
        yield Expectation(
            f"{section.title}: requests per sample, of both datasets",
            "1",
            f"{max(counts):.2f}",
            min(counts) == max(counts) == 1,
        )


def _listing(section: SectionResult) -> Iterator[Expectation]:
    for group in (FOLDERS, FLAT, FEW):
        ours, plain = section.best("ours", group=group), section.best("baseline", group=group)
        if ours is None or plain is None:
            continue
        text = f"{section.title}, {group}: × plain"
        if group == FEW:
            ratio = ours[1].throughput / plain[1].throughput
            wanted = f"≥ 1, less {_NOISE:.0%} for noise"
            yield Expectation(text, wanted, f"{ratio:.2f}", ratio >= 1 - _NOISE)
        elif section.name.endswith("ms"):
            yield _at_least(text, ours[1], plain[1], 6.0)
        counts = ours[1].requests, plain[1].requests
        if group != FEW and counts[0] is not None and counts[1] is not None:
            share = counts[0] / counts[1]
            yield Expectation(
                f"{section.title}, {group}: requests, × plain",
                "≤ 1.3",
                f"{share:.2f}",
                share <= 1.3,
            )


def _at_least(text: str, ours: Figures, other: Figures, factor: float) -> Expectation:
    ratio = ours.throughput / other.throughput
    return Expectation(text, f"≥ {factor:g}", f"{ratio:.2f}", ratio >= factor)
