"""What the maker of a dataset is told."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch.utils.data import Dataset

from penstock_bench.micro.subjects.protocol import Target

__all__ = ["MakeDataset", "Source"]


@dataclass(frozen=True, slots=True)
class Source:
    """The objects of an epoch, in order; one may come several times."""

    target: Target
    keys: Sequence[str]

    @property
    def urls(self) -> list[str]:
        return [self.target.url(key) for key in self.keys]


MakeDataset: TypeAlias = Callable[..., Dataset[Any]]
"""Takes a Source and the row's options by name. Imports come with the module, before anything is counted."""
