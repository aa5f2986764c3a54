"""Knows what is in tar shards: the samples, their members and where the bytes lie. Read once, from headers alone."""

import gzip
import io
import json
import re
import tarfile
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, Self

from penstock.config import StoreConfig
from penstock.data.objects import Url
from penstock.errors import BadSample
from penstock.store import ObjectMeta, Store, open_object
from penstock.store.protocol import WritableBuffer
from penstock.transfer.ahead import Task, read_ahead

__all__ = ["Member", "Shard", "TarIndex", "scan"]

_VERSION = 1
_NEAR_BYTES = 64 << 10
_HOP_BYTES = 2 << 10
_NAME = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)$")
"""`a/b.seg.png` is the member `seg.png` of `a/b`, as WebDataset has it; a file without extension is of no sample."""


@dataclass(frozen=True, slots=True)
class Member:
    """A file in a shard: its extension and where its bytes are."""

    extension: str
    start: int
    stop: int


class Shard:
    """A tar file: its samples, each a run of members with the same name but for the extension."""

    def __init__(
        self,
        meta: ObjectMeta,
        stems: Sequence[str],
        firsts: "array[int]",
        members: Sequence[Member],
    ) -> None:
        self.meta = meta
        self._stems = stems
        self._firsts = firsts
        self._members = members

    def __len__(self) -> int:
        return len(self._stems)

    def stem(self, sample: int) -> str:
        """The name that the members of a sample share."""
        return self._stems[sample]

    def members(self, sample: int) -> Sequence[Member]:
        """The members of a sample."""
        return self._members[self._firsts[sample] : self._firsts[sample + 1]]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "key": self.meta.key,
            "size": self.meta.size,
            "etag": self.meta.etag,
            "stems": [*self._stems],
            "firsts": self._firsts.tolist(),
            "members": [[m.extension, m.start, m.stop] for m in self._members],
        }

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> Self:
        """Reads what `to_dict` made."""
        meta = ObjectMeta(state["key"], state["size"], state["etag"])
        return cls(
            meta,
            state["stems"],
            array("Q", state["firsts"]),
            [Member(*m) for m in state["members"]],
        )


class TarIndex:
    """Shards in their order, and all their samples in a row."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self.shards = shards
        self._ends = list(accumulate(len(shard) for shard in shards))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def find(self, sample: int) -> tuple[Shard, int]:
        """The shard of a sample, and its number there."""
        number = bisect_right(self._ends, sample)
        shard = self.shards[number]
        return shard, sample - (self._ends[number] - len(shard))

    def reordered(self, order: Sequence[int]) -> "TarIndex":
        """The same shards in another order."""
        return TarIndex([self.shards[number] for number in order])

    def save(self, url: Url, *, config: StoreConfig | None = None) -> None:
        """Writes the index as compressed JSON, so that the next run need not read headers."""
        store, key = open_object(url, config)
        state = {
            "penstock_tar_index": _VERSION,
            "shards": [shard.to_dict() for shard in self.shards],
        }
        store.put(key, gzip.compress(json.dumps(state).encode()))

    @classmethod
    def load(cls, url: Url, *, config: StoreConfig | None = None) -> Self:
        """Reads what `save` wrote; refuses a version it does not know."""
        store, key = open_object(url, config)
        state = json.loads(gzip.decompress(store.get(key)))
        if state.get("penstock_tar_index") != _VERSION:
            raise ValueError(f"{url} is not a tar index of version {_VERSION}; make it anew")
        return cls([Shard.from_dict(shard) for shard in state["shards"]])


def scan(store: Store, metas: Iterable[ObjectMeta]) -> TarIndex:
    """Reads the headers of all shards, many at a time: a small request for every member, none for its bytes."""
    tasks = (Task(_NEAR_BYTES, partial(_scan_shard, store, meta)) for meta in metas)
    return TarIndex([job.result() for job in read_ahead(store, tasks)])


def _scan_shard(store: Store, meta: ObjectMeta) -> Shard:
    stems: list[str] = []
    firsts = array("Q")
    members: list[Member] = []
    for name, start, size in _files(store, meta):
        parts = _NAME.match(name)
        if parts is None:
            continue
        stem, extension = parts[1], parts[2].lower()
        if not stems or stems[-1] != stem:
            stems.append(stem)
            firsts.append(len(members))
        members.append(Member(extension, start, start + size))
    firsts.append(len(members))
    return Shard(meta, stems, firsts, members)


def _files(store: Store, meta: ObjectMeta) -> Iterator[tuple[str, int, int]]:
    name = f"{store.url.rstrip('/')}/{meta.key}"
    reader = _HopReader(store, meta)
    try:
        with tarfile.open(fileobj=reader, mode="r:") as tar:
            for member in tar:
                if member.issparse():
                    raise BadSample(
                        f"{name}: {member.name} is a sparse file, which has no bytes of its own; pack it as a plain one"
                    )
                if member.isfile():
                    yield member.name, member.offset_data, member.size
            end = tar.offset
    except tarfile.TarError as exc:
        raise BadSample(
            f"{name}: not an uncompressed tar file ({exc}); leave it out with suffix='.tar', or unpack what is "
            "compressed"
        ) from exc
    # tarfile takes a broken header for the end; a tar ends with zeros.
    reader.seek(end)
    if any(reader.read(tarfile.BLOCKSIZE)):
        raise BadSample(f"{name}: the header at byte {end} is broken; write the shard anew")


class _HopReader(io.RawIOBase):
    """Reads headers and hops over bodies: little where it jumps far, more where the next header is near."""

    def __init__(self, store: Store, meta: ObjectMeta) -> None:
        super().__init__()
        self._store = store
        self._meta = meta
        self._position = 0
        self._window = memoryview(b"")
        self._start = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._meta.size}[whence]
        self._position = origin + offset
        return self._position

    def readinto(self, buffer: WritableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        wanted = min(len(view), self._meta.size - self._position)
        if wanted <= 0:
            return 0
        inside = self._position - self._start
        if not 0 <= inside < len(self._window):
            near = abs(inside - len(self._window)) < _NEAR_BYTES
            size = max(wanted, 8 * _NEAR_BYTES if near else _HOP_BYTES)
            self._start = self._position
            self._window = self._store.get(
                self._meta.key, start=self._start, stop=self._start + size, if_match=self._meta.etag
            )
            inside = 0
        got = min(wanted, len(self._window) - inside)
        view[:got] = self._window[inside : inside + got]
        self._position += got
        return got
