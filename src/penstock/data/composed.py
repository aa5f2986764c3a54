"""Reads small objects of a GCS bucket in groups: composed by the server, fetched at once, sliced, removed."""

import hashlib
import os
import re
import threading
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.util import Finalize
from typing import Protocol

from penstock.data.objects import Objects
from penstock.errors import (
    AccessDenied,
    ConfigError,
    NotFound,
    PenstockError,
    StoreUnavailable,
)
from penstock.store import ObjectMeta, Store, StoredObject, open_store
from penstock.store.composing import MAX_SOURCES, Composer
from penstock.transfer.ahead import Task, read_ahead
from penstock.transfer.threads import Job
from penstock.url import Location

__all__ = ["Pending", "check_composing", "plan_groups", "read_each", "settle"]

_MD5 = re.compile(r'"[0-9a-f]{32}"')
_LAST_WAIT_S = 4.0
_Outcome = StoredObject | PenstockError


class Pending(Protocol):
    """One object's read."""

    def result(self) -> StoredObject:
        """Waits for it; returns or raises what it did."""
        ...


def check_composing(objects: Objects, max_composite_bytes: int) -> None:
    """Refuses what could not work: another store, an installation without the extra, objects of unknown size."""
    if max_composite_bytes < 0:
        raise ConfigError(f"max_composite_bytes must not be negative, got {max_composite_bytes}")
    if max_composite_bytes == 0:
        return
    Composer(objects.store.url, objects.store.config)
    if len(objects) and isinstance(objects.items[0], str):
        raise ConfigError(
            "max_composite_bytes needs the sizes of the objects, which from_objects does not know; use from_prefix or "
            "from_index"
        )


def read_each(
    objects: Objects, numbers: Iterable[int], *, max_composite_bytes: int
) -> Iterator[Pending]:
    """Reads these objects ahead, and gives their reads in order, each when it is its turn.

    With `max_composite_bytes`, several in a row are one read, of three requests. Whatever goes wrong in that, each
    object ends as it would have alone: with the bytes that were listed, or with its own error.
    """
    if not max_composite_bytes:
        return read_ahead(objects.store, map(objects.task, numbers))
    return _read_groups(objects, numbers, max_composite_bytes)


def plan_groups(
    sizes: Iterable[tuple[int, int | None]], *, max_bytes: int
) -> Iterator[Sequence[int]]:
    """Cuts numbers, each with a size, into runs of at most 32 and `max_bytes`. What has no size stays alone. Pure."""
    group: list[int] = []
    total = 0
    for number, size in sizes:
        if group and (size is None or len(group) == MAX_SOURCES or total + size > max_bytes):
            yield group
            group, total = [], 0
        if size is None or size > max_bytes:
            yield [number]
        else:
            group.append(number)
            total += size
    if group:
        yield group


def settle(*, timeout_s: float) -> bool:
    """Waits until no composed object of this process is left; False if some still are."""
    return not _process.remaining(timeout_s)


@dataclass(frozen=True, slots=True)
class _Part:
    """One object of a group's read."""

    group: Job[Sequence[_Outcome]]
    at: int

    def result(self) -> StoredObject:
        found = self.group.result()[self.at]
        if isinstance(found, PenstockError):
            raise found
        return found


def _read_groups(objects: Objects, numbers: Iterable[int], max_bytes: int) -> Iterator[Pending]:
    composer = Composer(objects.store.url, objects.store.config)
    sizes = ((number, _composable_bytes(objects, number, composer)) for number in numbers)
    lengths: deque[int] = deque()

    def tasks() -> Iterator[Task[Sequence[_Outcome]]]:
        for group in plan_groups(sizes, max_bytes=max_bytes):
            lengths.append(len(group))
            yield _task(objects, group, composer)

    for job in read_ahead(objects.store, tasks()):
        for at in range(lengths.popleft()):
            yield _Part(job, at)
        _process.warn()


def _composable_bytes(objects: Objects, number: int, composer: Composer) -> int | None:
    """The object's size, or None where it must be read alone.

    A slice is compared with the MD5 that GCS lists as the ETag. Composite and encrypted objects have none, and without
    it two that changed could hide each other's change in length.
    """
    item = objects.items[number]
    if isinstance(item, str) or _process.has_given_up(composer):
        return None
    return item.size if item.etag is not None and _MD5.fullmatch(item.etag) else None


def _task(objects: Objects, group: Sequence[int], composer: Composer) -> Task[Sequence[_Outcome]]:
    found = [objects.items[number] for number in group]
    items = [item for item in found if not isinstance(item, str)]
    if len(items) > 1:
        size = sum(item.size for item in items)
        return Task(size, partial(_read_together, objects.store, items, composer))
    alone = objects.task(group[0])
    return Task(alone.size, lambda: [alone.read()])


