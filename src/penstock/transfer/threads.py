"""The threads of this process that wait for stores: one pool for objects, one for the parts of objects."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

__all__ = ["object_threads", "part_threads"]

_PARTS = 64
_OBJECTS = 1024

_lock = threading.Lock()
_pools: dict[str, ThreadPoolExecutor] = {}


def object_threads() -> ThreadPoolExecutor:
    """Threads for whole objects; a limiter, not the pool, decides how many are used."""
    return _pool("penstock-object", _OBJECTS)


def part_threads() -> ThreadPoolExecutor:
    """Threads for the parts of one object. Apart from the objects', whose work may wait for parts."""
    return _pool("penstock-part", _PARTS)


def _pool(name: str, size: int) -> ThreadPoolExecutor:
    pool = _pools.get(name)
    if pool is None:
        with _lock:
            pool = _pools.setdefault(name, ThreadPoolExecutor(size, thread_name_prefix=name))
    return pool


def _forget() -> None:
    # The parent's threads do not exist here; its pools would take work and never do it.
    global _lock
    _lock = threading.Lock()
    _pools.clear()


os.register_at_fork(after_in_child=_forget)
