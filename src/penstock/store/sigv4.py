"""Signs S3 requests (AWS Signature Version 4). Pure; `wire.py` sends them.

Written by hand because the engine signs only its own requests, and botocore, which is optional here, takes four to six
times as long for one; the tests compare every signature with botocore's. See docs/decisions/0005-direct-transfers.md.
"""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from urllib.parse import quote

from penstock.config import AccessKey

__all__ = ["UNSIGNED", "canonical_path", "canonical_query", "sign"]

UNSIGNED = "UNSIGNED-PAYLOAD"
_SERVICE = "s3"


def sign(
    method: str,
    path: str,
    query: str,
    headers: Mapping[str, str],
    *,
    key: AccessKey,
    region: str,
    now: datetime,
) -> dict[str, str]:
    """The headers that authorise this request, to be sent beside `headers`, which must hold the host.

    `path` and `query` are as sent, in canonical form. The payload is not signed: TLS and a CRC32C guard it.
    """
    stamp = _stamp(now.replace(microsecond=0))
    signed = {"x-amz-date": stamp, "x-amz-content-sha256": UNSIGNED}
    if key.token:
        signed["x-amz-security-token"] = key.token
    names, canonical = _canonical_headers({**headers, **signed})
    request = f"{method}\n{path}\n{query}\n{canonical}\n{names}\n{UNSIGNED}"
    scope = f"{stamp[:8]}/{region}/{_SERVICE}/aws4_request"
    digest = hashlib.sha256(request.encode()).hexdigest()
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}"
    signature = hmac.new(
        _signing_key(key.secret, stamp[:8], region), text.encode(), "sha256"
    ).hexdigest()
    signed["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={key.id}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    return signed


def canonical_path(path: str) -> str:
    """A path as it is both sent and signed: everything but unreserved characters and slashes is escaped."""
    return quote(path, safe="/-_.~")


def canonical_query(query: Sequence[tuple[str, str]]) -> str:
    """A query as it is both sent and signed: escaped and sorted."""
    pairs = sorted((quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in query)
    return "&".join(f"{name}={value}" for name, value in pairs)


def _canonical_headers(headers: Mapping[str, str]) -> tuple[str, str]:
    lower = sorted((name.lower(), " ".join(value.split())) for name, value in headers.items())
    return ";".join(name for name, _ in lower), "".join(
        f"{name}:{value}\n" for name, value in lower
    )


@lru_cache(maxsize=4)
def _stamp(second: datetime) -> str:
    return second.strftime("%Y%m%dT%H%M%SZ")


@lru_cache(maxsize=16)
def _signing_key(secret: str, date: str, region: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in (date, region, _SERVICE, "aws4_request"):
        key = hmac.new(key, part.encode(), "sha256").digest()
    return key
