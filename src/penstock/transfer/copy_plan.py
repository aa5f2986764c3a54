"""Decides what a copy has to do, object by object. Pure; `copy.py` executes what is planned here."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from penstock.transfer.plan import ByteRange, upload_part_bytes

__all__ = [
    "Compare",
    "CopyPlan",
    "Entry",
    "Failure",
    "Task",
    "Verdict",
    "judge",
    "md5_in",
    "parts_of",
    "plan_copies",
    "shadowed",
]

_CONTENT_ETAG = re.compile(r'"[0-9a-f]{32}(?:-[0-9]+)?"')
_MD5_ETAG = re.compile(r'"([0-9a-f]{32})"')


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or an object at one end of a copy; `name` is relative to that end, with slashes."""

    name: str
    size: int
    etag: str | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """What could not be copied, and why."""

    url: str
    reason: str


class Compare(Enum):
    """What must be equal for an object to be left alone."""

    CONTENT = "content"
    """Size, and an ETag or checksum that tells of the bytes. Where no such evidence can be had, it is copied."""
    SIZE = "size"
    """The size alone: fast, and blind to a change that keeps it."""
    NOTHING = "nothing"
    """Everything is copied again."""


class Verdict(Enum):
    """What to do with an object."""

    COPY = "copy"
    SAME = "same"
    COMPARE = "compare"
    """Only the contents can tell."""


@dataclass(frozen=True, slots=True)
class Task:
    """One object: what it is, the name it gets, and what has that name now."""

    source: Entry
    target: str
    present: Entry | None
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """Every source is in exactly one task, or in `refused` with the reason."""

    tasks: Sequence[Task]
    refused: Sequence[tuple[Entry, str]]


def plan_copies(
    sources: Iterable[tuple[Entry, str]],
    present: Mapping[str, Entry],
    *,
    refused: Mapping[str, str],
    compare: Compare,
) -> CopyPlan:
    """What to do for each source and the name it gets; `refused` maps such names to why they cannot be written."""
    tasks: list[Task] = []
    left: list[tuple[Entry, str]] = []
    for source, name in sources:
        if name in refused:
            left.append((source, refused[name]))
        else:
            there = present.get(name)
            tasks.append(Task(source, name, there, judge(source, there, compare)))
    return CopyPlan(tasks, left)


def judge(source: Entry, present: Entry | None, compare: Compare) -> Verdict:
    """Whether a listing already tells that the two are the same, or that they are not."""
    if present is None or present.size != source.size or compare is Compare.NOTHING:
        return Verdict.COPY
    if source.size == 0 or compare is Compare.SIZE:
        return Verdict.SAME
    # Made of MD5s, of the object or of its parts: equal ones are of equal bytes. Different ones prove nothing, for
    # the parts may have been cut elsewhere.
    if source.etag == present.etag and _CONTENT_ETAG.fullmatch(source.etag or ""):
        return Verdict.SAME
    return Verdict.COMPARE


def md5_in(etag: str | None) -> str | None:
    """The digest that an ETag looks like. Encrypted buckets have some that look like one and are none."""
    match = _MD5_ETAG.fullmatch(etag or "")
    return match[1] if match else None


def parts_of(size: int, *, first_bytes: int) -> list[ByteRange]:
    """The parts that an object of this size travels in: at most 10,000, which touch and cover it exactly."""
    parts: list[ByteRange] = []
    start = 0
    while start < size:
        stop = min(size, start + upload_part_bytes(len(parts), first_bytes=first_bytes))
        parts.append(ByteRange(start, stop))
        start = stop
    return parts


def shadowed(names: Iterable[str]) -> set[str]:
    """The names that are also folders of other names: `a` beside `a/b`, which a store can hold and a disk cannot."""
    names = set(names)
    folders = {name[:at] for name in names for at, letter in enumerate(name) if letter == "/"}
    return names & folders
