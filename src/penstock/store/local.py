"""A folder: what a disk does otherwise than a bucket."""

from collections.abc import Iterator
from pathlib import Path

from penstock.errors import BucketNotFound, Unsupported
from penstock.store.adapter import ObjectStore
from penstock.store.protocol import Buffer, ObjectMeta, PartUpload, PendingUpload
from penstock.store.staged import FileUpload, staged_files
from penstock.url import check_prefix

__all__ = ["LocalStore"]


class LocalStore(ObjectStore):
    """Files below a folder, which is made by the first write. Listed in the order of their keys' bytes."""

    def put(
        self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectMeta:
        if if_match is not None and not if_absent:
            raise Unsupported(
                f"{self._url}{key}: local files have no conditional replace; put without if_match"
            )
        return super().put(key, data, if_absent=if_absent, if_match=if_match)

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectMeta]:
        found = False
        for meta in super().list(prefix, start_after=start_after):
            found = True
            yield meta
        if not found and not self._location.path().is_dir():
            raise BucketNotFound(f"{self._url}: no such folder; create it, or check the path")

    def open_upload(self, key: str, *, if_absent: bool = False) -> PartUpload:
        path = Path("/", self._path(key))
        self._refuse_present(key, if_absent=if_absent)
        return FileUpload(path, key=key, url=f"{self._url}{key}", if_absent=if_absent)

    def pending_uploads(self, prefix: str = "") -> Iterator[PendingUpload]:
        check_prefix(prefix, of=self._url)
        return staged_files(self._location.path(), prefix)

    def abort_upload(self, upload: PendingUpload) -> None:
        Path(upload.id).unlink(missing_ok=True)
