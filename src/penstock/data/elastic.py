"""What all streaming datasets share: lanes, epochs, an exact position, and going on from it anywhere."""

from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypedDict, TypeVar, Unpack

import torch
from torch.utils.data import IterableDataset as TorchIterableDataset

from penstock.data.bad import SKIPPED, OnError, check_on_error
from penstock.data.lanes import (
    Even,
    Lane,
    Leg,
    Place,
    batches_behind,
    batches_per_rank,
    check_even,
    lane_of,
    remaining,
    worker_progress,
)
from penstock.data.place import known_rank, place_here
from penstock.data.state import Position, Run
from penstock.errors import BadSample

__all__ = ["ElasticDataset", "StreamOptions"]

_T_co = TypeVar("_T_co", covariant=True)


class StreamOptions(TypedDict, total=False):
    """What all streaming datasets take, by keyword."""

    shuffle: bool
    """Visit the samples in an order that depends on `seed` and epoch alone. Default: as listed."""
    seed: int
    """Default 0."""
    even: Even
    """What ranks do about a rest: `pad` (default) repeats samples, `drop` leaves some out, `error` refuses."""
    batch_size: int
    """How many samples the loader takes from a worker at a time; `penstock.DataLoader` sets it. Default 1."""
    on_error: OnError
    """`raise` (default), `skip`, or a function of key and error that returns a substitute. Another sample comes in
    the place of one that is skipped, so that ranks stay even."""
    rank: tuple[int, int] | None
    """Rank and number of ranks. Default: of the process group, or of `RANK` and `WORLD_SIZE`."""


