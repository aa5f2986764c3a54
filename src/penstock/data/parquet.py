"""Streams batches of rows out of Parquet files, shared by row group and row, not by file."""

import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, Literal, Self, TypedDict, Unpack

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.config import StoreConfig
from penstock.data.bad import SKIPPED, handle
from penstock.data.elastic import ElasticDataset, StreamOptions
from penstock.data.iterable import Transform
from penstock.data.lanes import Lane
from penstock.data.objects import Objects, Url, from_index, from_objects, from_prefix
from penstock.data.order import Shuffle
from penstock.data.parquet_file import TAIL_BYTES, Pieces, Tail
from penstock.data.sample import Sample
from penstock.errors import BadSample, ConfigError
from penstock.listing import Index
from penstock.store import ObjectMeta, Store
from penstock.transfer import ByteRange, Target, scatter
from penstock.transfer.ahead import Task, read_ahead
from penstock.transfer.plan import plan_reads

__all__ = ["ParquetDataset", "ParquetOptions"]

_FORMATS = ("dict", "arrow", "torch")


class ParquetOptions(StreamOptions, TypedDict, total=False):
    """What a `ParquetDataset` takes beside the options of all streams."""

    columns: Sequence[str] | None
    """Which columns to read; only their bytes are fetched. Default: all."""
    batch_rows: int
    """Rows of a batch. Default 512."""
    format: Literal["dict", "arrow", "torch"]
    """`dict` of lists (default), an `arrow` table, or `torch`: a dict with tensors for numeric columns."""
    transform: Transform | None
    """Takes a `Sample` whose data is the batch, and returns anything."""


@dataclass(frozen=True, slots=True)
class _Group:
    """A row group: its file, its number there, its rows and the byte ranges of the wanted columns."""

    meta: ObjectMeta
    number: int
    rows: int
    ranges: tuple[ByteRange, ...]
    file: pq.FileMetaData

    @property
    def name(self) -> str:
        return f"{self.meta.key}#{self.number}"

    @property
    def salt(self) -> int:
        """A number of its own, the same in every process."""
        return zlib.crc32(self.name.encode())

    @property
    def size(self) -> int:
        return sum(len(span) for span in self.ranges)


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Rows of a group, in the order of the epoch: from `first` up to `last`."""

    group: _Group
    first: int
    last: int


class ParquetDataset(ElasticDataset[Any]):
    """Batches of `batch_rows` rows, `Sample(key, batch)`, where the key names the row group of the first row.

    Ranks and workers share rows, so their number is not limited by that of the files. Only the wanted columns are
    read, their byte ranges joined. Use `batch_size=None` in a loader: the batches are made here.
    """

    makes_batches = True

    def __init__(
        self,
        objects: Objects,
        *,
        columns: Sequence[str] | None = None,
        batch_rows: int = 512,
        format: Literal["dict", "arrow", "torch"] = "dict",  # noqa: A002 - the word users would try
        transform: Transform | None = None,
        **options: Unpack[StreamOptions],
    ) -> None:
        if batch_rows < 1:
            raise ValueError(f"batch_rows must be at least 1, got {batch_rows}")
        if format not in _FORMATS:
            raise ValueError(f"format must be one of {', '.join(_FORMATS)}, got {format!r}")
        options["batch_size"] = batch_rows
        super().__init__(**options)
        self.columns = columns
        self.batch_rows = batch_rows
        self.format = format
        self.transform = transform
        self._objects = objects
        self._groups = _read_footers(objects, columns)
        self._rows = sum(group.rows for group in self._groups)

    @classmethod
    def from_prefix(
        cls,
        url: Url,
        *,
        config: StoreConfig | None = None,
        suffix: str | tuple[str, ...] | None = ".parquet",
        **options: Unpack[ParquetOptions],
    ) -> Self:
        """Every Parquet file below the URL. Lists once, on rank 0, and reads every footer."""
        return cls(from_prefix(url, config, suffix), **options)

    @classmethod
    def from_objects(
        cls,
        urls: Iterable[Url],
        *,
        config: StoreConfig | None = None,
        **options: Unpack[ParquetOptions],
    ) -> Self:
        """The Parquet files at these URLs."""
        return cls(from_objects(urls, config), **options)

    @classmethod
    def from_index(
        cls, index: Index, *, config: StoreConfig | None = None, **options: Unpack[ParquetOptions]
    ) -> Self:
        """The Parquet files of an index, at the versions that were listed."""
        return cls(from_index(index, config), **options)

    def __len__(self) -> int:
        """How many batches every rank gets from here to the end of the epoch."""
        return (super().__len__() + self.batch_rows - 1) // self.batch_rows

    def _total(self) -> int:
        return self._rows

    def _read(self, lane: Lane, *, skip: int, epoch: int) -> Iterator[tuple[Any, int]]:
        """A batch is `batch_rows` positions, whatever became of the rows there: so the position stays exact."""
        held: list[pa.Table] = []
        covered = 0
        name = ""
        for stretch, table in self._tables(lane, skip, epoch):
            at, size = 0, stretch.last - stretch.first
            while at < size:
                name = name if covered else stretch.group.name
                taken = min(size - at, self.batch_rows - covered)
                if table is not SKIPPED:
                    held.append(table.slice(at, taken))
                at, covered = at + taken, covered + taken
                if covered == self.batch_rows:
                    yield self._batch(name, held), covered
                    held, covered = [], 0
        if covered:
            yield self._batch(name, held), covered

    def _tables(self, lane: Lane, skip: int, epoch: int) -> Iterator[tuple[_Stretch, Any]]:
        store = self._objects.store
        plan = list(self._stretches(lane, skip, epoch))
        tasks = (
            Task(stretch.group.size, partial(_read_group, store, stretch.group, self.columns))
            for stretch in plan
        )
        for stretch, job in zip(plan, read_ahead(store, tasks), strict=True):
            try:
                table = job.result()
                if self.shuffle:
                    mixed = Shuffle(
                        stretch.group.rows, seed=self.seed, epoch=epoch, salt=stretch.group.salt
                    )
                    table = table.take([mixed(row) for row in range(stretch.first, stretch.last)])
                else:
                    table = table.slice(stretch.first, stretch.last - stretch.first)
            except Exception as exc:
                table = handle(self.on_error, store.url, stretch.group.name, exc)
                if table is not SKIPPED and not isinstance(table, pa.Table):
                    raise ConfigError(
                        f"{stretch.group.name}: on_error returned a {type(table).__name__} for the rows of a row "
                        "group; return a pyarrow.Table, or penstock.data.SKIPPED"
                    ) from exc
            yield stretch, table

    def _stretches(self, lane: Lane, skip: int, epoch: int) -> Iterator[_Stretch]:
        """The lane's rows, group by group."""
        groups = self._groups
        if self.shuffle:
            order = Shuffle(len(groups), seed=self.seed, epoch=epoch)
            groups = [groups[order(i)] for i in range(len(groups))]
        ends = list(accumulate(group.rows for group in groups))
        for start, stop in lane.after(skip):
            number = bisect_right(ends, start)
            at = start
            while at < stop:
                group = groups[number]
                begin = ends[number] - group.rows
                last = min(stop, ends[number])
                if last > at:
                    yield _Stretch(group, at - begin, last - begin)
                at, number = last, number + 1

    def _batch(self, name: str, tables: Sequence[pa.Table]) -> Any:
        if not tables:
            return SKIPPED
        try:
            sample = Sample(name, _convert(pa.concat_tables(tables), self.format))
            return sample if self.transform is None else self.transform(sample)
        except Exception as exc:  # noqa: BLE001 - a bad batch is the user's to judge
            return handle(self.on_error, self._objects.store.url, name, exc)


