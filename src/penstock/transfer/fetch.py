"""Reads: ranges of one object into the caller's memory, and many whole objects in order."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass
from functools import partial

from crc32c import crc32c

from penstock.errors import IntegrityError, NotFound
from penstock.store import Checksum, ObjectMeta, Store, StoredObject
from penstock.store.protocol import WritableBuffer
from penstock.transfer.ahead import Task, read_ahead
from penstock.transfer.budget import Share, shared_budget
from penstock.transfer.plan import ByteRange, plan_reads, split
from penstock.transfer.threads import part_threads

__all__ = ["Target", "check_stored", "fetch", "fetch_many", "scatter"]

_GUESS_BYTES = 256 << 10
_COPIED_BYTES = 2 << 20


@dataclass(frozen=True, slots=True)
class Target:
    """Where bytes of an object go: those from `start` on, as many as `view` holds."""

    start: int
    view: memoryview


def fetch(
    store: Store, key: str, buffer: WritableBuffer, *, start: int = 0, etag: str | None = None
) -> int:
    """Fills `buffer` with the object's bytes from `start` on, by parallel ranges; returns how many there were.

    All ranges are of one version: that of `etag`, or else the one found first, which costs a HEAD if there is
    more than one range. An object that changes meanwhile raises `ObjectChanged`, and a whole object that is not the
    one that was stored `IntegrityError`, where that HEAD tells a checksum; the buffer's content is then undefined.
    The bytes land in the buffer; nothing is staged.
    """
    view = memoryview(buffer).cast("B")
    part_bytes = store.config.transfer.part_bytes
    if len(view) <= part_bytes:
        return _fetch_at_once(store, key, Target(start, view), etag)
    stored: int | None = None
    if etag is None:
        found = _version(store, key)
        etag = found.meta.etag
        view = view[: max(0, found.meta.size - start)]
        whole = len(view) == found.meta.size
        stored = found.crc32c if whole and store.config.verify_checksums else None
    spans = split(ByteRange(start, start + len(view)), part_bytes=part_bytes)
    targets = [Target(span.start, view[span.start - start : span.stop - start]) for span in spans]
    jobs = _begin(store, key, targets, etag)
    if stored is not None:
        _compare(store, key, zip(jobs, targets, strict=True), stored)
    return sum(_all(jobs))


def scatter(store: Store, key: str, targets: Sequence[Target], *, etag: str | None) -> int:
    """Fills many buffers from one object and returns the bytes asked of the store.

    Targets close together are read as one, into a buffer of the byte budget, and copied from there; large ones are cut
    into parallel parts that land in place. All are of one version, as with `fetch`. A target that reaches past the
    end of the object is a ValueError.
    """
    transfer = store.config.transfer
    spans = [ByteRange(target.start, target.start + len(target.view)) for target in targets]
    reads = plan_reads(
        spans, max_gap_bytes=transfer.max_gap_bytes, max_read_bytes=transfer.part_bytes
    )
    direct: list[Target] = []
    shared: list[tuple[ByteRange, list[Target]]] = []
    for read in reads:
        if len(read.wanted) == 1:
            target = targets[read.wanted[0]]
            parts = split(read.span, part_bytes=transfer.part_bytes)
            direct += [
                Target(p.start, target.view[p.start - target.start : p.stop - target.start])
                for p in parts
            ]
        else:
            shared.append((read.span, [targets[index] for index in read.wanted]))
    if etag is None and len(direct) + len(shared) > 1:
        etag = store.head(key).etag
    jobs = _begin(store, key, direct, etag)
    jobs += [
        part_threads().submit(_copy_from, store, key, span, wanted, etag) for span, wanted in shared
    ]
    counts = _all(jobs)
    for target, count in zip(direct, counts, strict=False):
        _check_whole(store, key, target.start, len(target.view), count)
    return sum(counts)


def fetch_many(store: Store, items: Iterable[str | ObjectMeta]) -> Iterator[StoredObject]:
    """Whole objects, in the order asked for, hundreds in flight; each comes out as soon as it is its turn.

    What is read ahead stays within the byte budget. An item given as `ObjectMeta` is read at exactly that version.
    The first failure, in order, is raised for its key and the rest is given up; so is everything when the caller
    stops early. One request an object.
    """
    guess = _GUESS_BYTES

    def tasks() -> Iterator[Task[StoredObject]]:
        for item in items:
            if isinstance(item, str):
                yield Task(guess, partial(store.get_object, item))
            else:
                yield Task(
                    item.size,
                    partial(
                        store.get_object, item.key, if_match=item.etag, expected_bytes=item.size
                    ),
                )

    for job in read_ahead(store, tasks()):
        found = job.result()
        guess = max(1, (guess + len(found.data)) // 2)
        yield found


def _fetch_at_once(store: Store, key: str, target: Target, etag: str | None) -> int:
    start, view = target.start, target.view
    if not 0 < len(view) < _COPIED_BYTES or view.readonly:
        return store.get_into(key, view, start=start, if_match=etag)
    # A copy is cheap at this size, and stores compare what turns out to be the whole object.
    data = store.get(key, start=start, stop=start + len(view), if_match=etag)
    view[: len(data)] = data
    return len(data)


def _version(store: Store, key: str) -> Checksum:
    try:
        return store.checksum(key)
    except NotFound:
        # This one tells whether it is the key or the bucket that is missing.
        store.head(key)
        raise


def _begin(
    store: Store, key: str, targets: Sequence[Target], etag: str | None
) -> list[Future[int]]:
    return [
        part_threads().submit(store.get_into, key, target.view, start=target.start, if_match=etag)
        for target in targets
    ]


def _compare(
    store: Store, key: str, parts: Iterable[tuple[Future[int], Target]], stored: int
) -> None:
    """Sums the parts up in order while later ones still arrive, and compares."""
    found = 0
    for job, target in parts:
        wait([job])
        if job.exception() is not None:
            return
        found = crc32c(target.view, found)
    check_stored(store, key, found, stored)


def _copy_from(
    store: Store, key: str, span: ByteRange, targets: Sequence[Target], etag: str | None
) -> int:
    with Share(shared_budget(store.config.transfer)) as share:
        share.acquire(len(span))
        data = store.get(key, start=span.start, stop=span.stop, if_match=etag)
        _check_whole(store, key, span.start, len(span), len(data))
        for target in targets:
            offset = target.start - span.start
            target.view[:] = data[offset : offset + len(target.view)]
    return len(data)


def check_stored(store: Store, key: str, found: int, stored: int) -> None:
    """Refuses a whole object whose checksum is not the one that its store keeps."""
    if found != stored:
        raise IntegrityError(
            f"{store.url.rstrip('/')}/{key}: the bytes that arrived have the CRC32C {found:08x}, stored was "
            f"{stored:08x}; read it again, and if it happens again restore the object"
        )


def _check_whole(store: Store, key: str, start: int, wanted: int, got: int) -> None:
    if got != wanted:
        raise ValueError(
            f"{store.url}/{key}: bytes {start} to {start + wanted} were asked for, and the object ends at {start + got}"
        )


def _all(jobs: Sequence[Future[int]]) -> list[int]:
    """Every result; the first failure cancels what has not begun, and is raised when nothing writes any more."""
    try:
        wait(jobs, return_when=FIRST_EXCEPTION)
    finally:
        for job in jobs:
            job.cancel()
    wait(jobs)
    failed = [job for job in jobs if not job.cancelled() and job.exception() is not None]
    return [job.result() for job in failed or jobs]
