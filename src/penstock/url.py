"""What a Penstock URL means: scheme, bucket and key. Pure; `store/open.py` turns one into a store."""

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self
from urllib.parse import unquote, urlsplit

from penstock.errors import InvalidUrl

__all__ = ["GOOD_URLS", "Location", "check_key", "check_prefix"]

GOOD_URLS = (
    "s3://bucket/key, gs://bucket/key, az://container/key, "
    "abfs://container@account.dfs.core.windows.net/key, "
    "file:///folder/key, a plain path, memory://name/key or https://host/path"
)

_ALIASES = {"gcs": "gs", "abfss": "abfs"}
_SCHEMES = {"s3", "gs", "az", "abfs", "file", "memory", "http", "https"}
_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?P<slashes>/+)(?P<rest>.*)", re.DOTALL)
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")


@dataclass(frozen=True, slots=True)
class Location:
    """A place in a store. `key` is exact: no slash is added or taken away, and none leads it.

    `account` is set only where an Azure URL names one. `bucket` is `/` for files, whose key is the absolute
    path without its first slash, and scheme and host for `http`.
    """

    scheme: str
    bucket: str
    key: str = ""
    account: str | None = None

    @classmethod
    def parse(cls, url: str | os.PathLike[str]) -> Self:
        """Reads a URL or a path; a URL that went through `pathlib.Path` and lost a slash is repaired."""
        text = os.fspath(url)
        if not text:
            raise InvalidUrl(f"{text!r} is not a URL; a good one looks like {GOOD_URLS}")
        match = _SCHEME.fullmatch(text)
        if match is None:
            schemed = re.match(r"[A-Za-z][A-Za-z0-9+.-]+:", text) and not os.path.exists(text)
            if schemed or "://" in text:
                raise InvalidUrl(f"{text!r} is not a URL; a good one looks like {GOOD_URLS}")
            return cls._folder(text)
        scheme = match["scheme"].lower()
        scheme = _ALIASES.get(scheme, scheme)
        if scheme not in _SCHEMES:
            raise InvalidUrl(
                f"{text!r}: no store speaks {scheme!r}; a good URL looks like {GOOD_URLS}"
            )
        rest = match["rest"]
        if scheme != "file" and len(match["slashes"]) > 2:
            raise InvalidUrl(f"{text!r} has no bucket; a good URL looks like {GOOD_URLS}")
        if scheme == "file":
            if len(match["slashes"]) == 2:
                host, _, rest = rest.partition("/")
                if host not in ("", "localhost"):
                    raise InvalidUrl(
                        f"{text!r} names a host; write file:///{host}/{rest} for the absolute path /{host}/{rest}"
                    )
            return cls._folder("/" + unquote(rest), trailing_slash=rest.endswith("/"))
        if scheme in ("http", "https"):
            return cls._http(scheme, rest, text)
        bucket, _, key = rest.partition("/")
        account = None
        if scheme == "abfs":
            scheme = "az"
            if "@" in bucket:
                bucket, _, host = bucket.partition("@")
                account = host.partition(".")[0]
        if not _BUCKET.fullmatch(bucket):
            what = "no bucket" if not bucket else f"the bucket name {bucket!r}"
            raise InvalidUrl(f"{text!r} has {what}; a good URL looks like {GOOD_URLS}")
        check_prefix(key, of=text)
        return cls(scheme, bucket, key, account)

    @classmethod
    def _folder(cls, path: str, *, trailing_slash: bool = False) -> Self:
        absolute = os.path.abspath(os.path.expanduser(path))
        slash = "/" if trailing_slash or path.endswith(os.sep) else ""
        return cls("file", "/", absolute.lstrip("/") + slash if absolute != "/" else "")

    @classmethod
    def _http(cls, scheme: str, rest: str, text: str) -> Self:
        parts = urlsplit(f"{scheme}://{rest}")
        if not parts.hostname or parts.query or parts.fragment or parts.username:
            raise InvalidUrl(
                f"{scheme}://{parts.hostname or ''}{parts.path}: an http URL needs a host, and may have "
                "no user, query or fragment; pass credentials as StoreConfig(headers=…)"
            )
        key = unquote(parts.path.removeprefix("/"))
        check_prefix(key, of=text)
        return cls(scheme, f"{scheme}://{parts.netloc}", key)

    @property
    def root(self) -> str:
        """The URL of the bucket alone."""
        return str(replace(self, key=""))

    def join(self, key: str) -> Self:
        """The location of `key` below this one, with exactly one slash between them."""
        if not self.key:
            return replace(self, key=key)
        return replace(self, key=f"{self.key.removesuffix('/')}/{key}")

    def path(self) -> Path:
        """The file behind a `file` location."""
        if self.scheme != "file":
            raise InvalidUrl(f"{self} is not a local path")
        return Path("/" + self.key)

    def __str__(self) -> str:
        match self.scheme:
            case "file":
                return f"file:///{self.key.replace('%', '%25')}"
            case "http" | "https":
                return f"{self.bucket}/{self.key}"
            case "az" if self.account is not None:
                return f"abfs://{self.bucket}@{self.account}.dfs.core.windows.net/{self.key}"
            case _:
                return (
                    f"{self.scheme}://{self.bucket}/{self.key}"
                    if self.key
                    else f"{self.scheme}://{self.bucket}"
                )


_SUSPECT = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]|^/|//|/$|(?:^|/)\.{1,2}(?:/|$)")


def check_key(key: str, *, of: str) -> None:
    """Refuses the keys that clients and stores silently turn into other keys; all others round-trip exactly.

    Empty, `.` and `..` segments are dropped or resolved somewhere on the way to every store, and a control
    character cannot travel in a listing.
    """
    if not key:
        raise InvalidUrl(f"{of}: the key is empty; name an object, such as folder/name")
    if len(key) > 256 or _SUSPECT.search(key):
        if key.endswith("/"):
            raise InvalidUrl(f"{of}: key {key!r} ends with a slash, which stores drop; remove it")
        check_prefix(key, of=of)


def check_prefix(prefix: str, *, of: str) -> None:
    """Like `check_key`, for the beginning of a key: it may be empty or end with a slash."""
    if prefix.startswith("/"):
        raise InvalidUrl(f"{of}: {prefix!r} starts with a slash, which stores drop; remove it")
    body = prefix.removesuffix("/")
    for segment in body.split("/") if body else ():
        if segment in ("", ".", ".."):
            raise InvalidUrl(
                f"{of}: {prefix!r} has the segment {segment!r}, which stores resolve to another key; "
                "rename the object"
            )
    if any(ord(c) < 32 or ord(c) == 127 for c in prefix):
        raise InvalidUrl(f"{of}: {prefix!r} has a control character; rename the object")
    try:
        size_bytes = len(prefix.encode())
    except UnicodeEncodeError as exc:
        raise InvalidUrl(f"{of}: {prefix!r} is not valid unicode; rename the object") from exc
    if size_bytes > 1024:
        raise InvalidUrl(
            f"{of}: {prefix[:40]!r}… has {size_bytes} bytes in UTF-8; stores allow 1,024"
        )
