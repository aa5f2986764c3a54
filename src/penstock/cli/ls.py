"""`penstock ls`: what is under a URL."""

import json
from collections.abc import Iterable
from typing import Annotated

import typer

from penstock.cli.sizes import human_bytes
from penstock.errors import NotFound
from penstock.store import ObjectMeta, open_prefix
from penstock.url import Location

_TIME = "%Y-%m-%dT%H:%M:%SZ"


def ls(
    url: Annotated[str, typer.Argument(help="May end inside a name: s3://bucket/tra.")],
    *,
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="Every object, however deep.")
    ] = False,
    long: Annotated[bool, typer.Option("--long", "-l", help="Sizes and times (UTC) too.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line, with all that is known.")
    ] = False,
) -> None:
    """List the folders and objects under a URL."""
    store, prefix = open_prefix(url)
    folders: Iterable[str] = ()
    objects: Iterable[ObjectMeta]
    if recursive:
        objects = store.list(prefix)
    else:
        level = store.list_folder(prefix)
        folders, objects = level.folders, level.objects
    root = Location.parse(store.url)
    # Names are relative to the folder that the URL is in, as those of ls are.
    at = 0 if as_json else prefix.rfind("/") + 1
    found = False
    for folder in folders:
        found = True
        typer.echo(_folder(folder, root) if as_json else _line(folder[at:], long=long))
    for meta in objects:
        found = True
        typer.echo(_object(meta, root) if as_json else _line(meta.key[at:], meta, long=long))
    if prefix and not found:
        raise NotFound(f"{root.join(prefix)}: nothing starts with this; check the URL")


def _line(name: str, meta: ObjectMeta | None = None, *, long: bool) -> str:
    if not long:
        return name
    size = human_bytes(meta.size) if meta is not None else "-"
    time = meta.last_modified.strftime(_TIME) if meta and meta.last_modified else "-"
    return f"{size:>10}  {time:<20}  {name}"


def _folder(key: str, root: Location) -> str:
    return json.dumps({"type": "folder", "key": key, "url": str(root.join(key))})


def _object(meta: ObjectMeta, root: Location) -> str:
    row = {
        "type": "object",
        "key": meta.key,
        "url": str(root.join(meta.key)),
        "size": meta.size,
        "etag": meta.etag,
        "last_modified": meta.last_modified.strftime(_TIME) if meta.last_modified else None,
    }
    return json.dumps(row)
