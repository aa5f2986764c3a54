"""`penstock.DataLoader`: torch's loader with the common choices made, an exact position, and progress on request."""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

import torch
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

from penstock.data.elastic import ElasticDataset
from penstock.data.lanes import Even
from penstock.data.sampler import ElasticSampler

__all__ = ["DataLoader"]

_MOST_WORKERS = 4


class DataLoader(TorchDataLoader[Any]):
    """A loader for penstock's datasets, and for any other of map style.

    It deals evenly to ranks, moves to the next epoch by itself, and `state_dict()` is exact in the middle of one:
    counted by the batches you have received, whatever the workers have read ahead, and good for any other number of
    ranks and workers. `num_workers=None` takes one worker for each core but one, four at most: one keeps hundreds of
    reads in flight, so more are needed only for decoding. Memory is pinned where there is CUDA.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int = 1,
        *,
        shuffle: bool = False,
        seed: int = 0,
        even: Even = "pad",
        num_workers: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool | None = None,
        multiprocessing_context: str | None = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        worker_init_fn: Callable[[int], None] | None = None,
        timeout: float = 0,
        progress: bool = False,
    ) -> None:
        workers = _workers() if num_workers is None else num_workers
        self._sampler: ElasticSampler | None = None
        self._stream: ElasticDataset[Any] | None = None
        self._progress = progress
        self._yielded = 0
        batching: dict[str, Any]
        if isinstance(dataset, ElasticDataset):
            if shuffle:
                raise ValueError(
                    "a streaming dataset shuffles itself; pass shuffle=True to the dataset instead"
                )
            self._stream = dataset
            own_batches = dataset.makes_batches
            if not own_batches:
                dataset.batch_size = batch_size
            batching = {"batch_size": None if own_batches else batch_size}
        else:
            self._sampler = ElasticSampler(
                len(dataset),  # type: ignore[arg-type]  # a map-style dataset has a length
                batch_size,
                shuffle=shuffle,
                seed=seed,
                even=even,
            )
            batching = {"batch_sampler": self._sampler}
        super().__init__(
            dataset,
            num_workers=workers,
            collate_fn=collate_fn,
            pin_memory=torch.cuda.is_available() if pin_memory is None else pin_memory,
            multiprocessing_context=(multiprocessing_context or _start_method())
            if workers
            else None,
            prefetch_factor=prefetch_factor if workers else None,
            persistent_workers=persistent_workers and workers > 0,
            worker_init_fn=worker_init_fn,
            timeout=timeout,
            **batching,
        )

    @property
    def epoch(self) -> int:
        """The epoch that is going on, or comes next."""
        return self._source.epoch

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch of the next iteration; without it, each takes the next one, a broken-off one too."""
        self._source.set_epoch(epoch)
        self._yielded = 0

    def __len__(self) -> int:
        """Batches of the epoch, the same on every rank. Those before a resume count too."""
        return self._source.batches_behind + self._left()

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch promises its private iterator
        if self._yielded:
            # The loop before this one did not ask for the end: it was broken off, or knew the length.
            self.set_epoch(self.epoch + 1)
        return self._batches()

    def _batches(self) -> Iterator[Any]:
        epoch = self.epoch
        behind, total = self._source.batches_behind, len(self)
        with _Bar(f"epoch {epoch}", behind, total) if self._progress else _NoBar() as bar:
            for batch in super().__iter__():
                self._yielded += 1
                bar.advance()
                yield batch
        self.set_epoch(epoch + 1)

    def state_dict(self) -> dict[str, Any]:
        """Where the training loop stands, to be kept in its checkpoint. After the last batch: the next epoch."""
        if self._yielded and self._yielded >= self._left():
            return self._source.state_at_start(self.epoch + 1)
        if self._sampler is not None:
            return self._sampler.state_after(self._yielded)
        assert self._stream is not None
        return self._stream.state_after(self._yielded, workers=self.num_workers)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration goes on from there. With persistent workers of a stream, before the first one."""
        started = getattr(self, "_iterator", None) is not None
        if self._stream is not None and self.persistent_workers and started:
            raise ValueError(
                "persistent workers cannot be told a new position; make a new loader, or load it first"
            )
        self._source.load_state_dict(state)
        self._yielded = 0

    def _left(self) -> int:
        """Batches from where the epoch was begun, or gone on with, to its end."""
        if self._sampler is not None:
            return len(self._sampler)
        assert self._stream is not None
        return self._stream.batches(workers=self.num_workers)

    @property
    def _source(self) -> ElasticSampler | ElasticDataset[Any]:
        source = self._sampler or self._stream
        assert source is not None
        return source


def _workers() -> int:
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return max(1, min(_MOST_WORKERS, cores - 1))


def _start_method() -> str | None:
    """Fork where the platform has it: it is quick, takes lambdas, and is safe with penstock's stores.

    Not beside CUDA in use, whose state does not survive it.
    """
    if "fork" not in multiprocessing.get_all_start_methods():
        return None
    return "forkserver" if _cuda_in_use() else "fork"


def _cuda_in_use() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]  # torch's


class _Bar:
    """A progress bar: batches, share, rate and what is left."""

    def __init__(self, name: str, behind: int, total: int) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TaskProgressColumn(show_speed=True),
            TimeRemainingColumn(),
        )
        self._task = self._progress.add_task(name, completed=behind, total=total)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def advance(self) -> None:
        self._progress.advance(self._task)


class _NoBar:
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def advance(self) -> None: ...
