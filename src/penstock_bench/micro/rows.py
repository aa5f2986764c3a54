"""The rows of `transfer`: every subject, in the way its users would use it best in one process."""

import os

from penstock_bench.micro.report import Row

__all__ = ["PACKAGES", "read_rows", "small_rows", "upload_rows"]

PACKAGES = ("penstock", "obstore", "s3torchconnector", "s3fs", "boto3", "bare socket")

_CORES = len(os.sched_getaffinity(0))


def small_rows(*, latency: bool, object_bytes: int) -> list[Row]:
    """Many small objects. Under latency, threads pay by the hundred; without, as many as keep the cores busy."""
    threads = 128 if latency else 8
    rows = [
        Row("penstock", "penstock", "ours", "ours:Penstock", "fetch_many"),
        _obstore(f"obstore, {threads} threads", f"get, {threads} threads", threads),
    ]
    if not latency:
        rows.append(_obstore("obstore, 1 thread", "get, one after another", 1))
    return [
        *rows,
        _s3torchconnector("s3torchconnector", "Dataset", "S3MapDataset, item by item", threads=1),
        _s3torchconnector(
            "s3torchconnector, 16 threads", "Dataset", "S3MapDataset, 16 threads", threads=16
        ),
        Row("s3fs", "s3fs", "rival", "s3fs:S3fs", "cat, batches of 256", requires=("s3fs",)),
        _boto3("get_object, 16 threads", threads=16),
        *(
            _socket("BareSocket", "recv_into", each, object_bytes=object_bytes)
            for each in ((threads,) if latency else (1, threads, 2 * threads))
        ),
    ]


def read_rows() -> list[Row]:
    """One large object."""
    threads = max(4, _CORES)
    return [
        Row("penstock", "penstock", "ours", "ours:Penstock", "fetch into a bytearray"),
        _obstore("obstore", f"get_range, 16 MiB, {threads} threads", threads),
        _s3torchconnector("s3torchconnector", "Checkpoint", "S3Checkpoint.reader().read()"),
        _s3torchconnector(
            "s3torchconnector, range reader", "RangeReader", "range_based, readinto a bytearray"
        ),
        Row("s3fs", "s3fs", "rival", "s3fs:S3fs", "cat_file", requires=("s3fs",)),
        _boto3("download_fileobj", threads=10),
        # How many threads reach the most differs from machine to machine; the best of these is the limit.
        *(_socket("BareSocket", "recv_into, 16 MiB", threads * more) for more in (1, 2, 4)),
    ]


def upload_rows() -> list[Row]:
    """One large object, the other way."""
    threads = max(4, _CORES)
    return [
        Row("penstock", "penstock", "ours", "ours:Penstock", "open_writer, 8 MiB writes"),
        _obstore("obstore", "put, 16 MiB parts", 1),
        _s3torchconnector("s3torchconnector", "Checkpoint", "S3Checkpoint.writer, 8 MiB writes"),
        Row("s3fs", "s3fs", "rival", "s3fs:S3fs", "pipe_file", requires=("s3fs",)),
        _boto3("upload_fileobj", threads=10),
        *(
            _socket(
                "BareSocketWriter", "sendall, 16 MiB parts", threads * more, requires=("boto3",)
            )
            for more in (1, 2)
        ),
    ]


def _obstore(name: str, how: str, threads: int) -> Row:
    return Row(name, "obstore", "rival", "obstore:Obstore", how, {"threads": threads})


def _s3torchconnector(name: str, adapter: str, how: str, threads: int | None = None) -> Row:
    package = "s3torchconnector"
    options = {} if threads is None else {"threads": threads}
    return Row(name, package, "rival", f"{package}:{adapter}", how, options, (package,))


def _boto3(how: str, *, threads: int) -> Row:
    return Row("boto3", "boto3", "rival", "boto3:Boto3", how, {"threads": threads}, ("boto3",))


def _socket(
    adapter: str,
    how: str,
    threads: int,
    *,
    object_bytes: int | None = None,
    requires: tuple[str, ...] = (),
) -> Row:
    options = {"threads": threads}
    if object_bytes is not None:
        options["object_bytes"] = object_bytes
    name = f"bare socket, {threads} thread{'s' if threads > 1 else ''}"
    return Row(name, "bare socket", "limit", f"bare_socket:{adapter}", how, options, requires)
