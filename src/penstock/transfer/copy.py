"""Copies files and objects: hundreds of small ones at a time, large ones in parallel parts, within the byte budget."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.config import StoreConfig
from penstock.errors import InvalidUrl, NotFound
from penstock.store import open_store
from penstock.transfer.copy_ends import End, StoreEnd
from penstock.transfer.copy_local import LocalEnd
from penstock.transfer.copy_plan import Compare, Entry, Failure, Task, plan_copies
from penstock.transfer.copy_progress import CopyProgress
from penstock.transfer.copy_run import CopyRun
from penstock.url import Location

__all__ = ["CopiedObject", "CopyReport", "copy_objects"]


@dataclass(frozen=True, slots=True)
class CopiedObject:
    """From where to where."""

    source: str
    target: str
    size: int


@dataclass(frozen=True, slots=True)
class CopyReport:
    """What a copy has done; of a dry run, what it would do."""

    copied: Sequence[CopiedObject]
    identical: int
    """Objects that were there already."""
    failures: Sequence[Failure]
    not_tried: int
    """Objects given up on when the reason of a failure was one for all."""
    warnings: Sequence[str]
    seconds: float

    @property
    def copied_bytes(self) -> int:
        """Of all copied objects together."""
        return sum(copied.size for copied in self.copied)


def copy_objects(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    recursive: bool = False,
    compare: Compare = Compare.CONTENT,
    dry_run: bool = False,
    src_config: StoreConfig | None = None,
    dst_config: StoreConfig | None = None,
    progress: CopyProgress | None = None,
) -> CopyReport:
    """Copies a file, an object or, if `recursive`, all that is below a folder or prefix; one of the two is a store.

    `recursive` puts what is in `src` directly into `dst`. One object goes into `dst` where that ends with a slash or
    is a folder, and otherwise becomes `dst`. What is there already, by `compare`, is left alone, so an interrupted
    copy is continued by the same call. Files and objects appear whole. An object that fails is in the report, and the
    rest goes on. Between two places in the same bucket the store copies, else the bytes pass through here.

    KeyboardInterrupt is raised when what was begun is undone, or after 10 s.
    """
    began = time.monotonic()
    found = _source(Location.parse(src), src_config, recursive=recursive)
    source = found.end
    target, pairs = _target(Location.parse(dst), dst_config, found)
    if _is_same(source, target) and all(entry.name == name for entry, name in pairs):
        raise InvalidUrl(f"{os.fspath(dst)}: is what is to be copied; name another place")
    names = [name for _, name in pairs]
    refused = target.refuse(names)
    wanted = () if compare is Compare.NOTHING else [name for name in names if name not in refused]
    plan = plan_copies(pairs, target.find(wanted), refused=refused, compare=compare)
    run = CopyRun(source, target, dry_run=dry_run, progress=progress or CopyProgress())
    run.execute(plan)
    return CopyReport(
        [_copied(source, target, task) for task in run.copied],
        run.identical,
        [*_failures_of(source), *run.failures],
        run.not_tried,
        source.warnings if isinstance(source, LocalEnd) else [],
        time.monotonic() - began,
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """What is to be copied: one object, or all below a folder."""

    end: End
    entries: Sequence[Entry]
    is_folder: bool


def _source(location: Location, config: StoreConfig | None, *, recursive: bool) -> _Found:
    if _is_local(location):
        return _local_source(location, recursive=recursive)
    store = open_store(location.root, config)
    key = location.key
    folder = StoreEnd(store, f"{key.removesuffix('/')}/" if key else "")
    if recursive and (entries := [*folder.list()]):
        return _Found(folder, entries, is_folder=True)
    if key and not key.endswith("/"):
        try:
            meta = store.head(key)
        except NotFound:
            if recursive or next(folder.list(), None) is None:
                raise
        else:
            parent, _, name = key.rpartition("/")
            end = StoreEnd(store, f"{parent}/" if parent else "")
            return _Found(end, [Entry(name, meta.size, meta.etag)], is_folder=False)
    elif recursive:
        raise NotFound(f"{location}: nothing to copy, for no object is below it; check the URL")
    raise InvalidUrl(f"{location}: is a folder; copy what is in it with --recursive")


def _local_source(location: Location, *, recursive: bool) -> _Found:
    path = location.path()
    if not path.is_dir():
        if not path.exists():
            raise NotFound(f"{path}: no such file or folder; check the path")
        entry = Entry(path.name, path.stat().st_size)
        return _Found(LocalEnd(path.parent), [entry], is_folder=False)
    if not recursive:
        raise InvalidUrl(f"{path}: is a folder; copy what is in it with --recursive")
    end = LocalEnd(path)
    entries = [*end.list()]
    if not entries and not end.failures:
        raise NotFound(f"{path}: nothing to copy, for no file is in it; check the path")
    return _Found(end, entries, is_folder=True)


def _target(
    location: Location, config: StoreConfig | None, found: _Found
) -> tuple[End, list[tuple[Entry, str]]]:
    """The end to write to, and the name that each entry gets there."""
    key = location.key
    into = found.is_folder or not key or key.endswith("/")
    if _is_local(location):
        path = location.path()
        into = into or path.is_dir()
        if into and path.exists() and not path.is_dir():
            raise InvalidUrl(f"{path}: is a file, and a folder is needed; name another place")
        local = LocalEnd(path if into else path.parent)
        return local, _named(found.entries, None if into else path.name)
    store = open_store(location.root, config)
    if into:
        return StoreEnd(store, f"{key.removesuffix('/')}/" if key else ""), _named(
            found.entries, None
        )
    return StoreEnd(store, ""), _named(found.entries, key)


def _named(entries: Sequence[Entry], name: str | None) -> list[tuple[Entry, str]]:
    return [(entry, entry.name if name is None else name) for entry in entries]


def _is_same(source: End, target: End) -> bool:
    return source.url("") == target.url("")


def _copied(source: End, target: End, task: Task) -> CopiedObject:
    return CopiedObject(source.url(task.source.name), target.url(task.target), task.source.size)


def _failures_of(source: End) -> Sequence[Failure]:
    return source.failures if isinstance(source, LocalEnd) else []


def _is_local(location: Location) -> bool:
    return location.scheme == "file"
