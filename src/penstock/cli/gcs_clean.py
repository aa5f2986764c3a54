"""`penstock gcs-clean`: composed objects that a killed process has left behind."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from penstock.cli.ages import age_in_words, parse_age
from penstock.cli.sizes import human_bytes
from penstock.config import StoreConfig
from penstock.store.composing import Composer


def gcs_clean(
    url: Annotated[str, typer.Argument(help="gs://bucket, or any URL in it.")],
    *,
    older_than: Annotated[
        str, typer.Option(metavar="AGE", help="Leave younger ones alone: 90s, 30m, 24h, 7d.")
    ] = "1h",
    delete: Annotated[
        bool, typer.Option("--delete", help="Remove them; otherwise they are only shown.")
    ] = False,
) -> None:
    """Find objects that composed reads of killed processes have left in a bucket, and remove them.

    Take an age longer than a read of yours lasts: a younger one may be in use.
    """
    age = parse_age(older_than)
    composer = Composer(url, StoreConfig())
    now = datetime.now(UTC)
    found = [
        meta
        for meta in composer.left_behind()
        if meta.last_modified is not None and now - meta.last_modified >= age
    ]
    if not found:
        typer.echo(f"Nothing in {composer.prefix_url} is older than {older_than}.")
        return
    for meta in found:
        if delete:
            composer.delete(meta.key)
        made = meta.last_modified or now
        typer.echo(f"{age_in_words(now - made):>10}  {human_bytes(meta.size):>10}  {meta.key}")
    plural = "" if len(found) == 1 else "s"
    fate = "removed" if delete else "found; --delete removes them"
    total = human_bytes(sum(meta.size for meta in found))
    typer.echo(f"{len(found):,} composed object{plural}, {total}, {fate}.")
