"""`load`: a plan of ranges, read in parallel straight into the tensors; and `describe`, which reads no tensor."""

import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from penstock.checkpoint.files import CheckpointFile, open_file, view_of
from penstock.checkpoint.into import copy_plain, copy_tensors, has_plain, pair_up
from penstock.checkpoint.manifest import StoredFile
from penstock.checkpoint.memory import allocate, as_bytes, host_view
from penstock.checkpoint.placement import MapLocation, device_for, place
from penstock.checkpoint.read import Target, fill
from penstock.checkpoint.survey import Opaque, TensorSpec, storages_in
from penstock.checkpoint.torchfile import Unplannable
from penstock.checkpoint.tree import keep, leaves, matches, patterns_of
from penstock.checkpoint.verify import check_size, verify_object
from penstock.checkpoint.window import Window
from penstock.config import StoreConfig
from penstock.store import Store, open_object
from penstock.transfer import ObjectReader

__all__ = ["SlowLoadWarning", "TensorInfo", "Wanted", "describe", "load", "load_object"]


class SlowLoadWarning(UserWarning):
    """A file could not be read by ranges, so `torch.load` read it as a stream. The text says why."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a load was asked for."""

    map_location: MapLocation = None
    weights_only: bool = True
    into: Any = None
    only: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor in a file. `offset` is where its storage begins; several tensors may share one."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    size_bytes: int
    offset: int


def load(
    url: str | os.PathLike[str],
    *,
    map_location: MapLocation = None,
    weights_only: bool = True,
    into: Any = None,
    only: str | Sequence[str] | None = None,
    config: StoreConfig | None = None,
) -> Any:
    """The object that `torch.save`, `penstock.save` or safetensors (by the extension) wrote to `url`.

    `map_location` and `weights_only` are as for `torch.load`. Two small requests find where the tensors lie; then all
    are read side by side, straight into place, all of one version of the object. Memory is the state and at most
    64 MiB, with a GPU 128 MiB of pinned memory, which is kept.

    `only` is a glob or several over dotted keys (`"model.encoder.*"`): what does not match is left out, and its bytes
    are not read; in lists it becomes None. `into` is a state dict or a module, or a dict of them, whose tensors are
    filled where they are; what does not fit is a ValueError that names the keys, raised before anything is written.
    It is returned.

    A file that cannot be planned (torch before 1.6, compressed, TorchScript) is read by `torch.load`, with a
    `SlowLoadWarning`.
    """
    store, key = open_object(url, config)
    wanted = Wanted(map_location, weights_only, into, patterns_of(only))
    return load_object(store, key, wanted, expected=None)


def load_object(store: Store, key: str, wanted: Wanted, *, expected: StoredFile | None) -> Any:
    """Like `load`. Given what is expected, every byte that is handed out was checked, or `IntegrityError` is raised."""
    window = Window(store, key)
    check = expected is not None
    if expected is not None:
        check_size(window.url, window.meta.size, expected)
    try:
        file = open_file(window, check=check)
        if wanted.into is not None:
            return _load_into(window, file, wanted, check=check)
        return _load_new(window, file, wanted, check=check)
    except Unplannable as exc:
        reason = str(exc)
    if expected is not None:
        verify_object(store, key, expected)
    warnings.warn(
        f"{window.url}: {reason}; read as a stream by torch.load", SlowLoadWarning, stacklevel=3
    )
    return _load_as_stream(store, key, wanted)


def describe(url: str | os.PathLike[str], *, config: StoreConfig | None = None) -> list[TensorInfo]:
    """Every tensor in a file, in order, without reading any. One request or two."""
    window = Window(*open_object(url, config))
    try:
        file = open_file(window, check=False)
    except Unplannable as exc:
        raise ValueError(f"{window.url}: cannot be described, for {exc}; load it") from exc
    return [
        TensorInfo(
            name,
            spec.shape,
            spec.dtype,
            spec.dtype.itemsize * torch.Size(spec.shape).numel(),
            file.records[spec.storage.key].start + spec.offset * spec.dtype.itemsize,
        )
        for name, spec in _specs(file.tree)
    ]


