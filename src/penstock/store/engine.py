"""Owns fork safety: gives each process an obstore of its own, and a client of its own for every recipe.

obstore runs all requests on one tokio runtime per loaded library. The threads of that runtime do not exist in
a forked child, so whatever the child asks of the inherited library waits for ever, a new store object included.
A child of a fork therefore loads a private copy of the extension module on first use (about 11 ms), and never
touches, nor even frees, a client that its parent made. See docs/decisions/0003-fork.md.
"""

import importlib
import importlib.machinery
import importlib.util
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Hashable
from types import ModuleType
from typing import Any, TypeVar

from penstock.errors import ConfigError

__all__ = ["client", "obstore"]

_EXTENSION = "obstore._obstore"
_T = TypeVar("_T")


class _Process:
    """What belongs to one process: its engine and its clients."""

    def __init__(self, *, inherited: bool) -> None:
        self.lock = threading.Lock()
        self.inherited = inherited
        self.engine: ModuleType | None = None
        self.clients: dict[Hashable, Any] = {}


_process = _Process(inherited=False)
_parents: list[_Process] = []
_library: str | None = None


def obstore() -> Any:
    """The obstore package that is safe to call in this process. The first call after a fork takes about 11 ms."""
    process = _process
    if process.engine is None:
        with process.lock:
            if process.engine is None:
                process.engine = _load_private_copy() if process.inherited else _load()
    return process.engine


def client(recipe: Hashable, build: Callable[[], _T]) -> _T:
    """This process's client for `recipe`, built on first use and shared by all stores of that recipe."""
    process = _process
    found = process.clients.get(recipe)
    if found is None:
        built = build()
        with process.lock:
            found = process.clients.setdefault(recipe, built)
    made: _T = found
    return made


def _after_fork_in_child() -> None:
    global _process
    # Kept for ever: dropping a client here would run clean-up code that waits for the parent's runtime.
    _parents.append(_process)
    _process = _Process(inherited=_EXTENSION in sys.modules)


os.register_at_fork(after_in_child=_after_fork_in_child)


def _load() -> ModuleType:
    global _library
    package = importlib.import_module("obstore")
    _library = _library or sys.modules[_EXTENSION].__file__
    return package


def _load_private_copy() -> ModuleType:
    """Imports obstore anew from a copy of its shared library, which the loader takes for another library."""
    global _library
    _library = _library or sys.modules[_EXTENSION].__file__ or ""
    try:
        path, remove = _copy(_library)
        try:
            return _import_from(path)
        finally:
            remove()
    except (OSError, ImportError) as exc:
        raise ConfigError(
            f"process {os.getpid()} was forked after obstore was loaded, and a private copy of it could not be "
            f'loaded ({exc}); pass multiprocessing_context="forkserver" to the DataLoader (or call '
            'multiprocessing.set_start_method("forkserver")), or make /tmp writable and executable'
        ) from exc


def _import_from(path: str) -> ModuleType:
    inherited = {
        name: module for name, module in sys.modules.items() if name.split(".")[0] == "obstore"
    }
    for name in inherited:
        del sys.modules[name]
    try:
        loader = importlib.machinery.ExtensionFileLoader(_EXTENSION, path)
        extension = importlib.util.module_from_spec(
            importlib.machinery.ModuleSpec(_EXTENSION, loader, origin=path)
        )
        loader.exec_module(extension)
        sys.modules[_EXTENSION] = extension
        return importlib.import_module("obstore")
    except BaseException:
        sys.modules.update(inherited)
        raise


def _copy(library: str) -> tuple[str, Callable[[], None]]:
    """A copy of the file under another inode, and what removes it once it is mapped.

    Grandchildren copy from the original again: this copy is gone by then.
    """
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("penstock-obstore", os.MFD_CLOEXEC)
        path = f"/proc/self/fd/{descriptor}"
        if os.path.exists(path):
            with open(library, "rb") as source, os.fdopen(os.dup(descriptor), "wb") as target:
                _copy_bytes(source.fileno(), target.fileno())
            return path, lambda: os.close(descriptor)
        os.close(descriptor)
    descriptor, path = tempfile.mkstemp(prefix="penstock-", suffix=".so")
    with open(library, "rb") as source, os.fdopen(descriptor, "wb") as target:
        target.write(source.read())
    return path, lambda: os.unlink(path)


def _copy_bytes(source: int, target: int) -> None:
    size = os.fstat(source).st_size
    done = 0
    while done < size:
        done += os.sendfile(target, source, done, size - done)
