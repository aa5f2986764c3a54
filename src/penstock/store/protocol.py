"""What a store can do: one Protocol per capability, so that callers ask for the smallest they need."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Protocol, TypeAlias

from typing_extensions import Buffer

from penstock.config import StoreConfig

__all__ = [
    "Buffer",
    "Checksum",
    "Checksums",
    "Copies",
    "Deletes",
    "Folder",
    "Gets",
    "KeyOrder",
    "Lists",
    "ObjectMeta",
    "Page",
    "Pages",
    "PartUpload",
    "PendingUpload",
    "Puts",
    "Store",
    "StoredObject",
    "Uploads",
    "WritableBuffer",
]

WritableBuffer: TypeAlias = Buffer
"""A buffer the caller lets us write into: bytearray, memoryview, numpy array, a tensor's `.numpy()`."""


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    """What a store knows of an object without its bytes. `key` is relative to the store's URL."""

    key: str
    size: int
    etag: str | None = None
    last_modified: datetime | None = None


@dataclass(frozen=True, slots=True)
class StoredObject:
    """Bytes together with what the same response said of the object. `meta.size` is the whole object's."""

    meta: ObjectMeta
    data: memoryview


class Gets(Protocol):
    """Reads objects."""

    def get(
        self,
        key: str,
        *,
        start: int | None = None,
        stop: int | None = None,
        if_match: str | None = None,
    ) -> memoryview:
        """The object's bytes, or those of the half-open range. One request, no copy.

        A range that reaches past the end gives what there is, as a slice does. With `if_match` the read is
        pinned to that ETag and raises `ObjectChanged` for any other version.
        """
        ...

    def get_object(
        self,
        key: str,
        *,
        start: int | None = None,
        stop: int | None = None,
        if_match: str | None = None,
        expected_bytes: int | None = None,
    ) -> StoredObject:
        """Like `get`, with the metadata that came in the same response.

        `expected_bytes` is the object's size where it is known; a store may have a better way for large ones.
        """
        ...

    def get_into(
        self, key: str, buffer: WritableBuffer, *, start: int = 0, if_match: str | None = None
    ) -> int:
        """Fills `buffer` from byte `start` on and returns how many bytes there were. One request."""
        ...

    def head(self, key: str) -> ObjectMeta:
        """Size, ETag and time of an object. One request."""
        ...

    def exists(self, key: str) -> bool:
        """Whether the object is there. One request; a missing bucket is an error, not False."""
        ...


@dataclass(frozen=True, slots=True)
class Checksum:
    """What a store knows of an object's content. `crc32c` is that of the whole object, None where it does not tell."""

    meta: ObjectMeta
    crc32c: int | None


class Checksums(Protocol):
    """Tells what an object contains without sending it."""

    def checksum(self, key: str) -> Checksum:
        """The object's checksum, with the version it is of. One request, none of the bytes.

        S3 and GCS tell that of most objects, Azure that of what Penstock has put in one piece, local disks of none.
        """
        ...


class Puts(Protocol):
    """Writes objects."""

    def put(
        self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectMeta:
        """Writes the object whole, in one request: readers see the old bytes or the new, never a mixture.

        `if_absent` raises `AlreadyExists` if there is one; `if_match` raises `PreconditionFailed` unless the
        present version has that ETag.
        """
        ...


@dataclass(frozen=True, slots=True)
class Folder:
    """One level of a listing: the "folders" in it, each with its trailing slash, and its own objects."""

    folders: Sequence[str]
    objects: Sequence[ObjectMeta]


class KeyOrder(Enum):
    """The order in which a store lists, which is what its "start after" compares by."""

    UTF8 = "utf8"
    """By the bytes of the key: `a-b`, `a/x`. Every cloud."""
    PATH = "path"
    """Segment by segment, as if the slash came before every other character: `a/x`, `a-b`. SeaweedFS."""


@dataclass(frozen=True, slots=True)
class Page:
    """What one request listed, in columns: a million objects are made of these."""

    keys: Sequence[str]
    sizes: Sequence[int]
    etags: Sequence[str | None]


class Pages(Protocol):
    """Lists from anywhere, one request at a time, for who lists several parts of a prefix side by side."""

    def order(self) -> KeyOrder:
        """How the store sorts. May cost a request, once per process and endpoint."""
        ...

    def pages(self, prefix: str, *, start_after: str | None) -> Iterator[Page]:
        """Every page from there on, each fetched when it is asked for; the end costs no request of its own.

        As the store has them: in its own order, and with the empty `folder/` objects of consoles, named `folder`.
        """
        ...


class Lists(Protocol):
    """Finds objects."""

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectMeta]:
        """Every object whose key starts with `prefix`, also when that ends inside a path segment.

        One request per 1,000 keys. In UTF-8 order of the keys, except where the store itself keeps another
        (SeaweedFS goes by path segment). `start_after` leaves out keys up to and including that one.
        """
        ...

    def list_dirs(self, prefix: str = "") -> Sequence[str]:
        """The "folders" directly under `prefix`, each with its trailing slash, sorted."""
        ...

    def list_folder(self, prefix: str = "") -> Folder:
        """What is directly under `prefix`, both sorted. One request per 1,000 of them, however much lies deeper."""
        ...

    def parts(self) -> Pages | None:
        """What can list parts of this store side by side; None where it lists only from the beginning."""
        ...


class Deletes(Protocol):
    """Removes objects."""

    def delete(self, keys: str | Iterable[str]) -> None:
        """Removes these objects; one that is not there is fine. Uses the store's bulk delete where it has one."""
        ...


class Copies(Protocol):
    """Copies objects inside the store."""

    def copy(self, src: str, dst: str) -> None:
        """Copies on the server's side, replacing `dst`."""
        ...


@dataclass(frozen=True, slots=True)
class PendingUpload:
    """A multipart upload that was begun and neither completed nor aborted. It is not visible, and is paid for."""

    key: str
    id: str
    started: datetime


class PartUpload(Protocol):
    """An object on its way up in parts. Nothing is visible before `complete`, and nothing after `abort`."""

    def put_part(self, number: int, data: memoryview, *, offset: int) -> None:
        """Sends part `number`, from 0 on, which begins at `offset`. From many threads, in any order, each once."""
        ...

    def complete(self, *, size: int, crc32c: int) -> ObjectMeta:
        """Publishes the parts as one object, after comparing size and checksum with what the store has."""
        ...

    def abort(self) -> None:
        """Forgets the parts. May be called twice, and after `complete`, where it does nothing."""
        ...


class Uploads(Protocol):
    """Writes objects too large to hold in memory."""

    def open_upload(self, key: str, *, if_absent: bool = False) -> PartUpload:
        """Begins an upload in parts of at least 5 MiB, the last one excepted."""
        ...

    def pending_uploads(self, prefix: str = "") -> Iterator[PendingUpload]:
        """Uploads that somebody began and did not finish; `Unsupported` where the store cannot tell."""
        ...

    def abort_upload(self, upload: PendingUpload) -> None:
        """Removes the parts of such an upload; one that is gone is fine."""
        ...


class Store(Gets, Checksums, Puts, Lists, Deletes, Copies, Uploads, Protocol):
    """Everything a store can do. It pickles and forks as its recipe: a URL and a config."""

    @property
    def url(self) -> str:
        """The URL this store was opened with, normalised; keys are relative to it."""
        ...

    @property
    def config(self) -> StoreConfig:
        """The config this store was opened with."""
        ...
