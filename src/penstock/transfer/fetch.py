"""Reads: ranges of one object into the caller's memory, and many whole objects in order."""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass
from functools import partial

from penstock.errors import Throttled
from penstock.store import ObjectMeta, Store, StoredObject
from penstock.store.protocol import WritableBuffer
from penstock.transfer.budget import Share, shared_budget
from penstock.transfer.hedge import Hedge
from penstock.transfer.plan import ByteRange, plan_reads, split
from penstock.transfer.threads import Job, object_threads, part_threads
from penstock.transfer.tuning import Limiter, limiter_for

__all__ = ["Target", "fetch", "fetch_many", "scatter"]

_GUESS_BYTES = 256 << 10


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
    more than one range. An object that changes meanwhile raises `ObjectChanged`; the buffer's content is then
    undefined. The bytes land in the buffer; nothing is staged.
    """
    view = memoryview(buffer).cast("B")
    part_bytes = store.config.transfer.part_bytes
    if len(view) <= part_bytes:
        return store.get_into(key, view, start=start, if_match=etag)
    if etag is None:
        meta = store.head(key)
        etag = meta.etag
        view = view[: max(0, meta.size - start)]
    spans = split(ByteRange(start, start + len(view)), part_bytes=part_bytes)
    targets = [Target(span.start, view[span.start - start : span.stop - start]) for span in spans]
    return sum(_fill(store, key, targets, etag))


def scatter(store: Store, key: str, targets: Sequence[Target], *, etag: str | None) -> int:
    """Fills many buffers from one object and returns the bytes asked of the store.

    Targets close together are read as one, into a buffer of their own, and copied from there; large ones are cut
    into parallel parts that land in place. A target that reaches past the end of the object is a ValueError.
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
    jobs = [
        part_threads().submit(_copy_from, store, key, span, wanted, etag) for span, wanted in shared
    ]
    counts = _fill(store, key, direct, etag)
    for target, count in zip(direct, counts, strict=True):
        _check_whole(store, key, target.start, len(target.view), count)
    return sum(counts) + sum(_all(jobs))


def fetch_many(store: Store, items: Iterable[str | ObjectMeta]) -> Iterator[StoredObject]:
    """Whole objects, in the order asked for, hundreds in flight; each comes out as soon as it is its turn.

    What is read ahead stays within the byte budget. An item given as `ObjectMeta` is read at exactly that version.
    The first failure, in order, is raised for its key and the rest is given up; so is everything when the caller
    stops early. One request an object.
    """
    config = store.config.transfer
    limiter = limiter_for(store)
    hedge = Hedge(limiter, config) if config.hedge else None
    ahead: deque[tuple[Job[StoredObject], int]] = deque()
    coming = iter(items)
    held: str | ObjectMeta | None = None
    guess = _GUESS_BYTES
    with Share(shared_budget(config)) as share:
        try:
            while True:
                while len(ahead) < limiter.limit:
                    item = held if held is not None else next(coming, None)
                    held = None
                    if item is None:
                        break
                    size = item.size if isinstance(item, ObjectMeta) else guess
                    if not share.try_acquire(size):
                        if ahead:
                            held = item
                            break
                        share.acquire(size)
                    job = object_threads().submit(partial(_read, store, item, limiter, hedge))
                    ahead.append((job, size))
                if not ahead:
                    return
                job, size = ahead.popleft()
                found = job.result()
                guess = max(1, (guess + len(found.data)) // 2)
                yield found
                share.release(size)
        finally:
            for job, _ in ahead:
                job.cancel()


def _read(
    store: Store, item: str | ObjectMeta, limiter: Limiter, hedge: Hedge | None
) -> StoredObject:
    key, etag = (item, None) if isinstance(item, str) else (item.key, item.etag)
    began = time.monotonic()
    try:
        if hedge is None:
            found = store.get_object(key, if_match=etag)
        else:
            found = hedge.first(lambda: store.get_object(key, if_match=etag))
    except Throttled:
        limiter.throttled()
        raise
    limiter.answered(time.monotonic() - began)
    return found


def _fill(store: Store, key: str, targets: Sequence[Target], etag: str | None) -> list[int]:
    if not targets:
        return []
    jobs = [
        part_threads().submit(store.get_into, key, target.view, start=target.start, if_match=etag)
        for target in targets
    ]
    return _all(jobs)


def _copy_from(
    store: Store, key: str, span: ByteRange, targets: Sequence[Target], etag: str | None
) -> int:
    data = store.get(key, start=span.start, stop=span.stop, if_match=etag)
    _check_whole(store, key, span.start, len(span), len(data))
    for target in targets:
        offset = target.start - span.start
        target.view[:] = data[offset : offset + len(target.view)]
    return len(data)


def _check_whole(store: Store, key: str, start: int, wanted: int, got: int) -> None:
    if got != wanted:
        raise ValueError(
            f"{store.url}/{key}: bytes {start} to {start + wanted} were asked for, and the object ends at {start + got}"
        )


def _all(jobs: Sequence[Future[int]]) -> list[int]:
    """Every result; the first failure cancels what has not begun, and is raised when nothing writes any more."""
    _, pending = wait(jobs, return_when=FIRST_EXCEPTION)
    if pending:
        for job in pending:
            job.cancel()
        wait(jobs)
    failed = [job for job in jobs if not job.cancelled() and job.exception() is not None]
    return [job.result() for job in failed or jobs]
