"""`penstock index`: list once, keep the result in a file."""

import time
from typing import Annotated

import typer

from penstock import metrics
from penstock.cli.sizes import human_bytes
from penstock.listing import Index, list_objects
from penstock.listing.files import check


def index(
    url: Annotated[str, typer.Argument(help="What to list. May end inside a name.")],
    *,
    output: Annotated[
        str, typer.Option("--output", "-o", help="Path or URL, named .parquet or .arrow.")
    ],
    threads: Annotated[int, typer.Option(min=1, help="Requests at a time, at most.")] = 32,
) -> None:
    """List everything under a URL into a file that Index.load reads."""
    check(output)
    before = metrics.snapshot()
    began = time.monotonic()
    found = _list(url, threads)
    seconds = time.monotonic() - began
    requests = (metrics.snapshot() - before).requests.get("list", 0)
    found.save(output)
    typer.echo(
        f"{len(found):,} objects, {human_bytes(found.total_bytes)}, {seconds:.1f} s, "
        f"{requests:,} requests: {output}"
    )


def _list(url: str, threads: int) -> Index:
    # Imported here: other commands do not pay for it.
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.completed:,} objects"), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task(url, total=None)
        return list_objects(
            url,
            threads=threads,
            on_progress=lambda count: progress.update(task, completed=count),
        )
