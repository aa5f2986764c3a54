"""What is done under the clock, whoever does it: many small reads, one large read, one large upload."""

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from crc32c import crc32c
from typing_extensions import Buffer

from penstock_bench.micro.objects import Stored
from penstock_bench.micro.probe import Task
from penstock_bench.micro.subjects.protocol import (
    Reads,
    ReadsInto,
    ReadsMany,
    Subject,
    Target,
    Writes,
)

__all__ = ["WrongBytes", "large_read", "large_upload", "small_reads"]

_SUBJECTS = "penstock_bench.micro.subjects"


class WrongBytes(AssertionError):
    """A subject returned something else than what is stored."""


def small_reads(arguments: Mapping[str, Any]) -> Task:
    """Reads all of `small`, after the first `warm_count` of them."""
    return SmallReads(
        cast("ReadsMany", _open(arguments)),
        [Stored(**stored) for stored in arguments["small"]],
        warm_count=arguments["warm_count"],
        keep_first=arguments["keep_first"],
        keep_every=arguments["keep_every"],
    )


def large_read(arguments: Mapping[str, Any]) -> Task:
    """Reads `large`, after `warm`: into waiting memory where the subject can."""
    subject = _open(arguments)
    source = Stored(**arguments["warm"]), Stored(**arguments["large"])
    if hasattr(subject, "read_into"):
        return LargeReadInto(cast("ReadsInto", subject), *source)
    return LargeRead(cast("Reads", subject), *source)


def large_upload(arguments: Mapping[str, Any]) -> Task:
    """Uploads the file `source`, held in memory, as `large`; after a piece of it, as `warm`."""
    return LargeUpload(
        cast("Writes", _open(arguments)),
        arguments["warm"]["key"],
        arguments["large"]["key"],
        Path(arguments["source"]).read_bytes(),
        arguments["warm"]["size"],
    )


def _open(arguments: Mapping[str, Any]) -> Subject:
    module, _, name = arguments["adapter"].partition(":")
    adapter = getattr(importlib.import_module(f"{_SUBJECTS}.{module}"), name)
    subject: Subject = adapter(
        Target(**arguments["target"]), arguments["keys"], **arguments["options"]
    )
    return subject


def _compare(data: Buffer, stored: Stored) -> None:
    view = memoryview(data)
    if view.nbytes != stored.size or crc32c(view) != stored.checksum:
        raise WrongBytes(
            f"{stored.key}: {view.nbytes} bytes, not the {stored.size} that are stored"
        )


class SmallReads:
    """Objects are dropped as they come, as by a training loop.

    All their sizes are checked. One in `keep_every` is kept and compared byte for byte after the clock; to keep
    all would measure the memory of the check.
    """

    def __init__(
        self,
        subject: ReadsMany,
        stored: Sequence[Stored],
        *,
        warm_count: int,
        keep_first: int,
        keep_every: int,
    ) -> None:
        self._subject = subject
        self._stored = stored
        self._warm_count = warm_count
        self._keep_first = keep_first
        self._keep_every = keep_every
        self._sizes = [-1] * len(stored)
        self._kept: dict[int, Buffer] = {}

    def warm_up(self) -> None:
        self._subject.read_many(self._warm_count, lambda _index, _data: None)

    def run(self) -> None:
        self._subject.read_many(len(self._stored), self._take)

    def _take(self, index: int, data: Buffer) -> None:
        self._sizes[index] = memoryview(data).nbytes
        if index % self._keep_every == self._keep_first:
            self._kept[index] = data

    def check(self) -> None:
        for stored, size in zip(self._stored, self._sizes, strict=True):
            if size != stored.size:
                raise WrongBytes(
                    f"{stored.key}: {size} bytes, not the {stored.size} that are stored"
                )
        wanted = range(self._keep_first, len(self._stored), self._keep_every)
        if sorted(self._kept) != list(wanted):
            raise WrongBytes(f"{len(self._kept)} objects kept, not {len(wanted)}")
        for index, data in self._kept.items():
            _compare(data, self._stored[index])

    def close(self) -> None:
        self._subject.close()


class LargeReadInto:
    """For those that read into the caller's memory, which is there and touched before anything is counted."""

    def __init__(self, subject: ReadsInto, warm: Stored, large: Stored) -> None:
        self._subject = subject
        self._warm = warm
        self._large = large
        # Not bytearray(n), whose pages would be first touched, and paid for, under the clock.
        self._buffer = memoryview(bytearray(b"\xff") * large.size)

    def warm_up(self) -> None:
        self._subject.read_into(self._warm.key, self._buffer[: self._warm.size])

    def run(self) -> None:
        self._subject.read_into(self._large.key, self._buffer)

    def check(self) -> None:
        _compare(self._buffer, self._large)

    def close(self) -> None:
        self._subject.close()


class LargeRead:
    """For those that return new memory: it is theirs to allocate, and part of their peak."""

    def __init__(self, subject: Reads, warm: Stored, large: Stored) -> None:
        self._subject = subject
        self._warm = warm
        self._large = large
        self._data: Buffer = b""

    def warm_up(self) -> None:
        self._subject.read(self._warm.key)

    def run(self) -> None:
        self._data = self._subject.read(self._large.key)

    def check(self) -> None:
        _compare(self._data, self._large)

    def close(self) -> None:
        self._subject.close()


class LargeUpload:
    """The source lies in memory before anything is counted. Whoever stores it reads it back to check."""

    def __init__(
        self, subject: Writes, warm_key: str, large_key: str, source: bytes, warm_bytes: int
    ) -> None:
        self._subject = subject
        self._warm_key = warm_key
        self._large_key = large_key
        self._source = source
        self._warm_source = source[:warm_bytes]

    def warm_up(self) -> None:
        self._subject.write(self._warm_key, self._warm_source)

    def run(self) -> None:
        self._subject.write(self._large_key, self._source)

    def check(self) -> None:
        """Nothing here: sections.py reads the object back through another client."""

    def close(self) -> None:
        self._subject.close()
