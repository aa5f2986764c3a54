"""One rank lists, all ranks have the index. The only file here that knows torch."""

import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.errors import PenstockError
from penstock.listing.index import Index

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["from_rank_zero"]


def from_rank_zero(make: Callable[[], Index], group: "ProcessGroup | None") -> Index:
    """See `Index.from_rank_zero`."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return make()
    if dist.get_rank(group) == 0:
        try:
            made = make()
        except BaseException as exc:
            # The others are waiting, and would for ever.
            _send(exc if _travels(exc) else PenstockError(f"rank 0: {exc!r}"), group)
            raise
        _send(made, group)
        return made
    received: list[Index | BaseException | None] = [None]
    dist.broadcast_object_list(received, src=_root(group), group=group)
    answer = received[0]
    if isinstance(answer, Index):
        return answer
    assert isinstance(answer, BaseException)
    raise answer


def _send(answer: Index | BaseException, group: "ProcessGroup | None") -> None:
    import torch.distributed as dist

    dist.broadcast_object_list([answer], src=_root(group), group=group)


def _root(group: "ProcessGroup | None") -> int:
    import torch.distributed as dist

    return 0 if group is None else dist.get_global_rank(group, 0)


def _travels(exc: BaseException) -> bool:
    try:
        pickle.loads(pickle.dumps(exc))  # noqa: S301 - what was pickled in the line itself
    except Exception:  # noqa: BLE001 - an exception's own pickling may raise anything
        return False
    return True
