"""The order of a map-style dataset: batches of indices for one rank, with a position like that of a stream."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import Sampler

from penstock.data.lanes import (
    Even,
    Leg,
    Place,
    batches_behind,
    batches_per_rank,
    check_even,
    lane_of,
    remaining,
    worker_progress,
)
from penstock.data.order import Shuffle
from penstock.data.place import known_rank
from penstock.data.state import Position

__all__ = ["ElasticSampler"]


class ElasticSampler(Sampler[list[int]]):
    """Batches of indices; give it to a loader as `batch_sampler`.

    Every rank gets as many batches, every index comes once an epoch, and `state_after` so many batches is good for any
    number of ranks.
    """

    def __init__(
        self,
        size: int,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        even: Even = "pad",
        rank: tuple[int, int] | None = None,
    ) -> None:
        check_even(even)
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.batch_size = batch_size
        self.epoch = 0
        self._size = size
        self._shuffle = shuffle
        self._seed = seed
        self._even: Even = even
        self._rank = rank
        self._legs: tuple[int, tuple[Leg, ...]] = (0, ())

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch of the next iteration, and with it the order."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        rank, ranks = self._place()
        lane = lane_of(self._left(), Place(rank, ranks), batch=self.batch_size, even=self._even)
        order = Shuffle(self._size, seed=self._seed, epoch=self.epoch) if self._shuffle else None
        batch: list[int] = []
        for position in lane.positions():
            batch.append(position if order is None else order(position))
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch:
            yield batch

    def __len__(self) -> int:
        """Batches from here to the end of the epoch, on every rank."""
        _, ranks = self._place()
        return batches_per_rank(
            self._left(), ranks=ranks, workers=1, batch=self.batch_size, even=self._even
        )

    @property
    def batches_behind(self) -> int:
        """How many batches loaders have yielded on every rank before this part of the epoch."""
        return batches_behind(self._legs_now())

    def state_after(self, batches: int) -> dict[str, Any]:
        """The state once a loader has yielded so many batches of this iteration."""
        _, ranks = self._place()
        consumed = worker_progress(
            self._left(), batches, ranks=ranks, workers=1, batch=self.batch_size, even=self._even
        )
        leg = Leg(ranks, 1, self.batch_size, self._even, consumed)
        legs = (*self._legs_now(), leg)
        return self._position(self.epoch, legs).to_dict()

    def state_at_start(self, epoch: int) -> dict[str, Any]:
        """The state before the first batch of an epoch."""
        return self._position(epoch, ()).to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration goes on from there, on any number of ranks."""
        position = Position.from_dict(state)
        position.check_fits(total=self._size, seed=self._seed, shuffle=self._order_name())
        self.epoch = position.epoch
        self._legs = (position.epoch, position.legs)

    def _position(self, epoch: int, legs: tuple[Leg, ...]) -> Position:
        return Position(self._size, self._seed, self._order_name(), epoch, legs)

    def _order_name(self) -> str:
        return "shuffled" if self._shuffle else "in order"

    def _place(self) -> tuple[int, int]:
        return self._rank or known_rank() or (0, 1)

    def _legs_now(self) -> tuple[Leg, ...]:
        return self._legs[1] if self._legs[0] == self.epoch else ()

    def _left(self) -> list[tuple[int, int]]:
        return remaining(self._size, self._legs_now())
