"""Lays out the tables of `data`: samples read, and listings; ratios are within a group of rows."""

from collections.abc import Sequence

from rich.table import Table

from penstock_bench.micro.data_expectations import data_expectations
from penstock_bench.micro.report import Figures, RowResult, SectionResult
from penstock_bench.micro.table import Sheet, empty_table

__all__ = ["DATA"]

_READ_COLUMNS = (
    "dataset",
    "used as",
    "samples/s",
    "min–max",
    "× best rival",
    "first batch, ms",
    "CPU µs per sample",
    "requests per sample",
    "peak RSS over baseline, MiB",
    "epoch",
)
_LISTING_COLUMNS = (
    "lister",
    "used as",
    "ms",
    "min–max",
    "× plain",
    "× best rival",
    "requests",
    "CPU ms",
    "peak RSS over baseline, MiB",
)


def _section(section: SectionResult, plain: bool) -> Table:  # noqa: FBT001 - a Sheet calls it
    reads = section.unit == "sample"
    table = empty_table(*(_READ_COLUMNS if reads else _LISTING_COLUMNS), plain=plain)
    group = ""
    for result in section.rows:
        if group and result.row.group != group:
            table.add_section()
        group = result.row.group
        figures = result.figures(section.units)
        if figures is None:
            cells: Sequence[str] = ["failed" if result.failed else "skipped"]
        else:
            cells = (_read if reads else _listing)(result, figures, section)
        table.add_row(result.row.name, result.row.how, *cells)
    return table


def _read(result: RowResult, figures: Figures, section: SectionResult) -> list[str]:
    first_s = result.fact("first_batch_s")
    requests = result.requests_per_unit(section.units)
    # What has no store has read its bytes before.
    reads = result.row.role != "limit"
    return [
        f"{figures.throughput:,.0f}",
        f"{figures.throughput_low:,.0f}–{figures.throughput_high:,.0f}",
        _ratio(figures, section.best("rival", group=result.row.group)),
        f"{first_s * 1000:,.0f}" if reads and first_s is not None else "–",
        f"{figures.cpu_us_per_unit:,.0f}",
        f"{requests:.2f}" if reads and requests is not None else "–",
        _mib(figures) if reads else "–",
        f"{result.units:,.0f}",
    ]


def _listing(result: RowResult, figures: Figures, section: SectionResult) -> list[str]:
    group = result.row.group
    return [
        f"{1000 / figures.throughput:,.1f}",
        f"{1000 / figures.throughput_high:,.1f}–{1000 / figures.throughput_low:,.1f}",
        _ratio(figures, section.best("baseline", group=group)),
        _ratio(figures, section.best("rival", group=group)),
        f"{figures.requests}",
        f"{figures.cpu_us_per_unit / 1000:,.1f}",
        _mib(figures),
    ]


def _ratio(figures: Figures, other: tuple[str, Figures] | None) -> str:
    return "–" if other is None else f"{figures.throughput / other[1].throughput:.2f}"


def _mib(figures: Figures) -> str:
    return "–" if figures.peak_mib is None else f"{figures.peak_mib:,.0f}"


DATA = Sheet(_section, data_expectations)
