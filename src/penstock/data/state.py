"""The state of a dataset in the middle of an epoch, as it is kept in a checkpoint."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from penstock.data.lanes import Even, Leg

__all__ = ["Position", "Run", "merge_states"]

_VERSION = 1
_MARK = "penstock_dataset"


@dataclass(frozen=True, slots=True)
class Run:
    """How far one worker has come in the run that is going on."""

    ranks: int
    workers: int
    batch: int
    even: Even
    worker: int
    consumed: int


@dataclass(frozen=True, slots=True)
class Position:
    """Epoch, the legs behind, and the run going on. `total`, `seed` and `shuffle` tell whether it still fits."""

    total: int
    seed: int
    shuffle: str
    epoch: int = 0
    legs: tuple[Leg, ...] = ()
    run: Run | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for any checkpoint format."""
        return {
            _MARK: _VERSION,
            "total": self.total,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "epoch": self.epoch,
            "legs": [
                [leg.ranks, leg.workers, leg.batch, leg.even, [*leg.consumed]] for leg in self.legs
            ],
            "run": None
            if self.run is None
            else [
                self.run.ranks,
                self.run.workers,
                self.run.batch,
                self.run.even,
                self.run.worker,
                self.run.consumed,
            ],
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Self:
        """Reads what `to_dict` wrote; refuses another version."""
        version = state.get(_MARK)
        if version != _VERSION:
            raise ValueError(
                f"this is not a dataset state of version {_VERSION}, but {version!r}; it was saved by another version "
                "of penstock, or by something else"
            )
        legs = tuple(
            Leg(ranks, workers, batch, even, tuple(consumed))
            for ranks, workers, batch, even, consumed in state["legs"]
        )
        run = None if state["run"] is None else Run(*state["run"])
        return cls(state["total"], state["seed"], state["shuffle"], state["epoch"], legs, run)

    def check_fits(self, *, total: int, seed: int, shuffle: str) -> None:
        """Refuses to go on in a dataset of other samples or another order."""
        ours, theirs = (total, seed, shuffle), (self.total, self.seed, self.shuffle)
        if ours != theirs:
            raise ValueError(
                f"the state is of a dataset with {self.total} samples, seed {self.seed}, {self.shuffle}; this one has "
                f"{total} samples, seed {seed}, {shuffle}; list the same objects, and give the same seed and shuffle"
            )


def merge_states(states: object) -> dict[str, Any]:
    """One state from those of all workers of a rank, to resume with any other number of ranks or workers.

    Takes a list of `dataset.state_dict()`, or the whole state of a torchdata `StatefulDataLoader`. Raises where a
    worker's is missing, or older than the loader's.
    """
    behind = states.get("_steps_since_snapshot", 0) if isinstance(states, Mapping) else 0
    if behind:
        raise ValueError(
            f"the states of the workers are {behind} batches older than the loader's; make the StatefulDataLoader with "
            "snapshot_every_n_steps=1"
        )
    positions = [Position.from_dict(state) for state in _find(states)]
    if not positions:
        raise ValueError(
            "there is no penstock dataset state in this; pass the loader's state_dict()"
        )
    first = positions[0]
    if first.run is None:
        return first.to_dict()
    runs = {position.run.worker: position.run for position in positions if position.run is not None}
    missing = [worker for worker in range(first.run.workers) if worker not in runs]
    if missing:
        raise ValueError(
            f"the state of worker {missing[0]} of {first.run.workers} is missing; pass the states of all workers"
        )
    consumed = tuple(runs[worker].consumed for worker in range(first.run.workers))
    leg = Leg(first.run.ranks, first.run.workers, first.run.batch, first.run.even, consumed)
    legs = (*first.legs, leg)
    return Position(first.total, first.seed, first.shuffle, first.epoch, legs).to_dict()


def _find(value: object) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        if _MARK in value:
            yield value
        else:
            yield from _each(value.values())
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        yield from _each(value)


def _each(values: Iterable[object]) -> Iterator[Mapping[str, Any]]:
    for value in values:
        yield from _find(value)
