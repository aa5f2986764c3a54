"""An index as a file: a Parquet or Arrow IPC table with a version, through any store."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.config import StoreConfig
from penstock.errors import ConfigError, IntegrityError, Unsupported
from penstock.listing.columns import Strings
from penstock.store import open_object

if TYPE_CHECKING:
    from penstock.listing.index import Index

__all__ = ["check", "load", "save"]

_VERSION = b"1"
_VERSION_KEY = b"penstock.index.version"
_URL_KEY = b"penstock.index.url"


def check(url: str | os.PathLike[str]) -> None:
    """Raises before a long listing what `save` would raise after it."""
    _pyarrow(url)
    _format(url)
    open_object(url)


def save(index: "Index", url: str | os.PathLike[str], config: StoreConfig | None) -> None:
    """Writes the index as one object."""
    pa = _pyarrow(url)
    write, _ = _format(url)
    table = pa.table(
        {
            "key": _to_arrow(pa, index.keys),
            "size": pa.Array.from_buffers(
                pa.uint64(), len(index), [None, pa.py_buffer(bytes(index.sizes))]
            ),
            "etag": _to_arrow(pa, index.etags),
        }
    )
    metadata = {_VERSION_KEY: _VERSION, _URL_KEY: index.url.encode()}
    sink = pa.BufferOutputStream()
    write(table.replace_schema_metadata(metadata), sink)
    store, key = open_object(url, config)
    store.put(key, sink.getvalue())


def load(
    url: str | os.PathLike[str], config: StoreConfig | None
) -> tuple[str, Strings, memoryview, Strings]:
    """The index's URL and columns."""
    pa = _pyarrow(url)
    _, read = _format(url)
    store, key = open_object(url, config)
    try:
        table = read(pa.BufferReader(pa.py_buffer(store.get(key))))
    except pa.ArrowInvalid as exc:
        raise IntegrityError(f"{url}: cannot be read ({exc}); list and save it again") from exc
    metadata = table.schema.metadata or {}
    version = metadata.get(_VERSION_KEY)
    if version is None:
        raise Unsupported(f"{url}: is a table but no index; save one with Index.save")
    if version != _VERSION:
        raise Unsupported(
            f"{url}: is an index of version {version.decode()}, and this Penstock knows version {_VERSION.decode()}; "
            "upgrade penstock, or list and save it again"
        )
    sizes = table["size"].cast(pa.uint64()).combine_chunks()
    return (
        metadata[_URL_KEY].decode(),
        _from_arrow(pa, table["key"]),
        memoryview(_bytes_of(sizes.buffers()[1], 8 * sizes.offset, 8 * len(sizes))).cast("Q"),
        _from_arrow(pa, table["etag"]),
    )


def _pyarrow(url: str | os.PathLike[str]) -> Any:
    try:
        import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]  # not installed everywhere
    except ImportError as exc:
        raise ConfigError(
            f"{os.fspath(url)}: an index file needs pyarrow; pip install 'penstock[parquet]'"
        ) from exc
    return pa


def _format(url: str | os.PathLike[str]) -> tuple[Callable[..., None], Callable[[Any], Any]]:
    """What writes and reads a table in the format that the URL's ending names."""
    name = os.fspath(url)
    if name.endswith(".parquet"):
        from pyarrow import parquet

        # Keys are sorted, so each shares most of its bytes with the one before.
        return lambda table, sink: parquet.write_table(
            table,
            sink,
            compression="zstd",
            use_dictionary=False,
            column_encoding={"key": "DELTA_BYTE_ARRAY"},
        ), parquet.read_table
    if name.endswith(".arrow"):
        from pyarrow import ipc

        def write(table: Any, sink: Any) -> None:
            with ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)

        return write, lambda source: ipc.open_file(source).read_all()
    raise ConfigError(f"{name}: an index file is named .parquet or .arrow; rename it")


def _to_arrow(pa: Any, strings: Strings) -> Any:
    bounds = strings.bounds if strings.base == 0 else Strings.of(strings).bounds
    buffers = [None, pa.py_buffer(bytes(bounds)), pa.py_buffer(strings.data)]
    return pa.Array.from_buffers(pa.large_utf8(), len(strings), buffers)


def _from_arrow(pa: Any, column: Any) -> Strings:
    strings = column.cast(pa.large_utf8()).fill_null("").combine_chunks()
    _, bounds, data = strings.buffers()
    view = memoryview(_bytes_of(bounds, 8 * strings.offset, 8 * (len(strings) + 1)) or bytes(8))
    return Strings(data.to_pybytes() if data is not None else b"", view.cast("Q"))


def _bytes_of(buffer: Any, start: int, size: int) -> bytes:
    """A copy, so that the file's other columns can go."""
    return b"" if buffer is None else buffer.slice(start, size).to_pybytes()
