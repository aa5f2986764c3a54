"""Multipart uploads over the wire (S3 and GCS): part by part, a checksum each, verified whole at the end."""

import base64
import hashlib
import re
import threading
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from datetime import datetime
from xml.sax.saxutils import escape

from crc32c import crc32c

from penstock.errors import (
    AlreadyExists,
    IntegrityError,
    NotFound,
    PreconditionFailed,
    TransferFailed,
)
from penstock.store.protocol import ObjectMeta, PartUpload, PendingUpload
from penstock.store.wire import Answer, Wire

__all__ = ["WireUpload", "abort", "pending"]

_MD5 = re.compile("[0-9a-f]{32}")


class WireUpload(PartUpload):
    """An S3 multipart upload. `path` is the whole key in the bucket, `key` what the caller calls it."""

    def __init__(
        self, wire: Wire, path: str, *, key: str, url: str, if_absent: bool, gcs: bool
    ) -> None:
        self._wire = wire
        self._path = path
        self._key = key
        self._url = url
        self._if_absent = if_absent
        self._gcs = gcs
        self._lock = threading.Lock()
        self._parts: dict[int, tuple[str, str]] = {}
        self._finished = False
        self._checksums = not gcs
        self._id = self._begin()

    def _begin(self) -> str:
        headers = {"x-amz-checksum-algorithm": "CRC32C", "x-amz-checksum-type": "FULL_OBJECT"}
        try:
            answer = self._post("uploads", "", headers if self._checksums else {})
        except TransferFailed as exc:
            if not self._checksums or isinstance(exc.__cause__, OSError):
                raise
            # A store that does not know the checksum headers; Content-MD5 guards the parts instead.
            self._checksums = False
            answer = self._post("uploads", "", {})
        return _text(_parse(answer.body, self._url), "UploadId")

    def put_part(self, number: int, data: memoryview, *, offset: int) -> None:
        del offset
        checksum = _base64(crc32c(data))
        if self._checksums:
            headers = {"x-amz-checksum-crc32c": checksum}
        else:
            md5 = hashlib.md5(data, usedforsecurity=False).digest()
            headers = {"content-md5": base64.b64encode(md5).decode()}
        query = (("partNumber", str(number + 1)), ("uploadId", self._id))
        answer = self._wire.call("put", "PUT", self._path, query=query, headers=headers, body=data)
        with self._lock:
            self._parts[number] = (answer.headers["etag"], checksum)

    def complete(self, *, size: int, crc32c: int) -> ObjectMeta:
        checksum = _base64(crc32c)
        headers = {"content-type": "application/xml"}
        if self._checksums:
            headers |= {"x-amz-checksum-crc32c": checksum, "x-amz-mp-object-size": str(size)}
        if self._if_absent:
            headers |= {"x-goog-if-generation-match": "0"} if self._gcs else {"if-none-match": "*"}
        try:
            # Sent twice, the condition could meet the object that the first one made.
            self._post(
                "uploadId", self._id, headers, self._manifest(), send_again=not self._if_absent
            )
        except PreconditionFailed as exc:
            self.abort()
            raise AlreadyExists(
                f"{self._url}: there is an object already; delete it, or write without if_absent"
            ) from exc
        except NotFound as exc:
            # The answer to an earlier attempt may have been lost: then the object is there, and is checked below.
            if not self._is_published(size, checksum):
                raise TransferFailed(
                    f"{self._url}: the store no longer knows the upload, and what is there is not what was sent; "
                    "write it again"
                ) from exc
        self._finished = True
        return self._verified(size, checksum)

    def abort(self) -> None:
        if not self._finished:
            self._finished = True
            abort(self._wire, self._path, self._id)

    def _manifest(self) -> bytes:
        rows = []
        for number in sorted(self._parts):
            etag, checksum = self._parts[number]
            guard = f"<ChecksumCRC32C>{checksum}</ChecksumCRC32C>" if self._checksums else ""
            rows.append(
                f"<Part><PartNumber>{number + 1}</PartNumber><ETag>{escape(etag)}</ETag>{guard}</Part>"
            )
        return f"<CompleteMultipartUpload>{''.join(rows)}</CompleteMultipartUpload>".encode()

    def _is_published(self, size: int, checksum: str) -> bool:
        """Whether the object has our checksum or, where the store tells none, the ETag that these parts make."""
        try:
            headers = self._head().headers
        except NotFound:
            return False
        stored = _stored_checksum(headers)
        if stored is not None:
            return headers.get("content-length") == str(size) and stored == checksum
        etags = [self._parts[number][0].strip('"') for number in sorted(self._parts)]
        if not all(_MD5.fullmatch(etag) for etag in etags):
            return False
        digest = hashlib.md5(bytes.fromhex("".join(etags)), usedforsecurity=False).hexdigest()
        return headers.get("etag") == f'"{digest}-{len(etags)}"'

    def _verified(self, size: int, checksum: str) -> ObjectMeta:
        headers = self._head().headers
        stored = int(headers.get("content-length", "-1"))
        found = _stored_checksum(headers) or checksum
        if stored != size or found != checksum:
            raise IntegrityError(
                f"{self._url}: {size} bytes with CRC32C {checksum} were sent, {stored} with {found} are stored; "
                "write the object again"
            )
        return ObjectMeta(self._key, size, headers.get("etag"))

    def _head(self) -> Answer:
        return self._wire.call(
            "head", "HEAD", self._path, headers={"x-amz-checksum-mode": "ENABLED"}
        )

    def _post(
        self,
        name: str,
        value: str,
        headers: dict[str, str],
        body: bytes = b"",
        *,
        send_again: bool = True,
    ) -> Answer:
        answer = self._wire.call(
            "put",
            "POST",
            self._path,
            query=((name, value),),
            headers=headers,
            body=memoryview(body),
            send_again=send_again,
        )
        # S3 may answer 200 and then an error in the body.
        if b"<Error>" in bytes(answer.body):
            code = _text(_parse(answer.body, self._url), "Code")
            raise TransferFailed(
                f"{self._url}: the store could not complete the upload ({code}); write it again"
            )
        return answer


