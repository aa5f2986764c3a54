"""This package: `fetch_many`, `fetch` into the caller's memory, `open_writer`."""

from collections.abc import Sequence

import penstock
from penstock.transfer import fetch, fetch_many
from penstock_bench.micro.subjects.protocol import Take, Target

__all__ = ["Penstock"]

_PIECE_BYTES = 8 << 20


class Penstock:
    """With the configuration it comes with."""

    def __init__(self, target: Target, keys: Sequence[str]) -> None:
        self._target = target
        self._keys = keys
        self._config = penstock.StoreConfig(
            endpoint=target.endpoint,
            region=target.region,
            credentials=penstock.AccessKey(target.access_key_id, target.secret_access_key),
        )
        self._store = penstock.open_store(f"s3://{target.bucket}", self._config)

    def read_many(self, count: int, take: Take) -> None:
        for index, item in enumerate(fetch_many(self._store, self._keys[:count])):
            take(index, item.data)

    def read_into(self, key: str, buffer: memoryview) -> None:
        fetch(self._store, key, buffer)

    def write(self, key: str, source: bytes) -> None:
        view = memoryview(source)
        with penstock.open_writer(self._target.url(key), config=self._config) as file:
            for start in range(0, len(view), _PIECE_BYTES):
                file.write(view[start : start + _PIECE_BYTES])

    def close(self) -> None:
        """Holds nothing that outlives its calls."""
