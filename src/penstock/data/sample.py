"""What a dataset gives: the key of an object and its bytes."""

from typing import NamedTuple

__all__ = ["Sample"]


class Sample(NamedTuple):
    """One object. `default_collate` makes a `Sample` of lists of these, unchanged."""

    key: str
    data: bytes
