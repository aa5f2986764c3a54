"""Finds out which rank and worker this is: from the process group, the launcher's variables, the loader."""

import os

import torch.distributed
from torch.utils.data import get_worker_info

from penstock.data.lanes import Place
from penstock.errors import ConfigError

__all__ = ["known_rank", "place_here"]


def known_rank() -> tuple[int, int] | None:
    """Rank and number of ranks, or None where nothing tells."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    rank, ranks = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if rank is None or ranks is None:
        return None
    if not (rank.isdigit() and ranks.isdigit() and int(rank) < int(ranks)):
        raise ConfigError(
            f"RANK={rank} and WORLD_SIZE={ranks} are not a rank and a number of ranks; unset or mend them"
        )
    return int(rank), int(ranks)


def place_here(rank: tuple[int, int] | None) -> Place:
    """This process's place. `rank` is what the dataset was told, or learned before it came to this worker."""
    this, ranks = rank or known_rank() or (0, 1)
    worker = get_worker_info()
    if worker is None:
        return Place(this, ranks)
    return Place(this, ranks, worker.id, worker.num_workers)
