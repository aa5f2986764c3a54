"""Finds the file that a URL means to `penstock ckpt`, and the tensors in it, without reading them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from penstock.errors import InvalidCheckpoint, NotFound, Unsupported
from penstock.store import open_object, open_store
from penstock.url import Location

if TYPE_CHECKING:
    from penstock.checkpoint import Manifest
    from penstock.checkpoint.commit import Root
    from penstock.checkpoint.survey import TensorSpec
    from penstock.checkpoint.torchfile import Record
    from penstock.store import Store

__all__ = ["StoredTensor", "Target", "find_target", "open_root"]

_STEP = re.compile(r"(?P<root>.*?)/?step-(?P<step>\d{1,19})/?")
_CHUNK_BYTES = 8 << 20


@dataclass(frozen=True)
class Target:
    """A file, and the manifest that it belongs to, if any."""

    store: "Store"
    key: str
    manifest: "Manifest | None" = None

    @property
    def url(self) -> str:
        """Where it is."""
        return f"{self.store.url.rstrip('/')}/{self.key}"

    def tensors(self) -> "list[StoredTensor]":
        """What is in it. A request or two, for what lies beside the tensors."""
        from penstock.checkpoint.files import open_file
        from penstock.checkpoint.torchfile import Unplannable
        from penstock.checkpoint.window import Window

        try:
            file = open_file(Window(self.store, self.key), check=False)
        except Unplannable as exc:
            raise Unsupported(f"{self.url}: cannot be described, for {exc}; load it") from exc
        return [
            StoredTensor(self, name, spec, file.records[spec.storage.key])
            for name, spec in _specs(file.tree)
        ]


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file."""

    target: Target
    name: str
    spec: "TensorSpec"
    record: "Record"

    @cached_property
    def dtype(self) -> str:
        """`float32`, not `torch.float32`."""
        return str(self.spec.dtype).removeprefix("torch.")

    @property
    def shape(self) -> list[int]:
        """A list, for it is shown so, in JSON too."""
        return [*self.spec.shape]

    @property
    def kind(self) -> str:
        """Type and shape: what has to be the same before values can be."""
        return f"{self.dtype} {self.shape}"

    @property
    def size_bytes(self) -> int:
        """What it takes in memory."""
        size = int(self.spec.dtype.itemsize)
        for length in self.spec.shape:
            size *= length
        return size

    def equals(self, other: "StoredTensor") -> bool:
        """Whether the bytes are the same: by the checksums in the files, and where they cannot tell, by reading both.

        Of a tensor with gaps or another order in memory, its whole storage has to be the same.
        """
        if self.size_bytes == 0:
            return True
        if self.layout != other.layout or self.span.size != other.span.size:
            return False
        crcs = self.span.crc32, other.span.crc32
        if None not in crcs:
            return crcs[0] == crcs[1]
        pieces = zip(self.pieces(), other.pieces(), strict=True)
        return all(mine == others for mine, others in pieces)

    def pieces(self) -> Iterator[memoryview]:
        """Its bytes, a few MiB at a time."""
        for start in range(self.span.start, self.span.stop, _CHUNK_BYTES):
            stop = min(start + _CHUNK_BYTES, self.span.stop)
            yield self.target.store.get(self.target.key, start=start, stop=stop)

    @property
    def layout(self) -> tuple[Any, ...]:
        """How its values lie in its span; of all that lie densely it is the same."""
        return () if self._is_dense else (self.spec.offset, self.spec.stride)

    @cached_property
    def span(self) -> "Record":
        """The bytes of the file that tell its values: its own, or the whole storage if they are scattered in it."""
        size = self.size_bytes
        if not self._is_dense or size == self.record.size:
            return self.record
        start = self.record.start + self.spec.offset * self.spec.dtype.itemsize
        return replace(self.record, start=start, size=size, crc32=None)

    @cached_property
    def _is_dense(self) -> bool:
        from penstock.checkpoint.files import row_major

        pairs = zip(self.spec.shape, self.spec.stride, row_major(self.spec.shape), strict=True)
        return all(length == 1 or found == dense for length, found, dense in pairs)


def open_root(url: str) -> "Root":
    """The place of a manager's checkpoints. Makes no request."""
    from penstock.checkpoint.commit import Root

    store, key = open_object(f"{url.rstrip('/')}/x")
    return Root(store, key.removesuffix("x"))


def find_target(url: str, step: int | None = None) -> Target:
    """The file at `url`; or the state of a step of the run there, by default its newest."""
    location = Location.parse(url)
    root_url = url
    if step is None:
        store = open_store(location.root)
        key = location.key
        if key and not key.endswith("/") and _is_file(store, key):
            return Target(store, key)
        if (match := _STEP.fullmatch(url)) is not None:
            root_url, step = match["root"], int(match["step"])
    root = open_root(root_url)
    if step is None:
        step = _newest(root, location)
    manifest = root.read_manifest(step)
    if len(manifest.objects) != 1:
        raise InvalidCheckpoint(f"{root.url(step, '')}: has {len(manifest.objects)} objects, not 1")
    return Target(root.store, root.key(step, manifest.objects[0].name), manifest)


def _is_file(store: "Store", key: str) -> bool:
    try:
        store.head(key)
    except NotFound:
        return False
    return True


def _newest(root: "Root", location: Location) -> int:
    from penstock.checkpoint.manifest import MANIFEST, split_key

    at = len(root.prefix)
    found = [split_key(meta.key[at:]) for meta in root.store.list(f"{root.prefix}step-")]
    steps = [parts[0] for parts in found if parts is not None and parts[1] == MANIFEST]
    if not steps:
        raise NotFound(f"{location}: neither a file nor a run with checkpoints; check the URL")
    return max(steps)


def _specs(tree: Any) -> "Iterator[tuple[str, TensorSpec]]":
    """Every tensor with its dotted name, also those in objects of unknown classes."""
    from penstock.checkpoint.survey import Opaque, TensorSpec
    from penstock.checkpoint.tree import leaves

    waiting: list[tuple[str, Any]] = [("", tree)]
    while waiting:
        path, item = waiting.pop(0)
        for at, leaf in leaves(item, path):
            if isinstance(leaf, TensorSpec):
                yield at, leaf
            elif isinstance(leaf, Opaque):
                waiting += [(at, part) for part in leaf.parts]
