"""A server that answers listings and nothing else, out of memory: as cheap for listings as nginx is for reads.

ListObjectsV2 over keys in UTF-8 order, with prefix, start-after and continuation-token; pages of 1,000. Run as a
process of its own, which imports neither torch nor penstock.
"""

import asyncio
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from urllib.parse import parse_qs, urlsplit

__all__ = ["FEW_PREFIX", "FLAT_PREFIX", "FOLDERS_PREFIX", "keys_of"]

FOLDERS_PREFIX = "folders/"
FLAT_PREFIX = "flat/"
FEW_PREFIX = "ten/"
_HOST = "127.0.0.1"
_PAGE_KEYS = 1000
_HEAD_END = b"\r\n\r\n"
_ENTRY = (
    b"<Contents><Key>%s</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified>"
    b"<ETag>&quot;%032x&quot;</ETag><Size>1</Size><StorageClass>STANDARD</StorageClass></Contents>"
)
_PAGE = (
    b'<?xml version="1.0" encoding="UTF-8"?>\n'
    b'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>bench</Name>'
    b"<KeyCount>%d</KeyCount><MaxKeys>1000</MaxKeys><IsTruncated>%s</IsTruncated>%s%s</ListBucketResult>"
)


def keys_of(count: int) -> dict[str, list[str]]:
    """What a bucket holds, by prefix: so many keys in folders of a thousand, as many in one folder, and ten."""
    return {
        FOLDERS_PREFIX: [
            f"{FOLDERS_PREFIX}{index // 1000:04d}/{index:08d}.jpg" for index in range(count)
        ],
        FLAT_PREFIX: [f"{FLAT_PREFIX}{index:08d}.jpg" for index in range(count)],
        FEW_PREFIX: [f"{FEW_PREFIX}{index}" for index in range(10)],
    }


class Bucket:
    """Sorted keys, each with its piece of XML."""

    def __init__(self, keys: Sequence[str]) -> None:
        # No key of ours has a character that XML escapes.
        self._keys = sorted(key.encode() for key in keys)
        self._entries = [_ENTRY % (key, index) for index, key in enumerate(self._keys)]

    def page(self, query: str) -> bytes:
        """The answer to one ListObjectsV2. A continuation token is the index of the next key."""
        asked = {name: values[-1] for name, values in parse_qs(query).items()}
        prefix = asked.get("prefix", "").encode()
        first = bisect_left(self._keys, prefix)
        # No UTF-8 text contains the byte 0xff.
        stop = bisect_left(self._keys, prefix + b"\xff")
        if "start-after" in asked:
            first = max(first, bisect_right(self._keys, asked["start-after"].encode()))
        if "continuation-token" in asked:
            first = max(first, int(asked["continuation-token"]))
        last = min(first + min(_PAGE_KEYS, int(asked.get("max-keys", _PAGE_KEYS))), stop)
        more = last < stop
        token = b"<NextContinuationToken>%d</NextContinuationToken>" % last if more else b""
        return _PAGE % (
            max(0, last - first),
            b"true" if more else b"false",
            token,
            b"".join(self._entries[first:last]),
        )


class Answers(asyncio.Protocol):
    """One connection; requests have no bodies."""

    def __init__(self, bucket: Bucket, latency_s: float) -> None:
        self._bucket = bucket
        self._latency_s = latency_s
        self._held = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._held += data
        while (end := self._held.find(_HEAD_END)) >= 0:
            head, self._held = self._held[:end], self._held[end + len(_HEAD_END) :]
            target = head.split(b" ", 2)[1].decode()
            if self._latency_s:
                asyncio.get_running_loop().call_later(self._latency_s, self._answer, target)
            else:
                self._answer(target)

    def _answer(self, target: str) -> None:
        assert self._transport is not None
        query = urlsplit(target).query
        body = self._bucket.page(query) if "list-type=2" in query else b""
        self._transport.write(
            b"HTTP/1.1 200 OK\r\nServer: penstock-list\r\nContent-Type: application/xml\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )


async def _serve(port: int, count: int, latency_ms: float) -> None:
    bucket = Bucket([key for keys in keys_of(count).values() for key in keys])
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Answers(bucket, latency_ms / 1000), _HOST, port, backlog=256
    )
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
