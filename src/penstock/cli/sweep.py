"""`penstock sweep`: uploads that were begun and never finished."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from penstock.cli.ages import age_in_words, parse_age
from penstock.cli.terminal import printable
from penstock.transfer import sweep as sweep_uploads


def sweep(
    url: Annotated[str, typer.Argument(help="A bucket, a prefix or a folder.")],
    *,
    older_than: Annotated[
        str, typer.Option(metavar="AGE", help="Leave younger ones alone: 90s, 30m, 24h, 7d.")
    ] = "24h",
    delete: Annotated[
        bool, typer.Option("--delete", help="Remove them; otherwise they are only shown.")
    ] = False,
) -> None:
    """Find unfinished uploads, which no listing shows and every bill does, and remove them.

    Take an age longer than any upload of yours lasts.
    """
    orphans = sweep_uploads(url, older_than=parse_age(older_than), dry_run=not delete)
    if not orphans:
        typer.echo(f"No unfinished upload is older than {older_than}.")
        return
    now = datetime.now(UTC)
    typer.echo(f"{'AGE':>10}  {'STARTED':<20}  KEY")
    for orphan in sorted(orphans, key=lambda orphan: orphan.started):
        started = orphan.started.astimezone(UTC)
        typer.echo(
            f"{age_in_words(now - started):>10}  {started:%Y-%m-%dT%H:%M:%SZ}  {printable(orphan.key)}"
        )
    plural = "" if len(orphans) == 1 else "s"
    fate = "removed" if delete else "found; --delete removes them"
    typer.echo(f"{len(orphans):,} unfinished upload{plural} {fate}.")
