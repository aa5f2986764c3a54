"""Brings records of a file to where they belong: host memory or a GPU's, in parallel, in bounded memory.

A large record on the host is read straight into place. Small ones are read together and copied out; what goes to a
GPU comes through pinned buffers, so that the network and the copies to the device overlap.
"""

import threading
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass

import torch

from penstock.checkpoint.crc import CRC32, join
from penstock.checkpoint.memory import CHUNK_BYTES, copy_stream, host_view, pinned_chunk
from penstock.checkpoint.torchfile import Record
from penstock.checkpoint.window import Window
from penstock.errors import IntegrityError
from penstock.transfer import ByteRange
from penstock.transfer.plan import plan_reads, split
from penstock.transfer.threads import part_threads

__all__ = ["Target", "fill"]

_DIRECT_BYTES = 1 << 20
_TOGETHER_BYTES = 4 << 20
_TOGETHER_AT_ONCE = 12
_MAX_GAP_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Target:
    """Where a record goes: memory of its size, on the host or, as a tensor of bytes, on a GPU."""

    record: Record
    memory: memoryview | torch.Tensor


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a target: which one, from which byte of it on, and where that lies in the file."""

    target: int
    offset: int
    span: ByteRange


@dataclass(frozen=True, slots=True)
class _Sum:
    """The checksum of a piece that has arrived."""

    piece: _Piece
    crc32: int


_Job = Callable[[], list[_Sum]]


def fill(window: Window, targets: Sequence[Target], *, check: bool) -> None:
    """Fills every target. `check` compares the checksums that the file keeps of its records, where it does.

    On a failure nothing writes any more when it is raised, and what the targets hold is undefined.
    """
    _Fill(window, targets, check=check).run()


class _Fill:
    def __init__(self, window: Window, targets: Sequence[Target], *, check: bool) -> None:
        self._window = window
        self._targets = targets
        self._check = check
        self._together = threading.Semaphore(_TOGETHER_AT_ONCE)
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def run(self) -> None:
        direct: list[_Piece] = []
        small: list[_Piece] = []
        device: list[_Piece] = []
        sums: list[_Sum] = []
        part_bytes = self._window.store.config.transfer.part_bytes
        for number, target in enumerate(self._targets):
            record = target.record
            if isinstance(target.memory, torch.Tensor):
                device += _pieces(number, record, CHUNK_BYTES)
            elif (found := self._window.held(record.start, record.stop)) is not None:
                sums += self._place(
                    [_Piece(number, 0, ByteRange(record.start, record.stop))], found
                )
            elif record.size >= _DIRECT_BYTES:
                direct += _pieces(number, record, part_bytes)
            else:
                small += _pieces(number, record, part_bytes)
        for where in {t.memory.device for t in self._targets if isinstance(t.memory, torch.Tensor)}:
            # Memory just allocated may still be used by what is queued on the current stream.
            self._streams[where] = copy_stream(where)
        jobs: list[_Job] = [self._direct(piece) for piece in direct]
        jobs += [
            self._together_read(span, group) for span, group in _groups(small, _TOGETHER_BYTES)
        ]
        jobs += [self._through_pinned(span, group) for span, group in _groups(device, CHUNK_BYTES)]
        sums += [found for result in _all([*map(part_threads().submit, jobs)]) for found in result]
        if self._check:
            self._compare(sums)

    def _direct(self, piece: _Piece) -> _Job:
        def read() -> list[_Sum]:
            memory = self._targets[piece.target].memory
            assert isinstance(memory, memoryview)
            view = memory[piece.offset : piece.offset + len(piece.span)]
            self._window.get_into(view, start=piece.span.start)
            return self._sums([piece], piece.span.start, view)

        return read

    def _together_read(self, span: ByteRange, group: Sequence[_Piece]) -> _Job:
        def read() -> list[_Sum]:
            with self._together:
                return self._place(group, self._window.get(span.start, span.stop))

        return read

    def _place(self, group: Sequence[_Piece], data: memoryview) -> list[_Sum]:
        first = min(piece.span.start for piece in group)
        for piece in group:
            memory = self._targets[piece.target].memory
            assert isinstance(memory, memoryview)
            at = piece.span.start - first
            memory[piece.offset : piece.offset + len(piece.span)] = data[at : at + len(piece.span)]
        return self._sums(group, first, data)

    def _through_pinned(self, span: ByteRange, group: Sequence[_Piece]) -> _Job:
        def read() -> list[_Sum]:
            with pinned_chunk() as chunk:
                begin = chunk.storage_offset()
                view = host_view(chunk.untyped_storage())[begin : begin + len(span)]
                self._window.get_into(view, start=span.start)
                sums = self._sums(group, span.start, view)
                arrived = [self._to_device(piece, span, chunk) for piece in group]
                for event in arrived:
                    event.synchronize()
                return sums

        return read

    def _to_device(self, piece: _Piece, span: ByteRange, chunk: torch.Tensor) -> torch.cuda.Event:
        memory = self._targets[piece.target].memory
        assert isinstance(memory, torch.Tensor)
        at = piece.span.start - span.start
        stream = self._streams[memory.device]
        with torch.cuda.stream(stream):
            target = memory[piece.offset : piece.offset + len(piece.span)]
            target.copy_(chunk[at : at + len(piece.span)], non_blocking=True)
            event: torch.cuda.Event = stream.record_event()
        return event

    def _sums(self, group: Sequence[_Piece], first: int, data: memoryview) -> list[_Sum]:
        if not self._check:
            return []
        return [
            _Sum(piece, zlib.crc32(data[piece.span.start - first : piece.span.stop - first]))
            for piece in group
        ]

    def _compare(self, sums: Sequence[_Sum]) -> None:
        by_target: dict[int, list[_Sum]] = {}
        for found in sorted(sums, key=lambda found: found.piece.offset):
            by_target.setdefault(found.piece.target, []).append(found)
        for number, parts in by_target.items():
            record = self._targets[number].record
            crc = join(CRC32, [(part.crc32, len(part.piece.span)) for part in parts])
            check_record(self._window, record, crc)


def check_record(window: Window, record: Record, crc32: int) -> None:
    """Refuses bytes that are not those which the file's directory speaks of."""
    if record.crc32 is not None and crc32 != record.crc32:
        raise IntegrityError(
            f"{window.url}: record {record.name} has CRC-32 {crc32:08x}, its directory says {record.crc32:08x}; "
            "the object is damaged, restore it or load another checkpoint"
        )


def _pieces(target: int, record: Record, piece_bytes: int) -> list[_Piece]:
    spans = split(ByteRange(record.start, record.stop), part_bytes=piece_bytes)
    return [_Piece(target, span.start - record.start, span) for span in spans]


def _groups(pieces: Sequence[_Piece], read_bytes: int) -> list[tuple[ByteRange, list[_Piece]]]:
    reads = plan_reads(
        [piece.span for piece in pieces], max_gap_bytes=_MAX_GAP_BYTES, max_read_bytes=read_bytes
    )
    return [(read.span, [pieces[index] for index in read.wanted]) for read in reads]


def _all(jobs: Sequence[Future[list[_Sum]]]) -> list[list[_Sum]]:
    """Every result; the first failure cancels what has not begun, and is raised when nothing writes any more."""
    _, pending = wait(jobs, return_when=FIRST_EXCEPTION)
    for job in pending:
        job.cancel()
    wait(jobs)
    failed = [job for job in jobs if not job.cancelled() and job.exception() is not None]
    return [job.result() for job in failed or jobs]