class ElasticDataset(TorchIterableDataset[_T_co], Generic[_T_co]):
    """A stream of samples shared by ranks and workers, with a position that outlives their number.

    Subclasses say how many positions there are and read a stretch of them. `batch_size` is how many the loader takes
    from a worker at a time; `penstock.DataLoader` sets it.
    """

    def __init__(self, **options: Unpack[StreamOptions]) -> None:
        super().__init__()
        self.shuffle = options.get("shuffle", False)
        self.seed = options.get("seed", 0)
        self.even: Even = options.get("even", "pad")
        self.batch_size = options.get("batch_size", 1)
        self.on_error: OnError = options.get("on_error", "raise")
        check_even(self.even)
        check_on_error(self.on_error)
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")
        self._rank = options.get("rank")
        # Shared memory, so that workers that live through several epochs see it change.
        self._epoch = torch.zeros(1, dtype=torch.int64)
        self._epoch.share_memory_()  # type: ignore[no-untyped-call]  # torch's
        self._legs: tuple[int, tuple[Leg, ...]] = (0, ())
        self._resumed: Run | None = None
        self._going: tuple[int, Run] | None = None

    makes_batches = False
    """Whether what it yields are batches already, so that a loader must not make any."""

    @abstractmethod
    def _total(self) -> int:
        """How many positions an epoch has."""

    @abstractmethod
    def _read(self, lane: Lane, *, skip: int, epoch: int) -> Iterator[tuple[Any, int]]:
        """The samples of a lane without its first `skip` positions, each with the positions it covers."""

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration is of."""
        return int(self._epoch.item())

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch of the next iteration, and with it the order. Call it before each, on every rank."""
        if epoch < 0:
            raise ValueError(f"an epoch is not negative, got {epoch}")
        self._epoch.fill_(epoch)

    def __iter__(self) -> Iterator[_T_co]:
        return self._at(place_here(self._rank))

    def __len__(self) -> int:
        """How many samples every rank gets from here to the end of the epoch."""
        ranks = (self._rank or known_rank() or (0, 1))[1]
        return len(lane_of(self._left(self.epoch), Place(0, ranks), batch=1, even=self.even))

    @property
    def batches_behind(self) -> int:
        """How many batches loaders have yielded on every rank before this part of the epoch."""
        return batches_behind(self._legs_of(self.epoch))

    def batches(self, *, workers: int) -> int:
        """How many batches a loader with so many workers yields on every rank from here to the end of the epoch."""
        ranks = (self._rank or known_rank() or (0, 1))[1]
        return batches_per_rank(
            self._left(self.epoch),
            ranks=ranks,
            workers=max(1, workers),
            batch=self.batch_size,
            even=self.even,
        )

    def state_dict(self) -> dict[str, Any]:
        """Where this process's iteration stands, counted by what it has yielded. One worker's, in a worker."""
        epoch = self.epoch
        run = self._resumed if self._legs[0] == epoch else None
        if self._going is not None and self._going[0] == epoch:
            run = self._going[1]
        return self._position(epoch, self._legs_of(epoch), run).to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration goes on from there, with any number of ranks and workers.

        The state of one of several workers is good only for the same worker of as many; `merge_states` joins them.
        """
        position = Position.from_dict(state)
        position.check_fits(total=self._total(), seed=self.seed, shuffle=self._order_name())
        self.set_epoch(position.epoch)
        legs, run = position.legs, position.run
        if run is not None and run.workers == 1:
            legs, run = (*legs, Leg(run.ranks, 1, run.batch, run.even, (run.consumed,))), None
        self._legs = (position.epoch, legs)
        self._resumed = run
        self._going = None

    def state_after(self, batches: int, *, workers: int) -> dict[str, Any]:
        """The state once a loader has yielded so many batches in this run, whatever its workers have read ahead."""
        ranks = (self._rank or known_rank() or (0, 1))[1]
        count = max(1, workers)
        consumed = worker_progress(
            self._left(self.epoch),
            batches,
            ranks=ranks,
            workers=count,
            batch=self.batch_size,
            even=self.even,
        )
        leg = Leg(ranks, count, self.batch_size, self.even, consumed)
        return self._position(self.epoch, (*self._legs_of(self.epoch), leg), None).to_dict()

    def state_at_start(self, epoch: int) -> dict[str, Any]:
        """The state before the first sample of an epoch."""
        return self._position(epoch, (), None).to_dict()

    def __getstate__(self) -> dict[str, Any]:
        # A spawned worker has no process group to ask.
        return {**self.__dict__, "_rank": self._rank or known_rank()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # A copy's is its own, and its workers must see it change too.
        self._epoch.share_memory_()  # type: ignore[no-untyped-call]  # torch's

    def _order_name(self) -> str:
        return "shuffled" if self.shuffle else "in order"

    def _position(self, epoch: int, legs: tuple[Leg, ...], run: Run | None) -> Position:
        return Position(self._total(), self.seed, self._order_name(), epoch, legs, run)

    def _legs_of(self, epoch: int) -> tuple[Leg, ...]:
        return self._legs[1] if self._legs[0] == epoch else ()

    def _left(self, epoch: int) -> list[tuple[int, int]]:
        return remaining(self._total(), self._legs_of(epoch))

    def _run_at(self, place: Place, done: int) -> Run:
        return Run(place.ranks, place.workers, self.batch_size, self.even, place.worker, done)

    def _done_by(self, place: Place, epoch: int) -> int:
        run = self._resumed
        if run is None or self._legs[0] != epoch:
            return 0
        if self._run_at(place, run.consumed) != run:
            raise ValueError(
                f"this state is of worker {run.worker} of {run.workers} on {run.ranks} ranks, and this is worker "
                f"{place.worker} of {place.workers} on {place.ranks}; load merge_states(loader.state_dict()) instead"
            )
        return run.consumed

    def _at(self, place: Place) -> Iterator[_T_co]:
        """What the worker at this place yields. `state_dict` tells of it from here on, not from its first sample."""
        epoch = self.epoch
        done = self._done_by(place, epoch)
        lane = lane_of(self._left(epoch), place, batch=self.batch_size, even=self.even)
        self._going = (epoch, self._run_at(place, done))
        return self._yield(lane, place, epoch, done)

    def _yield(self, lane: Lane, place: Place, epoch: int, done: int) -> Iterator[_T_co]:
        """The lane's samples; in the place of a bad one the good one before it, or the first that comes.

        So a rank with bad samples yields as many as the others, and the position stays exact.
        """
        good: Any = SKIPPED
        owed: deque[int] = deque()
        for value, count in self._read(lane, skip=done, epoch=epoch):
            owed.append(count)
            good = good if value is SKIPPED else value
            while owed and good is not SKIPPED:
                done += owed.popleft()
                self._going = (epoch, self._run_at(place, done))
                yield good
        if owed:
            good = self._any_good(epoch)
        for count in owed:
            done += count
            self._going = (epoch, self._run_at(place, done))
            yield good

    def _any_good(self, epoch: int) -> Any:
        total = self._total()
        for value, _ in self._read(Lane(((0, total),), own=total), skip=0, epoch=epoch):
            if value is not SKIPPED:
                return value
        raise BadSample("every sample is bad; on_error='skip' has none to go on with")
