"""Who takes which samples: a global order cut into lanes, one for each worker of each rank. Pure.

An epoch is the positions 0 to n of a global order. A run with `ranks` × `workers` lanes gives each lane a contiguous
stretch of what is left, and every lane moves at the same pace. What was consumed is a `Leg`: enough to compute what
is left, so that a later run may have any other number of ranks and workers.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

__all__ = [
    "Even",
    "Lane",
    "Leg",
    "Place",
    "Span",
    "batches_behind",
    "batches_per_rank",
    "check_even",
    "lane_of",
    "remaining",
    "worker_progress",
]

Even: TypeAlias = Literal["pad", "drop", "error"]
Span: TypeAlias = tuple[int, int]
"""Half-open positions of the global order."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the world a lane is: this worker of that rank."""

    rank: int = 0
    ranks: int = 1
    worker: int = 0
    workers: int = 1

    def __post_init__(self) -> None:
        if not (0 <= self.rank < self.ranks and 0 <= self.worker < self.workers):
            raise ValueError(f"rank and worker must be below their count, got {self}")


@dataclass(frozen=True, slots=True)
class Leg:
    """A run, or its beginning: how the lanes were cut, and how many samples each worker's lane has given.

    The same for all ranks, because they move together.
    """

    ranks: int
    workers: int
    batch: int
    even: Even
    consumed: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.consumed) != self.workers:
            raise ValueError(f"{self.workers} workers need as many counts, got {self.consumed}")


@dataclass(frozen=True, slots=True)
class Lane:
    """What one worker of one rank takes, in order. Spans after `own` samples repeat others', as padding."""

    spans: tuple[Span, ...]
    own: int

    def __len__(self) -> int:
        return sum(stop - start for start, stop in self.spans)

    def after(self, skip: int) -> Iterator[Span]:
        """Its spans without the first `skip` positions."""
        for start, stop in self.spans:
            if skip < stop - start:
                yield start + skip, stop
            skip = max(0, skip - (stop - start))

    def positions(self, *, skip: int = 0) -> Iterator[int]:
        """Its positions of the global order, without the first `skip`."""
        for start, stop in self.after(skip):
            yield from range(start, stop)


def lane_of(left: Sequence[Span], place: Place, *, batch: int, even: Even) -> Lane:
    """The lane of a place, given what is left. All ranks get lanes of equal length, worker by worker.

    With `pad` the ranks that would have one sample less repeat samples of the beginning; with `drop` the last few
    samples are left for a later run; with `error` their number must fit.
    """
    total = _size(left)
    each = _per_rank(total, place.ranks, even)
    sizes = _worker_sizes(each, place.workers, batch)
    start = place.rank * each + sum(sizes[: place.worker])
    stop = start + sizes[place.worker]
    # What lies beyond the end begins again at the beginning, as often as it takes.
    turns = range(0, stop, total) if total else ()
    stretches = (
        (max(start, turn) - turn, min(stop, turn + total) - turn)
        for turn in turns
        if turn + total > start
    )
    spans = [span for stretch in stretches for span in _pick(left, [stretch])]
    return Lane(tuple(spans), own=max(0, min(stop, total) - start))


def remaining(total: int, legs: Iterable[Leg]) -> list[Span]:
    """What is left of the positions 0 to `total` after these legs, in order."""
    left: list[Span] = [(0, total)] if total else []
    for leg in legs:
        left = list(_pick(left, _not_consumed(_size(left), leg)))
    return left


def batches_behind(legs: Iterable[Leg]) -> int:
    """How many batches a loader has yielded on every rank in these legs."""
    return sum(-(-count // leg.batch) for leg in legs for count in leg.consumed)


def batches_per_rank(
    left: Sequence[Span], *, ranks: int, workers: int, batch: int, even: Even
) -> int:
    """How many batches a loader yields on every rank."""
    lanes = (
        lane_of(left, Place(0, ranks, worker, workers), batch=batch, even=even)
        for worker in range(workers)
    )
    return sum(-(-len(lane) // batch) for lane in lanes)


def worker_progress(
    left: Sequence[Span], batches: int, *, ranks: int, workers: int, batch: int, even: Even
) -> tuple[int, ...]:
    """The samples each worker has given once a loader, which asks them in turn, has yielded so many batches."""
    progress = []
    for worker in range(workers):
        lane = lane_of(left, Place(0, ranks, worker, workers), batch=batch, even=even)
        turns = batches // workers + (worker < batches % workers)
        progress.append(min(len(lane), turns * batch))
    return tuple(progress)


def check_even(even: str) -> None:
    """Refuses what is no way to be even."""
    if even not in get_args(Even):
        raise ValueError(f"even must be one of {', '.join(get_args(Even))}, got {even!r}")


def _per_rank(total: int, ranks: int, even: Even) -> int:
    check_even(even)
    each, rest = divmod(total, ranks)
    if rest and even == "error":
        raise ValueError(
            f"{total} samples cannot be shared evenly by {ranks} ranks; choose even='pad' or 'drop', or take "
            f"{total - rest} samples"
        )
    return each + (1 if rest and even == "pad" else 0)


def _worker_sizes(each: int, workers: int, batch: int) -> list[int]:
    """Samples per worker: whole batches dealt in turn, the last one possibly short, as a loader asks for them."""
    batches = -(-each // batch)
    sizes = [
        (batches // workers + (worker < batches % workers)) * batch for worker in range(workers)
    ]
    if batches:
        sizes[(batches - 1) % workers] -= batches * batch - each
    return sizes


def _not_consumed(total: int, leg: Leg) -> Iterator[Span]:
    """The stretches of what was left (counted from 0) that no lane of the leg has given yet, in order."""
    each = _per_rank(total, leg.ranks, leg.even)
    sizes = _worker_sizes(each, leg.workers, leg.batch)
    start = 0
    for _ in range(leg.ranks):
        for size, consumed in zip(sizes, leg.consumed, strict=True):
            yield min(total, start + min(size, consumed)), min(total, start + size)
            start += size
    yield min(total, start), total


def _pick(spans: Sequence[Span], stretches: Iterable[Span]) -> Iterator[Span]:
    """The parts of `spans`, laid end to end, at these rising stretches. Touching parts are joined."""
    held: Span | None = None
    index, before = 0, 0
    for first, last in stretches:
        at = first
        while at < last and index < len(spans):
            start, stop = spans[index]
            size = stop - start
            if at >= before + size:
                index, before = index + 1, before + size
                continue
            taken = min(last, before + size) - at
            part = (start + at - before, start + at - before + taken)
            if held is not None and held[1] == part[0]:
                held = (held[0], part[1])
            else:
                if held is not None:
                    yield held
                held = part
            at += taken
    if held is not None:
        yield held


def _size(spans: Iterable[Span]) -> int:
    return sum(stop - start for start, stop in spans)
