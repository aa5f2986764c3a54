"""Makes what datasets read: small tar shards and Parquet files, in memory."""

import io
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq


def tar_of(members, **options):
    """A tar of (name, bytes)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", **options) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def parquet_of(columns, *, group_rows=1 << 20, **options):
    """A Parquet file of columns, in row groups of so many rows."""
    out = io.BytesIO()
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    pq.write_table(table, out, row_group_size=group_rows, **options)
    return out.getvalue()
