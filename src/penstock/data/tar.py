"""Streams samples out of tar shards, in WebDataset's layout: `000.jpg` and `000.cls` are one sample."""

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypedDict, Unpack

from penstock.config import StoreConfig
from penstock.data.bad import handle
from penstock.data.elastic import ElasticDataset, StreamOptions
from penstock.data.iterable import Transform
from penstock.data.lanes import Lane
from penstock.data.objects import Objects, Url, from_index, from_objects, from_prefix
from penstock.data.order import BlockShuffle, Shuffle
from penstock.data.sample import Sample
from penstock.data.tar_index import Shard, TarIndex, scan
from penstock.errors import NotFound
from penstock.listing import Index
from penstock.store import Store
from penstock.transfer.ahead import Task, read_ahead

__all__ = ["TarDataset", "TarOptions"]

_READ_BYTES = 4 << 20


class TarOptions(StreamOptions, TypedDict, total=False):
    """What a `TarDataset` takes beside the options of all streams."""

    transform: Transform | None
    """Takes a `Sample` whose data is a dict from extension to bytes, and returns anything."""
    shuffle_buffer: int
    """With `shuffle`, shards come in random order and samples are mixed among this many neighbours. Default 4096."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Samples that lie one after the other in a shard, read together."""

    shard: Shard
    first: int
    last: int

    @property
    def start(self) -> int:
        return self.shard.members(self.first)[0].start

    @property
    def stop(self) -> int:
        return self.shard.members(self.last)[-1].stop


class TarDataset(ElasticDataset[Any]):
    """Samples of tar shards, shared evenly by ranks and workers, sample by sample.

    A sample is `Sample(key, {"jpg": …, "cls": …})`. The table of contents is read from the tars' headers when the
    dataset is made; `contents=` keeps it for the next time. Neighbours in a shard are read together, in one request.
    """

    def __init__(
        self,
        objects: Objects,
        contents: TarIndex,
        *,
        transform: Transform | None = None,
        shuffle_buffer: int = 4096,
        **options: Unpack[StreamOptions],
    ) -> None:
        super().__init__(**options)
        if shuffle_buffer < 1:
            raise ValueError(f"shuffle_buffer must be at least 1, got {shuffle_buffer}")
        self.transform = transform
        self.shuffle_buffer = shuffle_buffer
        self._objects = objects
        self._contents = contents

    @classmethod
    def from_prefix(
        cls,
        url: Url,
        *,
        config: StoreConfig | None = None,
        suffix: str | tuple[str, ...] | None = ".tar",
        contents: Url | None = None,
        **options: Unpack[TarOptions],
    ) -> Self:
        """Every tar below the URL. Lists once, on rank 0; a worker never lists.

        `contents` is where the table of contents is kept: read from there, or written there when it is missing.
        """
        objects = from_prefix(url, config, suffix)
        return cls(objects, _contents(objects, contents, config), **options)

    @classmethod
    def from_objects(
        cls,
        urls: Iterable[Url],
        *,
        config: StoreConfig | None = None,
        contents: Url | None = None,
        **options: Unpack[TarOptions],
    ) -> Self:
        """The tars at these URLs."""
        objects = from_objects(urls, config)
        return cls(objects, _contents(objects, contents, config), **options)

    @classmethod
    def from_index(
        cls,
        index: Index,
        *,
        config: StoreConfig | None = None,
        contents: Url | None = None,
        **options: Unpack[TarOptions],
    ) -> Self:
        """The tars of an index, at the versions that were listed."""
        objects = from_index(index, config)
        return cls(objects, _contents(objects, contents, config), **options)

    def _total(self) -> int:
        return len(self._contents)

    def _order_name(self) -> str:
        return f"shuffled by {self.shuffle_buffer}" if self.shuffle else "in order"

    def _read(self, lane: Lane, *, skip: int, epoch: int) -> Iterator[tuple[Any, int]]:
        store = self._objects.store
        asked: deque[_Piece] = deque()

        def tasks() -> Iterator[Task[memoryview]]:
            for piece in _pieces(self._samples(lane, skip, epoch)):
                asked.append(piece)
                yield Task(piece.stop - piece.start, partial(_read_piece, store, piece))

        for job in read_ahead(store, tasks()):
            piece = asked.popleft()
            for sample in range(piece.first, piece.last + 1):
                key = f"{piece.shard.meta.key}/{piece.shard.stem(sample)}"
                try:
                    data = job.result()
                    value: Any = Sample(key, _members(piece, sample, data))  # type: ignore[arg-type]  # a dict, here
                    value = value if self.transform is None else self.transform(value)
                except Exception as exc:  # noqa: BLE001 - a bad sample is the user's to judge
                    value = handle(self.on_error, store.url, key, exc)
                yield value, 1

    def _samples(self, lane: Lane, skip: int, epoch: int) -> Iterator[tuple[Shard, int]]:
        positions = lane.positions(skip=skip)
        if not self.shuffle:
            yield from map(self._contents.find, positions)
            return
        shards = Shuffle(len(self._contents.shards), seed=self.seed, epoch=epoch)
        contents = self._contents.reordered([shards(i) for i in range(len(shards))])
        mixed = BlockShuffle(len(contents), block=self.shuffle_buffer, seed=self.seed, epoch=epoch)
        yield from (contents.find(mixed(position)) for position in positions)


def _contents(objects: Objects, url: Url | None, config: StoreConfig | None) -> TarIndex:
    metas = objects.metas()
    if url is None:
        return scan(objects.store, metas)
    with suppress(NotFound):  # nothing was kept yet
        kept = TarIndex.load(url, config=config)
        known = [(shard.meta.key, shard.meta.etag) for shard in kept.shards]
        if known == [(meta.key, meta.etag) for meta in metas]:
            return kept
    contents = scan(objects.store, metas)
    contents.save(url, config=config)
    return contents


def _pieces(samples: Iterator[tuple[Shard, int]]) -> Iterator[_Piece]:
    """Joins samples that follow one another in a shard, up to a few MiB."""
    held: _Piece | None = None
    for shard, sample in samples:
        if held is not None:
            follows = held.shard is shard and sample == held.last + 1
            if follows and shard.members(sample)[-1].stop - held.start <= _READ_BYTES:
                held = _Piece(shard, held.first, sample)
                continue
            yield held
        held = _Piece(shard, sample, sample)
    if held is not None:
        yield held


def _read_piece(store: Store, piece: _Piece) -> memoryview:
    meta = piece.shard.meta
    return store.get(meta.key, start=piece.start, stop=piece.stop, if_match=meta.etag)


def _members(piece: _Piece, sample: int, data: memoryview) -> dict[str, bytes]:
    start = piece.start
    return {
        member.extension: bytes(data[member.start - start : member.stop - start])
        for member in piece.shard.members(sample)
    }