def _read_together(
    store: Store, items: Sequence[ObjectMeta], composer: Composer
) -> Sequence[_Outcome]:
    """What became of each object, read one by one where reading them together does not give what was listed."""
    reason = None
    if not _process.has_given_up(composer):
        try:
            if (found := _slices(_fetch(store, items, composer), items)) is not None:
                return found
            reason = "what it composes is not what was listed"
        except AccessDenied as exc:
            _process.give_up(composer, str(exc))
        except PenstockError as exc:
            reason = str(exc)
    outcomes = [_read_alone(store, item) for item in items]
    if reason is not None and not any(isinstance(found, PenstockError) for found in outcomes):
        # No object has changed or vanished, so the next group would fare no better.
        _process.give_up(composer, reason)
    return outcomes


def _fetch(store: Store, items: Sequence[ObjectMeta], composer: Composer) -> memoryview:
    root = Location.parse(store.url)
    keys = [root.join(item.key).key for item in items]
    size = sum(item.size for item in items)
    with _composed(composer, keys) as name:
        bucket = open_store(composer.bucket_url, store.config)
        return bucket.get_object(name, expected_bytes=size).data


@contextmanager
def _composed(composer: Composer, keys: Sequence[str]) -> Iterator[str]:
    """The name of an object that exists in here, and is removed however this is left."""
    name = composer.new_name()
    _process.began(name, composer)
    try:
        try:
            composer.compose(keys, into=name)
        except (AccessDenied, NotFound):
            # Refused: there is nothing to remove. After any other error there may be, its answer lost.
            _process.ended(name)
            raise
        yield name
    finally:
        _process.remove(name)


def _slices(data: memoryview, items: Sequence[ObjectMeta]) -> Sequence[StoredObject] | None:
    """The objects in `data`, or None unless all of them are what was listed."""
    if len(data) != sum(item.size for item in items):
        return None
    found = []
    start = 0
    for item in items:
        part = data[start : start + item.size]
        if not _has_md5(part, item):
            return None
        found.append(StoredObject(item, part))
        start += item.size
    return found


def _read_alone(store: Store, item: ObjectMeta) -> _Outcome:
    try:
        return store.get_object(item.key, if_match=item.etag, expected_bytes=item.size)
    except PenstockError as exc:
        return exc


def _has_md5(data: memoryview, item: ObjectMeta) -> bool:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"' == item.etag


class _Process:
    """What this process has composed and not removed yet, and the buckets where it no longer tries to."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._alive: dict[str, Composer] = {}
        self._given_up: set[str] = set()
        self._unsaid: deque[str] = deque()
        self._at_exit: Finalize | None = None
        self._ending = False

    def began(self, name: str, composer: Composer) -> None:
        with self._changed:
            if self._ending:
                raise StoreUnavailable(f"{composer.bucket_url}: nothing is composed at the exit")
            if self._at_exit is None:
                # Not atexit's: the workers of a DataLoader leave without it.
                self._at_exit = Finalize(None, self._end, exitpriority=100)
            self._alive[name] = composer

    def ended(self, name: str) -> None:
        with self._changed:
            self._alive.pop(name, None)
            self._changed.notify_all()

    def remove(self, name: str) -> None:
        composer = self._alive.get(name)
        if composer is None:
            return
        try:
            composer.delete(name)
        except PenstockError as exc:
            self.give_up(
                composer,
                f"{exc}. Remove what is left with `penstock gcs-clean {composer.bucket_url}`",
            )
        finally:
            self.ended(name)

    def has_given_up(self, composer: Composer) -> bool:
        return composer.bucket_url in self._given_up

    def give_up(self, composer: Composer, reason: str) -> None:
        with self._changed:
            if composer.bucket_url in self._given_up:
                return
            self._given_up.add(composer.bucket_url)
            self._unsaid.append(
                f"{composer.bucket_url}: objects are read one by one from now on, for composing them does not work: "
                f"{reason}"
            )

    def warn(self) -> None:
        """Says, in the thread of the user, what happened in ours."""
        while self._unsaid:
            warnings.warn(self._unsaid.popleft(), RuntimeWarning, stacklevel=3)

    def remaining(self, timeout_s: float) -> Sequence[str]:
        with self._changed:
            self._changed.wait_for(lambda: not self._alive, timeout_s)
            return [*self._alive]

    def _end(self) -> None:
        with self._changed:
            self._ending = True
        # The threads that read are not joined: they get this long to remove what is theirs.
        for name in self.remaining(_LAST_WAIT_S):
            self.remove(name)


_process = _Process()


def _forget() -> None:
    # What the parent has composed is the parent's to remove; where it gave up, this process need not try.
    global _process
    parent, _process = _process, _Process()
    _process._given_up = {*parent._given_up}  # noqa: SLF001 - same file


os.register_at_fork(after_in_child=_forget)
