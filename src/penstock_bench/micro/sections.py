"""How a row of each section is sampled, and how its requests are counted: a server, a job, a check."""

import contextlib
import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import obstore
from crc32c import crc32c

from penstock_bench.micro.measure import SampleFailed, sample
from penstock_bench.micro.objects import Objects, Stored
from penstock_bench.micro.probe import Job, Reading
from penstock_bench.micro.report import Row
from penstock_bench.micro.servers import Served, behind_proxy, seaweedfs, seaweedfs_version
from penstock_bench.micro.subjects.obstore import open_bucket
from penstock_bench.micro.subjects.protocol import Target

__all__ = ["LargeReads", "Section", "SmallReads", "Uploads"]

_WORKLOADS = "penstock_bench.micro.workloads"
_KEEP_EVERY = 16


class Section(Protocol):
    """One table's worth of samples."""

    @property
    def server(self) -> str:
        """Who answers, in words."""
        ...

    def sample(self, row: Row, repetition: int) -> Reading:
        """One timed sample."""
        ...

    def count(self, row: Row) -> Mapping[str, int]:
        """Requests by method, in a run of its own that is not timed: the proxy that counts costs CPU."""
        ...


class SmallReads:
    """Many small objects. `served` is what is timed, `origin` what lies behind its latency."""

    def __init__(self, objects: Objects, served: Served, origin: Served, warm_objects: int) -> None:
        self._served = served
        self._origin = origin
        self._warm_objects = warm_objects
        self._small = [asdict(stored) for stored in objects.small]

    @property
    def server(self) -> str:
        return self._served.description

    def sample(self, row: Row, repetition: int) -> Reading:
        """Keeps other objects for comparison in every repetition."""
        keep = {"keep_first": repetition % _KEEP_EVERY, "keep_every": _KEEP_EVERY}
        return self._run(row, self._served, keep, warm_up=True)

    def count(self, row: Row) -> Mapping[str, int]:
        """Compares all the objects, byte for byte."""
        with behind_proxy(self._origin, latency_ms=0) as counted:
            self._run(row, counted, {"keep_first": 0, "keep_every": 1}, warm_up=False)
            return requests_of(counted)

    def _run(self, row: Row, served: Served, keep: Mapping[str, int], *, warm_up: bool) -> Reading:
        arguments = {
            **arguments_for(row, served.target, [stored["key"] for stored in self._small]),
            "small": self._small,
            "warm_count": self._warm_objects,
            **keep,
        }
        job = Job(f"{_WORKLOADS}:small_reads", arguments, warm_up, served.watch)
        return sample(job, served.target.env)


class LargeReads:
    """One large object."""

    def __init__(self, objects: Objects, served: Served) -> None:
        self._objects = objects
        self._served = served

    @property
    def server(self) -> str:
        return self._served.description

    def sample(self, row: Row, _: int) -> Reading:
        return self._run(row, self._served, warm_up=True)

    def count(self, row: Row) -> Mapping[str, int]:
        with behind_proxy(self._served, latency_ms=0) as counted:
            self._run(row, counted, warm_up=False)
            return requests_of(counted)

    def _run(self, row: Row, served: Served, *, warm_up: bool) -> Reading:
        job = Job(
            f"{_WORKLOADS}:large_read",
            large_arguments(row, served.target, self._objects),
            warm_up,
            served.watch,
        )
        return sample(job, served.target.env)


class Uploads:
    """One large object, to a server of its own for each sample: none pays for what an earlier one left behind."""

    def __init__(self, objects: Objects, folder: Path) -> None:
        self._objects = objects
        self._folders = (folder / f"server-{number}" for number in itertools.count())

    @property
    def server(self) -> str:
        return f"{seaweedfs_version()}, a new one for each sample"

    def sample(self, row: Row, _: int) -> Reading:
        with self._server() as served:
            reading = self._run(row, served, warm_up=True)
            self._read_back(served.target)
            return reading

    def count(self, row: Row) -> Mapping[str, int]:
        with self._server() as served, behind_proxy(served, latency_ms=0) as counted:
            self._run(row, counted, warm_up=False)
            requests = requests_of(counted)
            self._read_back(served.target)
            return requests

    def _server(self) -> contextlib.AbstractContextManager[Served]:
        return seaweedfs(next(self._folders), self._objects.bucket)

    def _run(self, row: Row, served: Served, *, warm_up: bool) -> Reading:
        arguments = {
            **large_arguments(row, served.target, self._objects),
            "source": str(self._objects.large_path),
        }
        job = Job(f"{_WORKLOADS}:large_upload", arguments, warm_up, served.watch)
        return sample(job, served.target.env)

    def _read_back(self, target: Target) -> None:
        stored = self._objects.large
        if checksum_of(target, stored.key) != (stored.size, stored.checksum):
            raise SampleFailed(f"{stored.key}: what was uploaded is not what the source holds")


def arguments_for(row: Row, target: Target, keys: list[str]) -> dict[str, Any]:
    return {
        "adapter": row.adapter,
        "options": dict(row.options),
        "target": asdict(target),
        "keys": keys,
    }


def large_arguments(row: Row, target: Target, objects: Objects) -> dict[str, Any]:
    pair: tuple[Stored, Stored] = objects.warm, objects.large
    return {
        **arguments_for(row, target, [stored.key for stored in pair]),
        "warm": asdict(objects.warm),
        "large": asdict(objects.large),
    }


def requests_of(served: Served) -> Mapping[str, int]:
    assert served.proxy is not None
    return dict(Counter(request.method for request in served.proxy.requests))


def checksum_of(target: Target, key: str) -> tuple[int, int]:
    """Size and CRC32C of a stored object."""
    size = checksum = 0
    for chunk in obstore.get(open_bucket(target), key).stream():
        size += len(chunk)
        checksum = crc32c(chunk, checksum)
    return size, checksum
