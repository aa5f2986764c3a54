"""`python -m penstock_bench.micro transfer` and `data`: start their servers, measure, print one table per section."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from penstock_bench.micro.data import (
    DATA_SECTIONS,
    DEFAULT_DATA_SECTIONS,
    DataPlan,
    run_data,
)
from penstock_bench.micro.data_objects import FULL_DATA, QUICK_DATA
from penstock_bench.micro.data_rows import DATA_PACKAGES
from penstock_bench.micro.data_table import DATA
from penstock_bench.micro.objects import FULL, QUICK
from penstock_bench.micro.report import Report
from penstock_bench.micro.rows import PACKAGES
from penstock_bench.micro.table import TRANSFER, Sheet, show
from penstock_bench.micro.transfer import SECTIONS, Announce, Plan, run

app = typer.Typer(
    help="Small benchmarks, each one table from one run.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _micro() -> None:
    """Small benchmarks, each one table from one run."""


JsonFile = Annotated[Path | None, typer.Option("--json", help="Write every sample to this file.")]
Quick = Annotated[
    bool, typer.Option("--quick", help="Tiny sizes and one sample: does it run at all?")
]


@app.command()
def transfer(
    *,
    json_file: JsonFile = None,
    quick: Quick = False,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Samples of each row; 5, or 1 with --quick.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help=f"Only these, repeatable: {', '.join((*SECTIONS, *PACKAGES))}."),
    ] = None,
) -> None:
    """Many small reads, one large read and one large upload, beside the alternatives and the bare socket."""
    chosen = _known(only, (*SECTIONS, *PACKAGES))
    plan = Plan(
        QUICK if quick else FULL,
        repeats=repeats or (1 if quick else 5),
        sections=[name for name in SECTIONS if name in chosen] or SECTIONS,
        packages=[name for name in PACKAGES if name in chosen] or PACKAGES,
    )
    _report(lambda announce: run(plan, announce), TRANSFER, json_file)


@app.command()
def data(
    *,
    json_file: JsonFile = None,
    quick: Quick = False,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Samples of each row; 3, or 1 with --quick.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Only these, repeatable: {', '.join((*DATA_SECTIONS, *DATA_PACKAGES))}."
        ),
    ] = None,
) -> None:
    """Datasets under torch's DataLoader, and listings, beside the alternatives."""
    chosen = _known(only, (*DATA_SECTIONS, *DATA_PACKAGES))
    plan = DataPlan(
        QUICK_DATA if quick else FULL_DATA,
        repeats=repeats or (1 if quick else 3),
        sections=[name for name in DATA_SECTIONS if name in chosen] or DEFAULT_DATA_SECTIONS,
        packages=[name for name in DATA_PACKAGES if name in chosen] or DATA_PACKAGES,
    )
    _report(lambda announce: run_data(plan, announce), DATA, json_file)


def _known(only: Sequence[str] | None, names: Sequence[str]) -> Sequence[str]:
    for name in only or ():
        if name not in names:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(names)}")
    return only or ()


def _report(measure: Callable[[Announce], Report], sheet: Sheet, json_file: Path | None) -> None:
    progress = Console(stderr=True)
    with progress.status("starting") as status:
        # A log gets lines where a terminal gets a spinner.
        report = measure(status.update if progress.is_terminal else progress.print)
    if json_file is not None:
        json_file.write_text(json.dumps(report.to_json(), indent=1, ensure_ascii=False) + "\n")
    show(report, sheet)
    if report.failed:
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
