"""Writes a checkpoint: its object first, its manifest last. Needs no torch: a child process does it too."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from penstock.checkpoint.manifest import MANIFEST, Manifest, StoredFile, folder_of, state_name
from penstock.checkpoint.torchfile import Archive
from penstock.checkpoint.write import BytesOf, write_archive
from penstock.errors import (
    AlreadyExists,
    InvalidCheckpoint,
    NotFound,
    StoreUnavailable,
    TransferFailed,
)
from penstock.store import Store
from penstock.transfer import ObjectWriter

__all__ = ["Root", "Task", "write_checkpoint"]


@dataclass(frozen=True, slots=True)
class Root:
    """A place for checkpoints: a store and, where the URL is inside of it, the prefix of all keys."""

    store: Store
    prefix: str

    def key(self, step: int, name: str) -> str:
        """The key of an object of a step."""
        return f"{self.prefix}{folder_of(step)}/{name}"

    def url(self, step: int, name: str) -> str:
        """The same as a URL, for messages."""
        return f"{self.store.url.rstrip('/')}/{self.key(step, name)}"

    def read_manifest(self, step: int) -> Manifest:
        """One request. Raises `NotFound` where the step is not committed."""
        data = self.store.get(self.key(step, MANIFEST))
        manifest = Manifest.from_json(data, of=self.url(step, MANIFEST))
        if manifest.step != step:
            raise InvalidCheckpoint(
                f"{self.url(step, MANIFEST)}: is the manifest of step {manifest.step}; restore or delete it"
            )
        return manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A checkpoint to be written, without its bytes."""

    step: int
    attempt: str
    created: datetime
    archive: Archive
    metrics: Mapping[str, float]
    metadata: Mapping[str, Any]


def write_checkpoint(root: Root, task: Task, bytes_of: BytesOf) -> Manifest:
    """Writes and commits. Raises `AlreadyExists` for a step that is committed, before anything is written."""
    if root.store.exists(root.key(task.step, MANIFEST)):
        raise AlreadyExists(
            f"{root.url(task.step, MANIFEST)}: step {task.step} is committed already; delete it first to save it anew"
        )
    name = state_name(task.attempt)
    with ObjectWriter(root.store, root.key(task.step, name), if_absent=False) as file:
        write_archive(file, task.archive, bytes_of)
        crc32c = file.crc32c
    manifest = Manifest(
        step=task.step,
        attempt=task.attempt,
        created=task.created,
        objects=(StoredFile(name, task.archive.size, crc32c),),
        metrics=task.metrics,
        metadata=task.metadata,
    )
    _commit(root, manifest)
    return manifest


def _commit(root: Root, manifest: Manifest) -> None:
    """Puts the manifest where there is none. If the answer is lost, the manifest itself tells whose it is."""
    try:
        root.store.put(root.key(manifest.step, MANIFEST), manifest.to_json(), if_absent=True)
    except (AlreadyExists, TransferFailed, StoreUnavailable):
        try:
            found = root.read_manifest(manifest.step)
        except NotFound:
            found = None
        if found is None or found.attempt != manifest.attempt:
            raise
