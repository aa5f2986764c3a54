"""The ends of a copy: what `copy.py` asks of both, and the end that is a store. `copy_local.py` is the other one."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from penstock.errors import IntegrityError, InvalidUrl, NotFound, ObjectChanged
from penstock.store import ObjectMeta, PartUpload, Store
from penstock.store.protocol import Buffer
from penstock.transfer.copy_plan import Entry
from penstock.url import check_key

__all__ = ["End", "PartSource", "StoreEnd", "refusal"]


class PartSource(Protocol):
    """An object that is read in parts, all of one version."""

    def read_into(self, view: memoryview, *, start: int) -> None:
        """Fills `view` from byte `start` on. From many threads."""
        ...

    def check(self, crc32c: int) -> None:
        """Raises unless the parts that were read, with this checksum together, are the object."""
        ...


class End(Protocol):
    """A folder on disk, or a prefix of a store. Names are relative to it."""

    def url(self, name: str) -> str:
        """What a message calls the object."""
        ...

    def list(self) -> Iterator[Entry]:
        """Everything below."""
        ...

    def find(self, names: Iterable[str]) -> Mapping[str, Entry]:
        """Which of these are there."""
        ...

    def refuse(self, names: Iterable[str]) -> Mapping[str, str]:
        """Which of these cannot be written here, each with the reason."""
        ...

    def read(self, entry: Entry) -> memoryview:
        """The whole of a small object."""
        ...

    def write(self, name: str, data: Buffer) -> None:
        """Writes a small object; it appears whole."""
        ...

    def open_parts(self, entry: Entry) -> AbstractContextManager[PartSource]:
        """A large object, to read."""
        ...

    def open_upload(self, name: str) -> PartUpload:
        """A large object, to write."""
        ...

    def has_etag(self, entry: Entry, etag: str | None) -> bool:
        """Whether this ETag, which the other end has, can only be that of the content here."""
        ...

    def crc32c(self, entry: Entry) -> int | None:
        """The checksum of the content, None where it cannot be had without transferring it."""
        ...


class StoreEnd(End):
    """The objects below a prefix, which is empty or ends with a slash."""

    def __init__(self, store: Store, prefix: str) -> None:
        self.store = store
        self.prefix = prefix

    def url(self, name: str) -> str:
        return f"{self.store.url.rstrip('/')}/{self.prefix}{name}"

    def list(self) -> Iterator[Entry]:
        at = len(self.prefix)
        for meta in self.store.list(self.prefix):
            if len(meta.key) > at:
                yield _entry(meta, meta.key[at:])

    def find(self, names: Iterable[str]) -> Mapping[str, Entry]:
        wanted = set(names)
        if len(wanted) == 1:
            name = wanted.pop()
            try:
                return {name: _entry(self.store.checksum(self.prefix + name).meta, name)}
            except NotFound:
                return {}
        listed = self.list() if wanted else ()
        return {entry.name: entry for entry in listed if entry.name in wanted}

    def refuse(self, names: Iterable[str]) -> Mapping[str, str]:
        reasons = ((name, refusal(self.prefix + name)) for name in names)
        return {name: reason for name, reason in reasons if reason is not None}

    def read(self, entry: Entry) -> memoryview:
        return self.store.get(self.prefix + entry.name)

    def write(self, name: str, data: Buffer) -> None:
        self.store.put(self.prefix + name, data)

    @contextmanager
    def open_parts(self, entry: Entry) -> Iterator[PartSource]:
        yield _ObjectParts(self.store, self.prefix + entry.name, entry, self.url(entry.name))

    def open_upload(self, name: str) -> PartUpload:
        return self.store.open_upload(self.prefix + name)

    def has_etag(self, entry: Entry, etag: str | None) -> bool:
        del entry, etag  # The plan has compared what the listings say; there is no more to know.
        return False

    def crc32c(self, entry: Entry) -> int | None:
        found = self.store.checksum(self.prefix + entry.name)
        _check_version(entry, found.meta, self.url(entry.name))
        return found.crc32c


class _ObjectParts(PartSource):
    def __init__(self, store: Store, key: str, entry: Entry, url: str) -> None:
        self._store = store
        self._key = key
        self._url = url
        found = store.checksum(key)
        _check_version(entry, found.meta, url)
        self._etag = found.meta.etag
        self._crc32c = found.crc32c

    def read_into(self, view: memoryview, *, start: int) -> None:
        got = self._store.get_into(self._key, view, start=start, if_match=self._etag)
        if got != len(view):
            raise ObjectChanged(f"{self._url}: ends at byte {start + got}; copy it again")

    def check(self, crc32c: int) -> None:
        if self._crc32c is not None and crc32c != self._crc32c:
            raise IntegrityError(
                f"{self._url}: arrived with CRC32C {crc32c:08x}, stored was {self._crc32c:08x}; copy it again"
            )


def refusal(key: str) -> str | None:
    """Why no store takes this key, without the key: the message that it goes into has it."""
    try:
        check_key(key, of="the name")
    except InvalidUrl as exc:
        return str(exc)
    return None


def _entry(meta: ObjectMeta, name: str) -> Entry:
    return Entry(name, meta.size, meta.etag)


def _check_version(entry: Entry, meta: ObjectMeta, url: str) -> None:
    if meta.size != entry.size or (None not in (entry.etag, meta.etag) and entry.etag != meta.etag):
        raise ObjectChanged(f"{url}: was overwritten since it was listed; copy it again")
