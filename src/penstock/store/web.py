"""A web server: read, and nothing else."""

from collections.abc import Iterable

from penstock.errors import Unsupported
from penstock.store.adapter import ObjectStore
from penstock.store.protocol import Buffer, ObjectMeta, PartUpload

__all__ = ["WebStore"]


class WebStore(ObjectStore):
    """Pages of an http or https server."""

    def put(
        self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectMeta:
        del data, if_absent, if_match
        raise self._read_only(key)

    def delete(self, keys: str | Iterable[str]) -> None:
        del keys
        raise self._read_only("")

    def copy(self, src: str, dst: str) -> None:
        del src
        raise self._read_only(dst)

    def open_upload(self, key: str, *, if_absent: bool = False) -> PartUpload:
        del if_absent
        raise self._read_only(key)

    def _read_only(self, key: str) -> Unsupported:
        return Unsupported(
            f"{self._url}{key}: http stores are read-only; write through s3://, gs:// or az://"
        )
