"""No storage at all: what a DataLoader does with bytes in its workers' memory. The limit of the loader itself."""

import http.client
from typing import Any
from urllib.parse import urlsplit

from torch.utils.data import Dataset

from penstock_bench.micro.datasets.protocol import Source

__all__ = ["map_style"]


def map_style(source: Source) -> Dataset[Any]:
    """Reads every object once, when it is made; forked workers share the memory."""
    return _Held(source)


class _Held(Dataset[Any]):
    def __init__(self, source: Source) -> None:
        address = urlsplit(source.target.endpoint)
        connection = http.client.HTTPConnection(address.hostname or "", address.port)
        self._held = {}
        for key in dict.fromkeys(source.keys):
            connection.request("GET", f"/{source.target.bucket}/{key}")
            self._held[key] = connection.getresponse().read()
        connection.close()
        self._keys = source.keys

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, index: int) -> bytes:
        return self._held[self._keys[index]]