def pending(wire: Wire, prefix: str, root: str) -> Iterator[PendingUpload]:
    """Every unfinished upload under `prefix`. One request per 1,000."""
    marker: tuple[tuple[str, str], ...] = ()
    while True:
        query = (("uploads", ""), ("prefix", prefix), *marker)
        page = _parse(wire.call("list", "GET", "", query=query).body, prefix)
        for upload in _all(page, "Upload"):
            key = _text(upload, "Key")
            started = datetime.fromisoformat(_text(upload, "Initiated"))
            yield PendingUpload(key.removeprefix(root), _text(upload, "UploadId"), started)
        if _text(page, "IsTruncated", "false") != "true":
            return
        marker = (
            ("key-marker", _text(page, "NextKeyMarker")),
            ("upload-id-marker", _text(page, "NextUploadIdMarker")),
        )


def abort(wire: Wire, path: str, upload_id: str) -> None:
    """Removes an upload's parts; one that is gone is fine."""
    try:
        wire.call("delete", "DELETE", path, query=(("uploadId", upload_id),))
    except NotFound:
        return


def _stored_checksum(headers: Mapping[str, str]) -> str | None:
    """The CRC32C of the whole object in base64; one of checksums of parts (`…-3`) says nothing of the whole."""
    hashes = dict(
        part.strip().split("=", 1)
        for part in headers.get("x-goog-hash", "").split(",")
        if "=" in part
    )
    found = headers.get("x-amz-checksum-crc32c") or hashes.get("crc32c")
    return None if found is None or "-" in found else found


def _base64(crc: int) -> str:
    return base64.b64encode(crc.to_bytes(4, "big")).decode()


def _parse(body: memoryview, of: str) -> ET.Element:
    try:
        return ET.fromstring(bytes(body))  # noqa: S314 - from the store we authenticate to; expat bounds expansion
    except ET.ParseError as exc:
        raise TransferFailed(
            f"{of}: the store answered with something that is not XML ({exc})"
        ) from exc


def _all(element: ET.Element, name: str) -> list[ET.Element]:
    return [child for child in element if child.tag.rpartition("}")[2] == name]


def _text(element: ET.Element, name: str, default: str | None = None) -> str:
    found = _all(element, name)
    text = found[0].text if found else default
    if text is None:
        raise TransferFailed(f"the store's answer has no {name}; is this an S3 endpoint?")
    return text