def _convert(table: pa.Table, form: str) -> Any:
    if form == "arrow":
        return table
    if form == "dict":
        return table.to_pydict()
    import torch

    columns: dict[str, Any] = {}
    for name in table.column_names:
        column = table.column(name)
        numeric = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
        if numeric and not column.null_count:
            columns[name] = torch.from_numpy(column.to_numpy().copy())
        else:
            columns[name] = column.to_pylist()
    return columns


def _read_footers(objects: Objects, columns: Sequence[str] | None) -> list[_Group]:
    tasks = (
        Task(TAIL_BYTES, partial(_groups_of, objects.store, meta, columns))
        for meta in objects.metas()
    )
    return [group for job in read_ahead(objects.store, tasks) for group in job.result()]


def _groups_of(store: Store, meta: ObjectMeta, columns: Sequence[str] | None) -> list[_Group]:
    name = f"{store.url.rstrip('/')}/{meta.key}"
    try:
        file = pq.read_metadata(Tail(store, meta))
    except pa.ArrowException as exc:
        raise BadSample(
            f"{name}: not a Parquet file ({exc}); leave it out with suffix='.parquet'"
        ) from exc
    paths = [column.path for column in file.schema]
    for column in columns or ():
        if not any(_is_of(path, column) for path in paths):
            there = ", ".join(file.schema.to_arrow_schema().names)
            raise ConfigError(f"{name}: no column {column!r}; there are {there}")
    wanted = [
        number
        for number, path in enumerate(paths)
        if columns is None or any(_is_of(path, column) for column in columns)
    ]
    groups = []
    for number in range(file.num_row_groups):
        group = file.row_group(number)
        spans = tuple(_span(group.column(i)) for i in wanted)
        groups.append(_Group(meta, number, group.num_rows, spans, file))
    return groups


def _is_of(path: str, column: str) -> bool:
    """Whether a leaf of the schema belongs to a column, which may be nested."""
    return path == column or path.startswith(f"{column}.")


def _span(column: Any) -> ByteRange:
    dictionary = column.dictionary_page_offset
    start = (
        column.data_page_offset if dictionary is None else min(dictionary, column.data_page_offset)
    )
    return ByteRange(start, start + column.total_compressed_size)


def _read_group(store: Store, group: _Group, columns: Sequence[str] | None) -> pa.Table:
    transfer = store.config.transfer
    reads = plan_reads(group.ranges, max_gap_bytes=transfer.max_gap_bytes, max_read_bytes=1 << 62)
    buffers = [(read.span.start, bytearray(len(read.span))) for read in reads]
    targets = [Target(start, memoryview(buffer)) for start, buffer in buffers]
    scatter(store, group.meta.key, targets, etag=group.meta.etag)
    file = pq.ParquetFile(Pieces(group.meta.size, buffers), metadata=group.file, pre_buffer=False)
    return file.read_row_group(
        group.number, columns=list(columns) if columns is not None else None, use_threads=False
    )
