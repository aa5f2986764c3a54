"""Checkpoints under one root or two, a local one and the durable one: found, read, verified and removed."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from penstock.checkpoint.commit import Root
from penstock.checkpoint.loading import Wanted, load_object
from penstock.checkpoint.manifest import MANIFEST, Manifest, split_key
from penstock.checkpoint.retention import Retention, contested, debris, surplus
from penstock.checkpoint.verify import verify_object
from penstock.errors import IntegrityError, InvalidCheckpoint, NotFound, Unsupported
from penstock.store import ObjectMeta

__all__ = ["DamagedCheckpoint", "Tier", "Tiers"]


class DamagedCheckpoint(UserWarning):
    """A copy of a checkpoint did not verify, and another was loaded instead. The text says which object."""


class Tier:
    """The checkpoints under one root."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self._metrics: dict[int, Mapping[str, float]] = {}

    def found(self) -> list[ObjectMeta]:
        """Every object that a save wrote or began to, its key relative to the root. One request per 1,000."""
        at = len(self.root.prefix)
        listed = self.root.store.list(f"{self.root.prefix}step-")
        return [
            ObjectMeta(meta.key[at:], meta.size, meta.etag, meta.last_modified)
            for meta in listed
            if split_key(meta.key[at:]) is not None
        ]

    def steps(self) -> list[int]:
        """Every committed step, in order."""
        return committed_in(meta.key for meta in self.found())

    def manifest(self, step: int) -> Manifest:
        """What belongs to a step. Raises `NotFound` where it is not committed. One request."""
        manifest = self.root.read_manifest(step)
        self._metrics[step] = manifest.metrics
        return manifest

    def load(self, step: int, manifest: Manifest, wanted: Wanted) -> Any:
        """The state of a step; every byte that is handed out was checked."""
        (state,) = manifest.objects
        return load_object(self.root.store, self.root.key(step, state.name), wanted, expected=state)

    def verify(self, step: int) -> Manifest:
        """Reads everything again. Raises `IntegrityError` or `NotFound` for the object that is not right."""
        manifest = self.manifest(step)
        for expected in manifest.objects:
            verify_object(self.root.store, self.root.key(step, expected.name), expected)
        return manifest

    def delete(self, step: int) -> None:
        """Removes the manifest, and then what it named: at no moment is there half a checkpoint."""
        self._metrics.pop(step, None)
        self.root.store.delete(self.root.key(step, MANIFEST))
        folder = self.root.key(step, "")
        at = len(self.root.prefix)
        keys = [m.key for m in self.root.store.list(folder) if split_key(m.key[at:]) is not None]
        self.root.store.delete(keys)

    def surplus(self, rules: Retention, *, in_use: Sequence[int]) -> list[int]:
        """The steps that retention lets go. Reads manifests, each once, only where metrics decide."""
        metrics: dict[int, Mapping[str, float]] = {}
        for step in self.steps():
            if rules.best is not None and step not in self._metrics:
                self.manifest(step)
            metrics[step] = self._metrics.get(step, {})
        return surplus(metrics, rules, in_use=in_use)

    def debris(self, *, before: datetime) -> list[str]:
        """Keys, relative to the root, of what interrupted saves left behind."""
        found = self.found()
        keys = [meta.key for meta in found]
        both = contested(keys) & set(committed_in(keys))
        owned = {step: {o.name for o in self.manifest(step).objects} for step in both}
        return debris(found, owned, before=before)

    def remove(self, keys: Sequence[str]) -> None:
        """Deletes debris."""
        self.root.store.delete([f"{self.root.prefix}{key}" for key in keys])

    def abort_uploads(self, *, before: datetime) -> None:
        """Removes the invisible parts of uploads that were interrupted, where the store can tell of them."""
        try:
            pending = [*self.root.store.pending_uploads(f"{self.root.prefix}step-")]
        except Unsupported:
            # Azure forgets them by itself after a week.
            return
        at = len(self.root.prefix)
        for upload in pending:
            if upload.started <= before and split_key(upload.key[at:]) is not None:
                self.root.store.abort_upload(upload)


def committed_in(keys: Iterable[str]) -> list[int]:
    """The steps that have a manifest among these keys, in order."""
    parts = [split_key(key) for key in keys]
    return sorted({part[0] for part in parts if part is not None and part[1] == MANIFEST})


class Tiers:
    """One tier, or a local one before the durable one."""

    def __init__(self, durable: Tier, local: Tier | None) -> None:
        self.durable = durable
        self.local = local

    @property
    def all(self) -> list[Tier]:
        """In the order in which they are written."""
        return [self.durable] if self.local is None else [self.local, self.durable]

    def steps(self) -> list[int]:
        """What is committed in either."""
        return sorted({step for tier in self.all for step in tier.steps()})

    def manifest(self, step: int) -> Manifest:
        """The durable one, else the local one."""
        try:
            return self.durable.manifest(step)
        except NotFound:
            if self.local is None:
                raise
            return self.local.manifest(step)

    def load(self, step: int, wanted: Wanted) -> Any:
        """The local copy where it is of the same save and verifies, else the durable one."""
        manifest = self.manifest(step)
        if self.local is not None:
            try:
                if self.local.manifest(step).attempt == manifest.attempt:
                    return self.local.load(step, manifest, wanted)
            except NotFound:
                pass  # not there, or swept away: the durable copy is what counts
            except (IntegrityError, InvalidCheckpoint) as exc:
                warnings.warn(f"{exc}; loaded the durable copy", DamagedCheckpoint, stacklevel=3)
        return self.durable.load(step, manifest, wanted)

    def verify(self, step: int) -> Manifest:
        """Every copy there is."""
        manifest = self.manifest(step)
        for tier in self.all:
            if step in tier.steps():
                tier.verify(step)
        return manifest
