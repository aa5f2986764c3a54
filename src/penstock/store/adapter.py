"""The store over obstore: keys checked, errors translated, every call counted, whole reads verified."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Self

from crc32c import crc32c

from penstock.config import StoreConfig
from penstock.errors import (
    AlreadyExists,
    BucketNotFound,
    IntegrityError,
    NotFound,
    Unsupported,
)
from penstock.store.calls import EngineCalls, PastTheEnd
from penstock.store.clients import endpoint_of
from penstock.store.pages import PartLister, level_of, list_entries
from penstock.store.protocol import (
    Buffer,
    Checksum,
    Folder,
    ObjectMeta,
    Pages,
    PartUpload,
    PendingUpload,
    Store,
    StoredObject,
    WritableBuffer,
)
from penstock.store.staged import StreamUpload
from penstock.url import Location, check_key, check_prefix

__all__ = ["CHECKSUM_ATTRIBUTE", "ObjectStore", "check_range", "flat"]

CHECKSUM_ATTRIBUTE = "penstockcrc32c"
"""User metadata that carries the CRC32C, as eight hexadecimal digits. A name that every cloud allows."""

_DELETE_BATCH = 1000
_STREAM_BYTES = 4 << 20
_MD5 = re.compile(r'"[0-9a-f]{32}"')


class ObjectStore(Store):
    """A bucket, container or folder behind obstore. Holds a recipe; the client is this process's own."""

    def __init__(self, location: Location, config: StoreConfig) -> None:
        self._location = location
        self._config = config
        self._root = f"{location.key.removesuffix('/')}/" if location.key else ""
        self._url = f"{str(location).removesuffix('/')}/"
        self._keeps_attributes = location.scheme in ("s3", "gs", "az")
        self._etags_are_md5 = self._keeps_attributes
        self._calls = EngineCalls(location, config)

    @property
    def url(self) -> str:
        return str(self._location)

    @property
    def config(self) -> StoreConfig:
        return self._config

    def __reduce__(self) -> tuple[type[Self], tuple[Location, StoreConfig]]:
        return type(self), (self._location, self._config)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

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
        path = self._path(key)
        options = _get_options(start, stop, if_match)
        if start == stop and start is not None:
            return StoredObject(self.head(key), memoryview(b""))
        verify = self._keeps_attributes and self._config.verify_checksums and not start

        def read(obstore: Any, client: Any) -> tuple[Any, memoryview, str | None]:
            result = obstore.get(client, path, options=options)
            # Attributes first: collecting the bytes consumes the result.
            checksum = result.attributes.get(CHECKSUM_ATTRIBUTE) if verify else None
            meta = result.meta
            return meta, memoryview(result.bytes()), checksum

        try:
            meta, data, checksum = self._calls.run(
                "get", key, read, size_read=lambda got: len(got[1])
            )
        except PastTheEnd:
            return StoredObject(self.head(key), memoryview(b""))
        if len(data) == meta["size"]:
            self._verify(key, data, checksum)
        return StoredObject(_meta(meta, key), data)

    def _verify(self, key: str, data: memoryview, checksum: str | None) -> None:
        if checksum is not None and (found := f"{crc32c(data):08x}") != checksum:
            raise IntegrityError(
                f"{self._url}{key}: {len(data)} bytes arrived with CRC32C {found}, stored was {checksum}; "
                "read it again, and if it happens again restore the object"
            )

    def get_into(
        self, key: str, buffer: WritableBuffer, *, start: int = 0, if_match: str | None = None
    ) -> int:
        path = self._path(key)
        view = self._writable(key, buffer)
        if not view:
            return 0
        options = _get_options(start, start + len(view), if_match)

        def fill(obstore: Any, client: Any) -> int:
            done = 0
            for chunk in obstore.get(client, path, options=options).stream(
                min_chunk_size=_STREAM_BYTES
            ):
                view[done : done + len(chunk)] = chunk
                done += len(chunk)
            return done

        try:
            return self._calls.run("get", key, fill, size_read=lambda done: done)
        except PastTheEnd:
            return 0

    def _writable(self, key: str, buffer: WritableBuffer) -> memoryview:
        view = memoryview(buffer).cast("B")
        if view.readonly:
            raise ValueError(
                f"{self._url}{key}: get_into needs a writable buffer, got a read-only one"
            )
        return view

    def head(self, key: str) -> ObjectMeta:
        path = self._path(key)
        try:
            meta = self._calls.run("head", key, lambda obstore, client: obstore.head(client, path))
        except NotFound:
            # A HEAD has no body to say which is missing, key or bucket; a listing's error does.
            next(self.list(key), None)
            raise
        return _meta(meta, key)

    def checksum(self, key: str) -> Checksum:
        path = self._path(key)

        def ask(obstore: Any, client: Any) -> tuple[Any, str | None]:
            result = obstore.get(client, path, options={"head": True})
            return result.meta, result.attributes.get(CHECKSUM_ATTRIBUTE)

        meta, found = self._calls.run("head", key, ask)
        return Checksum(_meta(meta, key), None if found is None else int(found, 16))

    def exists(self, key: str) -> bool:
        path = self._path(key)
        try:
            self._calls.run("head", key, lambda obstore, client: obstore.head(client, path))
        except NotFound:
            return False
        return True

    def put(
        self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectMeta:
        if if_absent and if_match is not None:
            raise ValueError(
                f"{self._url}{key}: if_absent and if_match exclude each other; give one of them"
            )
        path = self._path(key)
        view = flat(data)
        attributes = {CHECKSUM_ATTRIBUTE: f"{crc32c(view):08x}"} if self._keeps_attributes else None
        mode: Any = "create" if if_absent else "overwrite"
        if if_match is not None:
            mode = {"e_tag": if_match}

        def write(obstore: Any, client: Any) -> Any:
            return obstore.put(
                client, path, view, attributes=attributes, mode=mode, use_multipart=False
            )

        result = self._calls.run("put", key, write, size_written=len(view))
        etag = _etag(result["e_tag"])
        self._check_stored(key, view, etag)
        return ObjectMeta(key, len(view), etag)

    def _check_stored(self, key: str, data: memoryview, etag: str | None) -> None:
        """Compares the ETag of a put, an MD5 in most stores, with the data; asks the object itself if they differ."""
        if not (
            self._etags_are_md5 and self._config.verify_checksums and etag and _MD5.fullmatch(etag)
        ):
            return
        if hashlib.md5(data, usedforsecurity=False).hexdigest() == etag.strip('"'):
            return
        try:
            same = self.get(key) == data
        except IntegrityError:
            same = False
        if not same:
            raise IntegrityError(
                f"{self._url}{key}: the store holds other bytes than were sent; put the object again"
            )
        # Encrypted buckets have ETags that look like an MD5 and are none.
        self._etags_are_md5 = False

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectMeta]:
        check_prefix(prefix, of=self._url)
        return self._list(prefix, start_after)

    def _list(self, prefix: str, start_after: str | None) -> Iterator[ObjectMeta]:
        entries = list_entries(
            self._location.scheme,
            self._root + prefix,
            start_after=None if start_after is None else self._root + start_after,
            endpoint=endpoint_of(self._location, self._config),
            retry=self._config.retry,
            run=lambda call: self._calls.run("list", prefix, call),
        )
        for entry in entries:
            yield _meta(entry, entry["path"][len(self._root) :])

    def parts(self) -> Pages | None:
        # Azure has no "start after", and a disk no order; the engine would list all and leave out the beginning.
        if self._location.scheme not in ("s3", "gs"):
            return None
        return PartLister(
            self._root,
            endpoint=endpoint_of(self._location, self._config),
            retry=self._config.retry,
            run=lambda prefix, call: self._calls.run("list", prefix, call),
        )

    def list_dirs(self, prefix: str = "") -> Sequence[str]:
        return self.list_folder(prefix).folders

    def list_folder(self, prefix: str = "") -> Folder:
        check_prefix(prefix, of=self._url)
        full = self._root + prefix
        parent = full[: full.rfind("/") + 1]
        result = self._calls.run(
            "list",
            prefix,
            lambda obstore, client: obstore.list_with_delimiter(
                client, parent.removesuffix("/") or None
            ),
        )
        folders, entries = level_of(result, full)
        at = len(self._root)
        return Folder(
            [path[at:] for path in folders],
            [_meta(entry, entry["path"][at:]) for entry in entries],
        )

    def delete(self, keys: str | Iterable[str]) -> None:
        remaining = iter([keys] if isinstance(keys, str) else keys)
        while batch := [*islice(remaining, _DELETE_BATCH)]:
            self._delete_batch(batch, [self._path(key) for key in batch])

    def _delete_batch(self, keys: Sequence[str], paths: Sequence[str]) -> None:
        try:
            self._calls.run(
                "delete", keys[0], lambda obstore, client: obstore.delete(client, paths)
            )
        except BucketNotFound:
            raise
        except NotFound:
            # Some stores stop at the first key that is not there; the rest must still go.
            for key, path in zip(keys, paths, strict=True):
                self._delete_one(key, path)

    def _delete_one(self, key: str, path: str) -> None:
        try:
            self._calls.run("delete", key, lambda obstore, client: obstore.delete(client, path))
        except BucketNotFound:
            raise
        except NotFound:
            return

    def copy(self, src: str, dst: str) -> None:
        source, target = self._path(src), self._path(dst)
        self._calls.run("copy", src, lambda obstore, client: obstore.copy(client, source, target))

    def open_upload(self, key: str, *, if_absent: bool = False) -> PartUpload:
        path = self._path(key)
        self._refuse_present(key, if_absent=if_absent)
        return StreamUpload(
            lambda parts: self._send(key, path, parts), lambda size: self._stored(key, size)
        )

    def _refuse_present(self, key: str, *, if_absent: bool) -> None:
        """Says early what `complete` would say after all the bytes were sent."""
        if if_absent and self.exists(key):
            raise AlreadyExists(
                f"{self._url}{key}: there is an object already; delete it, or write without if_absent"
            )

    def _send(self, key: str, path: str, parts: Iterator[memoryview]) -> None:
        chunk_bytes = self._config.transfer.part_bytes

        def write(obstore: Any, client: Any) -> None:
            obstore.put(
                client, path, parts, use_multipart=True, chunk_size=chunk_bytes, max_concurrency=4
            )

        self._calls.run("put", key, write)

    def _stored(self, key: str, size: int) -> ObjectMeta:
        meta = self.head(key)
        if meta.size != size:
            raise IntegrityError(
                f"{self._url}{key}: {size} bytes were sent, {meta.size} are stored; write the object again"
            )
        return meta

    def pending_uploads(self, prefix: str = "") -> Iterator[PendingUpload]:
        check_prefix(prefix, of=self._url)
        raise Unsupported(
            f"{self._url}: this store does not tell of unfinished uploads; Azure forgets them after a week"
        )

    def abort_upload(self, upload: PendingUpload) -> None:
        raise Unsupported(
            f"{self._url}{upload.key}: this store does not tell of unfinished uploads"
        )

    def _path(self, key: str) -> str:
        check_key(key, of=self._url)
        return self._root + key


def check_range(start: int | None, stop: int | None) -> None:
    """Refuses what is no half-open range."""
    first = start or 0
    if first < 0 or (stop is not None and stop < first):
        raise ValueError(f"a range needs 0 <= start <= stop, got start={start}, stop={stop}")


def flat(data: Buffer) -> memoryview:
    """The bytes of any buffer in a row, copied only where they are not."""
    view = memoryview(data)
    return view.cast("B") if view.contiguous else memoryview(view.tobytes())


def _get_options(start: int | None, stop: int | None, if_match: str | None) -> dict[str, Any]:
    check_range(start, stop)
    first = start or 0
    options: dict[str, Any] = {} if if_match is None else {"if_match": if_match}
    if stop is not None:
        options["range"] = (first, stop)
    elif first:
        options["range"] = {"offset": first}
    return options


def _meta(entry: Any, key: str) -> ObjectMeta:
    return ObjectMeta(key, entry["size"], _etag(entry["e_tag"]), entry["last_modified"])


def _etag(etag: str | None) -> str | None:
    """In quotes, as HTTP has it; Azure's listings leave them out."""
    return etag if etag is None or etag.endswith('"') else f'"{etag}"'
