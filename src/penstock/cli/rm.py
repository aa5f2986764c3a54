"""`penstock rm`: deletes objects, and asks before it deletes many."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated

import typer

from penstock.cli.sizes import human_bytes
from penstock.cli.terminal import printable
from penstock.errors import ConfigError, InvalidUrl, NotFound, PenstockError, Unsupported
from penstock.store import ObjectMeta, Store, open_store
from penstock.url import Location

_BATCH = 1000


@dataclass(frozen=True, slots=True)
class _Doomed:
    """What one URL names."""

    location: Location
    store: Store
    objects: Sequence[ObjectMeta]

    def url(self, key: str) -> str:
        return f"{self.location.root}/{key}"


def rm(
    urls: Annotated[list[str], typer.Argument(metavar="URL...", help="Objects.")],
    *,
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="All that is in the folders URL, too.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be deleted, delete nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete objects. Deletes nothing if one of the URLs names nothing."""
    doomed = [_find(Location.parse(url), recursive=recursive) for url in urls]
    count = sum(len(found.objects) for found in doomed)
    size = human_bytes(sum(meta.size for found in doomed for meta in found.objects))
    if dry_run:
        for found in doomed:
            for meta in found.objects:
                typer.echo(printable(found.url(meta.key)))
        typer.echo(f"Would delete {count:,} objects ({size}).")
        return
    if recursive and not yes:
        _ask(f"Delete {count:,} objects ({size}) in {', '.join(urls)}?")
    failed = [failure for found in doomed for failure in _delete(found)]
    typer.echo(f"Deleted {count - sum(lost for lost, _ in failed):,} objects.")
    for lost, error in failed:
        typer.echo(f"penstock: {lost} objects may be left: {printable(str(error))}", err=True)
    if failed:
        raise typer.Exit(1)


def _find(location: Location, *, recursive: bool) -> _Doomed:
    if location.scheme == "file":
        raise Unsupported(f"{location.path()}: is on this disk; use rm")
    store = open_store(location.root)
    key = location.key
    # With its slash: run1 is not to take run10 along.
    below = store.list(f"{key.removesuffix('/')}/" if key else "")
    objects: list[ObjectMeta] = []
    if key and not key.endswith("/"):
        try:
            objects.append(store.head(key))
        except NotFound:
            if not recursive and next(below, None) is None:
                raise
    if recursive:
        objects += below
    if not objects:
        if recursive:
            raise NotFound(f"{location}: nothing to delete, for no object is below it")
        raise InvalidUrl(f"{location}: is a folder; delete what is in it with --recursive")
    return _Doomed(location, store, objects)


def _ask(question: str) -> None:
    if not sys.stdin.isatty():
        raise ConfigError("rm --recursive asks before it deletes, and nobody is here; add --yes")
    if not typer.confirm(printable(question)):
        typer.echo("Nothing was deleted.")
        raise typer.Exit(1)


def _delete(found: _Doomed) -> Iterator[tuple[int, PenstockError]]:
    """Deletes, and yields what failed with the number of objects that it concerns."""
    remaining = iter(found.objects)
    while batch := [meta.key for meta in islice(remaining, _BATCH)]:
        try:
            found.store.delete(batch)
        except PenstockError as exc:
            yield len(batch), exc
