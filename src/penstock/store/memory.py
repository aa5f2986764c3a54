"""The store behind `memory://name`: a dictionary that lives as long as the process.

Not the engine's own memory store: that one is empty after a fork, without a word. This one is inherited by a
forked child as it was at that moment, and refuses to be opened in a process that never had it.
"""

import hashlib
import os
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from crc32c import crc32c

from penstock import metrics
from penstock.config import StoreConfig
from penstock.errors import AlreadyExists, NotFound, ObjectChanged, PreconditionFailed, Unsupported
from penstock.store.protocol import (
    Buffer,
    Checksum,
    Folder,
    ObjectMeta,
    PartUpload,
    PendingUpload,
    Store,
    StoredObject,
    WritableBuffer,
)
from penstock.store.staged import MemoryUpload
from penstock.url import Location, check_key, check_prefix

__all__ = ["MemoryStore"]


@dataclass(frozen=True, slots=True)
class _Entry:
    data: bytes
    etag: str
    modified: datetime


class _Bucket:
    def __init__(self) -> None:
        self.token = uuid.uuid4().hex
        self.lock = threading.Lock()
        self.entries: dict[str, _Entry] = {}


_buckets: dict[str, _Bucket] = {}


def _renew_locks() -> None:
    # A thread of the parent may have held one; it does not exist here to release it.
    for bucket in _buckets.values():
        bucket.lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_locks)


class MemoryStore(Store):
    """Objects in this process's memory; two stores of the same name share them."""

    def __init__(self, location: Location, config: StoreConfig) -> None:
        self._location = location
        self._config = config
        self._root = f"{location.key.removesuffix('/')}/" if location.key else ""
        self._bucket = _buckets.setdefault(location.bucket, _Bucket())

    @property
    def url(self) -> str:
        return str(self._location)

    @property
    def config(self) -> StoreConfig:
        return self._config

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def __reduce__(self) -> tuple[object, tuple[Location, StoreConfig, str]]:
        return _reopen, (self._location, self._config, self._bucket.token)

    def get(
        self,
        key: str,
        *,
        start: int | None = None,
        stop: int | None = None,
        if_match: str | None = None,
    ) -> memoryview:
        return self.get_object(key, start=start, stop=stop, if_match=if_match).data

    def get_object(
        self,
        key: str,
        *,
        start: int | None = None,
        stop: int | None = None,
        if_match: str | None = None,
        expected_bytes: int | None = None,
    ) -> StoredObject:
        del expected_bytes
        first = start or 0
        if first < 0 or (stop is not None and stop < first):
            raise ValueError(f"a range needs 0 <= start <= stop, got start={start}, stop={stop}")
        entry = self._entry(key)
        if if_match is not None and if_match != entry.etag:
            raise ObjectChanged(
                f"{self._name(key)}: the object was overwritten since its version was read"
            )
        data = memoryview(entry.data)[first:stop]
        self._count("get", read=len(data))
        return StoredObject(_meta(key, entry), data)

    def get_into(
        self, key: str, buffer: WritableBuffer, *, start: int = 0, if_match: str | None = None
    ) -> int:
        view = memoryview(buffer).cast("B")
        if view.readonly:
            raise ValueError(
                f"{self._name(key)}: get_into needs a writable buffer, got a read-only one"
            )
        data = self.get(key, start=start, stop=start + len(view), if_match=if_match)
        view[: len(data)] = data
        return len(data)

    def head(self, key: str) -> ObjectMeta:
        entry = self._entry(key)
        self._count("head")
        return _meta(key, entry)

    def checksum(self, key: str) -> Checksum:
        entry = self._entry(key)
        self._count("head")
        return Checksum(_meta(key, entry), crc32c(entry.data))

    def exists(self, key: str) -> bool:
        check_key(key, of=self.url)
        self._count("head")
        return self._root + key in self._bucket.entries

    def put(
        self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectMeta:
        check_key(key, of=self.url)
        if if_absent and if_match is not None:
            raise ValueError(
                f"{self._name(key)}: if_absent and if_match exclude each other; give one of them"
            )
        copy = memoryview(data).tobytes()
        digest = hashlib.md5(copy, usedforsecurity=False).hexdigest()
        with self._bucket.lock:
            present = self._bucket.entries.get(self._root + key)
            if if_absent and present is not None:
                raise AlreadyExists(
                    f"{self._name(key)}: there is an object already; delete it, or put without if_absent"
                )
            if if_match is not None and (present is None or present.etag != if_match):
                raise PreconditionFailed(
                    f"{self._name(key)}: the object is not the version given as if_match"
                )
            entry = _Entry(copy, f'"{digest}-{time.monotonic_ns():x}"', datetime.now(UTC))
            self._bucket.entries[self._root + key] = entry
        self._count("put", written=len(copy))
        return _meta(key, entry)

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectMeta]:
        check_prefix(prefix, of=self.url)
        after = (start_after or "").encode()
        with self._bucket.lock:
            entries = list(self._bucket.entries.items())
        self._count("list")
        found = [
            _meta(path[len(self._root) :], entry)
            for path, entry in entries
            if path.startswith(self._root + prefix) and path[len(self._root) :].encode() > after
        ]
        return iter(sorted(found, key=lambda meta: meta.key.encode()))

    def list_dirs(self, prefix: str = "") -> Sequence[str]:
        return self.list_folder(prefix).folders

    def list_folder(self, prefix: str = "") -> Folder:
        at = len(prefix)
        found = [*self.list(prefix)]
        deeper = (meta.key for meta in found if "/" in meta.key[at:])
        return Folder(
            sorted({key[: key.index("/", at) + 1] for key in deeper}),
            [meta for meta in found if "/" not in meta.key[at:]],
        )

    def parts(self) -> None:
        return None

    def delete(self, keys: str | Iterable[str]) -> None:
        for key in [keys] if isinstance(keys, str) else keys:
            check_key(key, of=self.url)
            with self._bucket.lock:
                self._bucket.entries.pop(self._root + key, None)
        self._count("delete")

    def copy(self, src: str, dst: str) -> None:
        self.put(dst, self._entry(src).data)

    def open_upload(self, key: str, *, if_absent: bool = False) -> PartUpload:
        check_key(key, of=self.url)
        return MemoryUpload(lambda whole: self.put(key, whole, if_absent=if_absent))

    def pending_uploads(self, prefix: str = "") -> Iterator[PendingUpload]:
        check_prefix(prefix, of=self.url)
        return iter(())

    def abort_upload(self, upload: PendingUpload) -> None:
        raise Unsupported(f"{self._name(upload.key)}: memory keeps no unfinished uploads")

    def _entry(self, key: str) -> _Entry:
        check_key(key, of=self.url)
        entry = self._bucket.entries.get(self._root + key)
        if entry is None:
            raise NotFound(
                f"{self._name(key)}: no such object; check the key, or list what is there"
            )
        return entry

    def _name(self, key: str) -> str:
        return str(self._location.join(key))

    def _count(self, verb: str, *, read: int = 0, written: int = 0) -> None:
        metrics.record(metrics.Request(verb, self._location.bucket, 0.0, read, written))


def _meta(key: str, entry: _Entry) -> ObjectMeta:
    return ObjectMeta(key, len(entry.data), entry.etag, entry.modified)


def _reopen(location: Location, config: StoreConfig, token: str) -> MemoryStore:
    bucket = _buckets.get(location.bucket)
    if bucket is None or bucket.token != token:
        raise Unsupported(
            f"{location}: lives in the memory of another process and did not travel here; use file:// or a real "
            "store with spawned workers, or fork them"
        )
    return MemoryStore(location, config)
