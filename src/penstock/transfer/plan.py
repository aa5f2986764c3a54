"""Decides which bytes travel together. Pure; `fetch.py` and `upload.py` execute what is planned here."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

__all__ = ["ByteRange", "Read", "plan_reads", "split", "upload_part_bytes"]

_PARTS_PER_SIZE = 900
_LARGEST_PART_BYTES = 5 << 30


@dataclass(frozen=True, slots=True, order=True)
class ByteRange:
    """Half-open: `start` is read, `stop` is not."""

    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.stop:
            raise ValueError(f"a range needs 0 <= start <= stop, got {self.start} and {self.stop}")

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Read:
    """One request: the span to ask for, and which of the wanted ranges (by index) lie in it."""

    span: ByteRange
    wanted: tuple[int, ...]


def split(span: ByteRange, *, part_bytes: int) -> list[ByteRange]:
    """Cuts a span into parts of `part_bytes`, the last one excepted. They touch, and cover it exactly."""
    starts = range(span.start, span.stop, part_bytes)
    return [ByteRange(start, min(start + part_bytes, span.stop)) for start in starts]


def plan_reads(
    wanted: Iterable[ByteRange], *, max_gap_bytes: int, max_read_bytes: int
) -> list[Read]:
    """Groups ranges that lie close together into one read each, in the order of their position.

    Neighbours share a read where the gap between them is at most `max_gap_bytes` and the read stays within
    `max_read_bytes`. A range larger than that is a read of its own; cutting it is `split`'s work. Empty ranges
    need no read and appear in none.
    """
    ordered = sorted((span, index) for index, span in enumerate(wanted) if len(span))
    return list(_group(ordered, max_gap_bytes, max_read_bytes))


def _group(
    ordered: list[tuple[ByteRange, int]], max_gap_bytes: int, max_read_bytes: int
) -> Iterator[Read]:
    held: list[int] = []
    start = stop = 0
    for span, index in ordered:
        near = span.start - stop <= max_gap_bytes
        if held and near and max(stop, span.stop) - start <= max_read_bytes:
            stop = max(stop, span.stop)
            held.append(index)
            continue
        if held:
            yield Read(ByteRange(start, stop), tuple(held))
        start, stop, held = span.start, span.stop, [index]
    if held:
        yield Read(ByteRange(start, stop), tuple(held))


def upload_part_bytes(number: int, *, first_bytes: int) -> int:
    """The size of part `number` (from 0 on) of an upload of unknown length: doubled every 900 parts.

    So 10,000 parts, which is all a store takes, hold more than 5 TiB even if the first have 5 MiB; and with 16 MiB
    to begin with, objects below 14 GiB have no larger ones.
    """
    return min(first_bytes << (number // _PARTS_PER_SIZE), _LARGEST_PART_BYTES)