def _load_new(window: Window, file: CheckpointFile, wanted: Wanted, *, check: bool) -> Any:
    keys = _wanted_keys(window, file, wanted.only)
    places = {ref.key: ref.location for ref in file.mentions}
    devices = {
        key: device_for(wanted.map_location, places[key]) if key in keys else torch.device("meta")
        for key in places
    }
    storages = {key: _allocate(file.records[key].size, devices[key]) for key in places}
    targets = [
        Target(
            file.records[key],
            host_view(storage) if storage.device.type == "cpu" else as_bytes(storage),
        )
        for key, storage in storages.items()
        if storage.device.type != "meta" and file.records[key].size
    ]
    fill(window, targets, check=check)
    for key, device in devices.items():
        if device != storages[key].device:
            storages[key] = place(storages[key], wanted.map_location, places[key])
    loaded = file.assemble(storages, weights_only=wanted.weights_only)
    return loaded if wanted.only is None else keep(loaded, wanted.only)


def _allocate(size: int, device: torch.device | None) -> torch.UntypedStorage:
    """Where the bytes are to land: in the end, or on the CPU for what moves on from there by torch's own ways."""
    there = device if device is not None and device.type in ("cuda", "meta") else "cpu"
    return allocate(size, there)


def _wanted_keys(window: Window, file: CheckpointFile, only: Sequence[str] | None) -> set[str]:
    if only is None:
        return {ref.key for ref in file.mentions}
    named = [*leaves(file.tree)]
    chosen = [leaf for path, leaf in named if matches(path, only)]
    if not chosen:
        some = ", ".join(path for path, _ in named[:5])
        raise KeyError(f"{window.url}: nothing matches {[*only]}; its keys begin with {some}")
    return {ref.key for leaf in chosen for ref in storages_in(leaf)}


def _load_into(window: Window, file: CheckpointFile, wanted: Wanted, *, check: bool) -> Any:
    pairs = pair_up(wanted.into, file.tree, wanted.only)
    staged: dict[str, torch.UntypedStorage] = {}
    targets: list[Target] = []
    for pair in pairs:
        key = pair.spec.storage.key
        record = file.records[key]
        if not record.size:
            continue
        if pair.is_direct:
            storage = pair.target.untyped_storage()
            start = int(pair.target.storage_offset()) * pair.target.element_size()
            if storage.device.type == "cpu":
                memory = host_view(storage)[start : start + record.size]
                targets.append(Target(record, memory))
            else:
                targets.append(Target(record, as_bytes(storage, start, record.size)))
        elif key not in staged:
            staged[key] = allocate(record.size)
            targets.append(Target(record, host_view(staged[key])))
    fill(window, targets, check=check)
    with torch.no_grad():
        for pair in pairs:
            if pair.spec.storage.key in staged and not pair.is_direct:
                pair.target.copy_(view_of(staged[pair.spec.storage.key], pair.spec))
    if has_plain(wanted.into):
        nothing = {ref.key: allocate(ref.size, "meta") for ref in file.mentions}
        plain = file.assemble(nothing, weights_only=wanted.weights_only)
        copy_plain(wanted.into, plain, wanted.only)
    return wanted.into


def _load_as_stream(store: Store, key: str, wanted: Wanted) -> Any:
    where: Any = wanted.map_location
    with ObjectReader(store, key) as file:
        loaded = torch.load(file, map_location=where, weights_only=wanted.weights_only)
    if wanted.into is not None:
        copy_tensors(wanted.into, loaded, wanted.only)
        copy_plain(wanted.into, loaded, wanted.only)
        return wanted.into
    return loaded if wanted.only is None else keep(loaded, wanted.only)


def _specs(item: Any, path: str = "") -> Iterator[tuple[str, TensorSpec]]:
    for at, leaf in leaves(item, path):
        if isinstance(leaf, TensorSpec):
            yield at, leaf
        elif isinstance(leaf, Opaque):
            for part in leaf.parts:
                yield from _specs(part, at)
