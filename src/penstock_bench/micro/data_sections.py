"""How a row of `data` is sampled, and how its requests are counted."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from penstock_bench.micro.data_objects import Samples
from penstock_bench.micro.data_rows import FEW, FLAT, FOLDERS, samples_of
from penstock_bench.micro.list_server import (
    FEW_PREFIX,
    FLAT_PREFIX,
    FOLDERS_PREFIX,
    keys_of,
)
from penstock_bench.micro.listing_workloads import checksum_of_keys
from penstock_bench.micro.measure import sample
from penstock_bench.micro.nursery import sample_forked
from penstock_bench.micro.probe import Job, Reading
from penstock_bench.micro.report import Row
from penstock_bench.micro.sections import requests_of
from penstock_bench.micro.servers import Served, behind_proxy

__all__ = ["Epochs", "Listings"]

_KEEP_EVERY = 64
_PREFIXES = {FOLDERS: FOLDERS_PREFIX, FLAT: FLAT_PREFIX, FEW: FEW_PREFIX}


class Epochs:
    """Objects of one size. `served` is what is timed, `origin` what lies behind its latency.

    `counted` remembers what each dataset asks for: neither latency nor the number of workers changes it.
    """

    def __init__(
        self,
        samples: Samples,
        served: Served,
        origin: Served,
        *,
        epoch_samples: int,
        count_samples: int,
        counted: dict[str, Mapping[str, int]],
    ) -> None:
        self._samples = samples
        self._served = served
        self._origin = origin
        self._epoch_samples = epoch_samples
        self._count_samples = count_samples
        self._counted = counted

    @property
    def server(self) -> str:
        return self._served.description

    def units(self, row: Row) -> int:
        """How many samples an epoch of this row has."""
        return samples_of(row, self._epoch_samples, latency=self._served is not self._origin)

    def sample(self, row: Row, _: int) -> Reading:
        return self._run(row, self._served, self.units(row), keep_every=_KEEP_EVERY, warm_up=True)

    def count(self, row: Row) -> Mapping[str, int]:
        """Compares all the samples with what is stored."""
        name = f"{row.adapter}, {row.options.get('threads')}"
        if name not in self._counted:
            with behind_proxy(self._origin, latency_ms=0) as counted:
                self._run(row, counted, self._count_samples, keep_every=1, warm_up=False)
                self._counted[name] = requests_of(counted)
        return self._counted[name]

    def _run(
        self, row: Row, served: Served, count: int, *, keep_every: int, warm_up: bool
    ) -> Reading:
        in_shards = row.group.startswith("tar")
        keys, checksums = (self._samples.tar_epoch if in_shards else self._samples.epoch)(count)
        options = dict(row.options)
        arguments: dict[str, Any] = {
            "adapter": row.adapter,
            "workers": options.pop("workers"),
            "options": options,
            "target": asdict(served.target),
            "keys": keys,
            "checksums": checksums,
            "sample_bytes": self._samples.sample_bytes,
            "keep_every": keep_every,
        }
        job = Job("penstock_bench.micro.data_workloads:epoch", arguments, warm_up, served.watch)
        env = {**served.target.env, "STORAGE_EMULATOR_HOST": served.target.endpoint}
        return sample_forked(job, env)


class Listings:
    """One bucket with many keys below two prefixes and ten below another.

    `origin` behind a proxy with `proxy_latency_ms` is as slow as `served`: how a listing is shared, and so what it
    asks for, depends on it.
    """

    def __init__(
        self, served: Served, origin: Served, *, proxy_latency_ms: float, keys: int
    ) -> None:
        self._served = served
        self._origin = origin
        self._proxy_latency_ms = proxy_latency_ms
        self._keys = keys_of(keys)

    @property
    def server(self) -> str:
        return self._served.description

    def sample(self, row: Row, _: int) -> Reading:
        return self._run(row, self._served, row.options["rounds"], warm_up=True)

    def count(self, row: Row) -> Mapping[str, int]:
        with behind_proxy(self._origin, latency_ms=self._proxy_latency_ms) as counted:
            self._run(row, counted, 1, warm_up=False)
            return requests_of(counted)

    def _run(self, row: Row, served: Served, rounds: int, *, warm_up: bool) -> Reading:
        prefix = _PREFIXES[row.group]
        keys = self._keys[prefix]
        arguments = {
            "adapter": row.adapter,
            "target": asdict(served.target),
            "prefix": prefix,
            "warm_prefix": FEW_PREFIX,
            "rounds": rounds,
            "keys": len(keys),
            "checksum": checksum_of_keys(keys),
        }
        job = Job(
            "penstock_bench.micro.listing_workloads:list_keys", arguments, warm_up, served.watch
        )
        return sample(job, served.target.env)
