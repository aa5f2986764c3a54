"""Shows a report: rich tables in a terminal, Markdown anywhere else, so that either can be pasted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table

from penstock_bench.micro.expectations import Expectation, expectations
from penstock_bench.micro.report import Figures, Report, RowResult, SectionResult

__all__ = ["TRANSFER", "Sheet", "empty_table", "show"]

# Where nobody's terminal says how wide it is, a row stays one line.
_PLAIN_WIDTH = 240


@dataclass(frozen=True, slots=True)
class Sheet:
    """How the report of one benchmark is laid out, and what it is held against."""

    section: Callable[[SectionResult, bool], Table]
    """The second argument says that there is no terminal."""
    expectations: Callable[[Report], Sequence[Expectation]]


def show(report: Report, sheet: Sheet | None = None) -> None:
    """Prints to standard output; by default as `transfer`'s."""
    sheet = sheet or TRANSFER
    console = Console()
    if not console.is_terminal:
        console = Console(width=_PLAIN_WIDTH)
    environment = report.environment
    console.print(
        f"{environment.cpu}, {environment.cores} cores, {environment.memory_gib} GiB, Linux {environment.kernel},"
        f" Python {environment.python}; load average before the run {environment.load_average}."
    )
    versions = ", ".join(f"{name} {version}" for name, version in environment.versions.items())
    console.print(f"{versions}.")
    console.print(f"Medians of {report.settings['repeats']} samples, taken in turn.")
    for section in report.sections:
        console.print(f"\n[bold]{section.title}[/bold]. Server: {section.server}.\n")
        console.print(sheet.section(section, not console.is_terminal))
        for note in section.notes:
            console.print(note)
        for result in section.rows:
            for what, reason in (("skipped", result.skipped), ("failed", result.failed)):
                if reason is not None:
                    console.print(f"{result.row.name} {what}: {reason}", markup=False)
    expected = sheet.expectations(report)
    if expected:
        console.print("\n[bold]Expected of this package[/bold]\n")
        table = empty_table("claim", "wanted", "measured", "holds", plain=not console.is_terminal)
        for claim in expected:
            table.add_row(claim.text, claim.wanted, claim.measured, "yes" if claim.holds else "NO")
        console.print(table)


def empty_table(*columns: str, plain: bool) -> Table:
    """The first two columns are words, the others figures."""
    table = Table(box=box.MARKDOWN if plain else box.SIMPLE_HEAD)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < 2 else "right")
    return table


def _section(section: SectionResult, plain: bool) -> Table:  # noqa: FBT001 - a Sheet calls it
    per = "objects/s" if section.unit == "object" else "MiB/s"
    requests = "requests an object" if section.unit == "object" else "requests"
    rival, limit = section.best("rival"), section.best("limit")
    columns = ["subject", "used as", per, "min–max", "× best rival"]
    if limit is not None:
        columns.append("of the bare socket")
    columns += [f"CPU µs per {section.unit}", requests, "peak RSS over baseline, MiB"]
    table = empty_table(*columns, plain=plain)
    for result in section.rows:
        figures = result.figures(section.units)
        cells = [result.row.name, result.row.how]
        if figures is None:
            cells.append("failed" if result.failed else "skipped")
        else:
            cells += _speed(figures, rival, limit)
            cells += _cost(figures, result, section)
        table.add_row(*cells)
    return table


def _speed(
    figures: Figures, rival: tuple[str, Figures] | None, limit: tuple[str, Figures] | None
) -> list[str]:
    cells = [
        f"{figures.throughput:,.0f}",
        f"{figures.throughput_low:,.0f}–{figures.throughput_high:,.0f}",
        "–" if rival is None else f"{figures.throughput / rival[1].throughput:.2f}",
    ]
    if limit is not None:
        cells.append(f"{figures.throughput / limit[1].throughput:.2f}")
    return cells


def _cost(figures: Figures, result: RowResult, section: SectionResult) -> list[str]:
    requests = "–"
    if figures.requests is not None and section.unit == "object":
        requests = f"{figures.requests / section.units:.2f}"
    elif result.requests is not None:
        each = ", ".join(f"{count} {method}" for method, count in sorted(result.requests.items()))
        requests = f"{figures.requests} ({each})"
    peak = "–" if figures.peak_mib is None else f"{figures.peak_mib:,.0f}"
    return [f"{figures.cpu_us_per_unit:,.0f}", requests, peak]


TRANSFER = Sheet(_section, expectations)
