"""What a listing does under the clock. Apart from the epochs, so that its processes need no torch."""

from collections.abc import Mapping, Sequence
from typing import Any

from crc32c import crc32c

from penstock_bench.micro.listers import LISTERS, Lister
from penstock_bench.micro.probe import Task
from penstock_bench.micro.subjects.protocol import Target
from penstock_bench.micro.workloads import WrongBytes

__all__ = ["ListKeys", "checksum_of_keys", "list_keys"]


def list_keys(arguments: Mapping[str, Any]) -> Task:
    """Lists `prefix`, `rounds` times over, after one listing of `warm_prefix`."""
    lister = LISTERS[arguments["adapter"]](Target(**arguments["target"]))
    return ListKeys(
        lister,
        arguments["prefix"],
        warm_prefix=arguments["warm_prefix"],
        rounds=arguments["rounds"],
        keys=arguments["keys"],
        checksum=arguments["checksum"],
    )


class ListKeys:
    """Listings one after another; the last is compared, key by key."""

    def __init__(
        self,
        lister: Lister,
        prefix: str,
        *,
        warm_prefix: str,
        rounds: int,
        keys: int,
        checksum: int,
    ) -> None:
        self._lister = lister
        self._prefix = prefix
        self._warm_prefix = warm_prefix
        self._rounds = rounds
        self._keys = keys
        self._checksum = checksum
        self._found: Any = None

    def warm_up(self) -> None:
        self._lister.find(self._warm_prefix)

    def run(self) -> None:
        for _ in range(self._rounds):
            self._found = None
            self._found = self._lister.find(self._prefix)

    def check(self) -> None:
        keys = self._lister.keys(self._found)
        if len(keys) != self._keys or checksum_of_keys(keys) != self._checksum:
            raise WrongBytes(f"{self._prefix}: {len(keys)} keys, not the {self._keys} stored")

    def close(self) -> None:
        """Threads and connections end with the process."""


def checksum_of_keys(keys: Sequence[str]) -> int:
    """Of the keys in their order."""
    checksum: int = crc32c("\n".join(keys).encode())
    return checksum
