"""`penstock sweep`: uploads that were begun and never finished."""

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from penstock.cli.terminal import printable
from penstock.errors import ConfigError
from penstock.transfer import sweep as sweep_uploads

_AGE = re.compile(r"(?P<count>[0-9]+)(?P<unit>[smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


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
    age = _age(older_than)
    orphans = sweep_uploads(url, older_than=age, dry_run=not delete)
    if not orphans:
        typer.echo(f"No unfinished upload is older than {older_than}.")
        return
    now = datetime.now(UTC)
    typer.echo(f"{'AGE':>10}  {'STARTED':<20}  KEY")
    for orphan in sorted(orphans, key=lambda orphan: orphan.started):
        started = orphan.started.astimezone(UTC)
        typer.echo(
            f"{_in_words(now - started):>10}  {started:%Y-%m-%dT%H:%M:%SZ}  {printable(orphan.key)}"
        )
    plural = "" if len(orphans) == 1 else "s"
    fate = "removed" if delete else "found; --delete removes them"
    typer.echo(f"{len(orphans):,} unfinished upload{plural} {fate}.")


def _age(text: str) -> timedelta:
    match = _AGE.fullmatch(text)
    if match is None:
        raise ConfigError(f"--older-than must look like 90s, 30m, 24h or 7d, got {text!r}")
    return timedelta(**{_UNITS[match["unit"]]: int(match["count"])})


def _in_words(age: timedelta) -> str:
    """`3d 4h`, `2h 10m`, `5m 3s`: the two largest units."""
    seconds = max(0, int(age.total_seconds()))
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if days:
        return f"{days}d {hours % 24}h"
    if hours:
        return f"{hours}h {minutes % 60}m"
    return f"{minutes}m {seconds % 60}s"
