"""What this package is expected to reach beside the others, held against one run. Ratios, never absolute speeds."""

from collections.abc import Iterator
from dataclasses import dataclass

from penstock_bench.micro.report import Figures, Report

__all__ = ["Expectation", "expectations"]

_OURS = "penstock"
_THEIRS = "s3torchconnector"
_PEAK_MIB = 160.0


@dataclass(frozen=True, slots=True)
class Expectation:
    """One claim, what would satisfy it, and what was measured."""

    text: str
    wanted: str
    measured: str
    holds: bool


def expectations(report: Report) -> list[Expectation]:
    """Those for which the report has the rows. s3torchconnector is read as its DataLoader reads: item by item."""
    return list(_all(report))


def _all(report: Report) -> Iterator[Expectation]:
    sections = {section.name: section for section in report.sections}
    for name, factor in (("small-20ms", 40.0), ("small", 1.5), ("read", 3.0)):
        if name in sections:
            section = sections[name]
            ours, theirs = section.figures_of(_OURS), section.figures_of(_THEIRS)
            if ours is not None and theirs is not None:
                yield _at_least(f"{section.title}: × {_THEIRS}", ours, theirs, factor)
                if name == "small":
                    share = ours.cpu_us_per_unit / theirs.cpu_us_per_unit
                    yield Expectation(
                        f"{section.title}: CPU, as a share of {_THEIRS}'s",
                        "≤ 0.7",
                        f"{share:.2f}",
                        share <= 0.7,
                    )
    if "read" in sections:
        ours, limit = sections["read"].figures_of(_OURS), sections["read"].best("limit")
        if ours is not None and limit is not None:
            yield _at_least(f"{sections['read'].title}: of the bare socket", ours, limit[1], 0.8)
    if "upload" in sections:
        section = sections["upload"]
        ours, rival = section.figures_of(_OURS), section.best("rival")
        if ours is not None and rival is not None:
            yield _at_least(f"{section.title}: × the best rival, {rival[0]}", ours, rival[1], 1.0)
        if ours is not None and ours.peak_mib is not None:
            yield Expectation(
                f"{section.title}: peak RSS over baseline, MiB",
                f"≤ {_PEAK_MIB:.0f}",
                f"{ours.peak_mib:.0f}",
                ours.peak_mib <= _PEAK_MIB,
            )


def _at_least(text: str, ours: Figures, other: Figures, factor: float) -> Expectation:
    ratio = ours.throughput / other.throughput
    return Expectation(text, f"≥ {factor:g}", f"{ratio:.2f}", ratio >= factor)
