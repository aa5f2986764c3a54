"""The limit, not a rival: sockets that read into waiting memory and send from it, and know almost no HTTP.

No retries, no checksums, no errors worth the name: what a Python process could move here at best.
"""

import socket
from collections.abc import Sequence
from datetime import timedelta
from queue import SimpleQueue
from urllib.parse import urlsplit

import obstore

from penstock_bench.micro.subjects.obstore import open_bucket
from penstock_bench.micro.subjects.protocol import Take, Target
from penstock_bench.micro.subjects.threads import Crew

__all__ = ["BareSocket", "BareSocketWriter"]

_PART_BYTES = 16 << 20
_HEAD_BYTES = 4096
_VALID_FOR = timedelta(hours=1)


class Connection:
    """Keeps alive, for one request at a time."""

    def __init__(self, netloc: str) -> None:
        host, _, port = netloc.partition(":")
        self._host = netloc
        self._socket = socket.create_connection((host, int(port or 80)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._head = bytearray(_HEAD_BYTES)

    def get_into(self, path: str, buffer: memoryview, *, start: int = 0) -> None:
        """Fills the buffer from byte `start` of the object on; the answer must have just that many."""
        last = start + len(buffer) - 1
        self._send("GET", path, f"Range: bytes={start}-{last}\r\n")
        _, rest = self._receive_head(b"206")
        buffer[: len(rest)] = rest
        at = len(rest)
        while at < len(buffer):
            received = self._socket.recv_into(buffer[at:], flags=socket.MSG_WAITALL)
            if not received:
                raise ConnectionError(f"{path.partition('?')[0]}: closed after {at} bytes")
            at += received

    def put(self, path: str, data: memoryview) -> str:
        """Returns the ETag."""
        self._send("PUT", path, f"Content-Length: {len(data)}\r\n")
        self._socket.sendall(data)
        head, _ = self._receive_head(b"200")
        for line in head.decode("latin-1").split("\r\n"):
            name, _, value = line.partition(":")
            if name.lower() == "etag":
                return value.strip()
        raise ConnectionError(f"{path.partition('?')[0]}: an answer without an ETag")

    def _send(self, method: str, path: str, headers: str) -> None:
        head = f"{method} {path} HTTP/1.1\r\nHost: {self._host}\r\n{headers}\r\n"
        self._socket.sendall(head.encode())

    def _receive_head(self, status: bytes) -> tuple[bytes, bytes]:
        """The head, and what of the body came with it."""
        at, end = 0, -1
        while end < 0:
            received = self._socket.recv_into(memoryview(self._head)[at:])
            if not received:
                raise ConnectionError("closed, or a head of more than 4 KiB")
            at += received
            end = self._head.find(b"\r\n\r\n", 0, at)
        if self._head[9:12] != status:
            raise ConnectionError(f"{bytes(self._head[:200])!r} where {status!r} was expected")
        return bytes(self._head[:end]), bytes(self._head[end + 4 : at])

    def close(self) -> None:
        self._socket.close()


class BareSocket:
    """Presigned URLs, signed before the clock; one connection for each thread."""

    def __init__(
        self, target: Target, keys: Sequence[str], *, threads: int, object_bytes: int = 0
    ) -> None:
        urls = obstore.sign(open_bucket(target), "GET", list(keys), _VALID_FOR)
        self._paths = {
            key: f"{parts.path}?{parts.query}"
            for key, parts in zip(keys, map(urlsplit, urls), strict=True)
        }
        self._object_bytes = object_bytes
        self._crew = Crew(threads)
        self._connections: SimpleQueue[Connection] = SimpleQueue()
        for _ in range(threads):
            self._connections.put(Connection(urlsplit(target.endpoint).netloc))

    def read_many(self, count: int, take: Take) -> None:
        def read_one(item: tuple[int, str]) -> None:
            index, path = item
            data = bytearray(self._object_bytes)
            self._get_into(path, memoryview(data), start=0)
            take(index, data)

        self._crew.each(enumerate(list(self._paths.values())[:count]), read_one)

    def read_into(self, key: str, buffer: memoryview) -> None:
        path = self._paths[key]
        self._crew.each(
            range(0, len(buffer), _PART_BYTES),
            lambda start: self._get_into(path, buffer[start : start + _PART_BYTES], start=start),
        )

    def _get_into(self, path: str, buffer: memoryview, *, start: int) -> None:
        connection = self._connections.get()
        try:
            connection.get_into(path, buffer, start=start)
        finally:
            self._connections.put(connection)

    def close(self) -> None:
        self._crew.close()
        while not self._connections.empty():
            self._connections.get().close()


class BareSocketWriter:
    """A multipart upload whose parts leave from the source's own memory. boto3 begins, signs and completes it."""

    def __init__(self, target: Target, _: Sequence[str], *, threads: int) -> None:
        import boto3
        from botocore.config import Config

        self._bucket = target.bucket
        self._client = boto3.client(
            "s3",
            endpoint_url=target.endpoint,
            region_name=target.region,
            aws_access_key_id=target.access_key_id,
            aws_secret_access_key=target.secret_access_key,
            config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
        )
        self._crew = Crew(threads)
        self._connections: SimpleQueue[Connection] = SimpleQueue()
        for _thread in range(threads):
            self._connections.put(Connection(urlsplit(target.endpoint).netloc))

    def write(self, key: str, source: bytes) -> None:
        view = memoryview(source)
        place = {"Bucket": self._bucket, "Key": key}
        place["UploadId"] = self._client.create_multipart_upload(**place)["UploadId"]
        starts = range(0, len(view), _PART_BYTES)
        etags = [""] * len(starts)

        def put_part(item: tuple[int, int]) -> None:
            index, start = item
            url = urlsplit(
                self._client.generate_presigned_url(
                    "upload_part", Params={**place, "PartNumber": index + 1}
                )
            )
            connection = self._connections.get()
            try:
                etags[index] = connection.put(
                    f"{url.path}?{url.query}", view[start : start + _PART_BYTES]
                )
            finally:
                self._connections.put(connection)

        self._crew.each(enumerate(starts), put_part)
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, 1)]
        self._client.complete_multipart_upload(**place, MultipartUpload={"Parts": parts})

    def close(self) -> None:
        self._crew.close()
        while not self._connections.empty():
            self._connections.get().close()
