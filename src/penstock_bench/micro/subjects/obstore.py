"""obstore, bare: blocking calls on threads, and its own multipart upload."""

from collections.abc import Sequence

import obstore
from obstore.store import S3Store

from penstock_bench.micro.subjects.protocol import Take, Target
from penstock_bench.micro.subjects.threads import Crew

__all__ = ["Obstore", "open_bucket"]

_PART_BYTES = 16 << 20


def open_bucket(target: Target) -> S3Store:
    """A client with obstore's defaults, but for a timeout that a large part on a busy machine survives."""
    return S3Store(
        target.bucket,
        endpoint=target.endpoint,
        region=target.region,
        access_key_id=target.access_key_id,
        secret_access_key=target.secret_access_key,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True, "timeout": "300s"},
    )


class Obstore:
    """One store shared by all threads."""

    def __init__(self, target: Target, keys: Sequence[str], *, threads: int) -> None:
        self._keys = keys
        self._store = open_bucket(target)
        self._crew = Crew(threads)

    def read_many(self, count: int, take: Take) -> None:
        self._crew.each(
            enumerate(self._keys[:count]),
            lambda item: take(item[0], obstore.get(self._store, item[1]).bytes()),
        )

    def read_into(self, key: str, buffer: memoryview) -> None:
        def read_part(start: int) -> None:
            stop = min(start + _PART_BYTES, len(buffer))
            buffer[start:stop] = memoryview(
                obstore.get_range(self._store, key, start=start, end=stop)
            )

        self._crew.each(range(0, len(buffer), _PART_BYTES), read_part)

    def write(self, key: str, source: bytes) -> None:
        obstore.put(self._store, key, source, use_multipart=True, chunk_size=_PART_BYTES)

    def close(self) -> None:
        self._crew.close()
