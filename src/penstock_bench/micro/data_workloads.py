"""What `data` does under the clock: an epoch of a dataset through torch's DataLoader."""

import importlib
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from crc32c import crc32c
from torch.utils.data import DataLoader, Dataset

from penstock_bench.micro.data_objects import BATCH_SIZE
from penstock_bench.micro.datasets.protocol import Source
from penstock_bench.micro.probe import Task, restart_peak
from penstock_bench.micro.subjects.protocol import Target
from penstock_bench.micro.workloads import WrongBytes

__all__ = ["Epoch", "epoch"]

_DATASETS = "penstock_bench.micro.datasets"
_WARM_BATCHES = 8
_WARM_S = 0.3


def epoch(arguments: Mapping[str, Any]) -> Task:
    """All samples of `keys`, once, in batches; the workers and their connections are there before the clock."""
    module, _, name = arguments["adapter"].partition(":")
    make = getattr(importlib.import_module(f"{_DATASETS}.{module}"), name)
    source = Source(Target(**arguments["target"]), arguments["keys"])
    return Epoch(
        partial(make, source, **arguments["options"]),
        arguments["checksums"],
        sample_bytes=arguments["sample_bytes"],
        workers=arguments["workers"],
        keep_every=arguments["keep_every"],
    )


class Epoch:
    """One epoch through a loader whose workers stay from the warm-up on.

    The warm-up is the beginning of an epoch, broken off. Torch then throws away what was read ahead, and asks the
    workers for the first batches of the next epoch right before the clock starts: no sample is read before it.
    """

    def __init__(
        self,
        make: Callable[[], Dataset[Any]],
        checksums: Sequence[int],
        *,
        sample_bytes: int,
        workers: int,
        keep_every: int,
    ) -> None:
        self._make = make
        self._checksums = checksums
        self._sample_bytes = sample_bytes
        self._workers = workers
        self._keep_every = keep_every
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-micro-")
        self._loader: DataLoader[Any] | None = None
        self._batches: Iterator[list[bytes]] | None = None
        self._first_batch_s = 0.0
        self._count = 0
        self._wrong: int | None = None
        self._kept: list[bytes] = []

    def warm_up(self) -> None:
        began = time.perf_counter()
        self._begin()
        assert self._batches is not None
        next(self._batches)
        self._first_batch_s = time.perf_counter() - began
        read = 1
        # One from each at least, so that all of them are there.
        while read < self._workers or (
            read < _WARM_BATCHES and time.perf_counter() - began < self._first_batch_s + _WARM_S
        ):
            if next(self._batches, None) is None:
                break
            read += 1
        self._batches = None
        self._batches = iter(self._open())

    def run(self) -> None:
        if self._batches is None:
            self._begin()
        assert self._batches is not None
        for batch in self._batches:
            for data in batch:
                if len(data) != self._sample_bytes:
                    self._wrong = len(data)
                if self._count % self._keep_every == 0:
                    self._kept.append(data)
                self._count += 1

    def check(self) -> None:
        if self._wrong is not None:
            raise WrongBytes(
                f"a sample has {self._wrong} bytes, not the {self._sample_bytes} stored"
            )
        if self._count != len(self._checksums):
            raise WrongBytes(f"{self._count} samples, not the {len(self._checksums)} of an epoch")
        # Workers deal in any order. As many as are stored of each, and no other; where all are kept, exactly those.
        strange = Counter(map(crc32c, self._kept)) - Counter(self._checksums)
        if strange:
            raise WrongBytes(
                f"{strange.total()} of {len(self._kept)} samples are not what is stored"
            )

    def workers(self) -> Mapping[int, int | None]:
        baselines = {}
        for path in Path(self._folder.name).iterdir():
            text = path.read_text()
            baselines[int(path.name)] = int(text) if text else None
        return baselines

    def facts(self) -> Mapping[str, float]:
        return {"first_batch_s": self._first_batch_s}

    def close(self) -> None:
        self._batches = None
        self._loader = None
        self._folder.cleanup()

    def _begin(self) -> None:
        self._batches = iter(self._open())

    def _open(self) -> DataLoader[Any]:
        if self._loader is None:
            self._loader = DataLoader(
                self._make(),
                batch_size=BATCH_SIZE,
                num_workers=self._workers,
                multiprocessing_context="fork" if self._workers else None,
                persistent_workers=self._workers > 0,
                worker_init_fn=partial(_note_baseline, self._folder.name),
            )
        return self._loader


def _note_baseline(folder: str, _: int) -> None:
    """In a worker, before it reads anything."""
    baseline_bytes = restart_peak()
    path = Path(folder) / str(os.getpid())
    path.write_text("" if baseline_bytes is None else str(baseline_bytes))
