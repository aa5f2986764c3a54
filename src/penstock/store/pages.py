"""Lists what starts with any prefix, page by page, over an engine that lists whole path segments only."""

import http.client
import os
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from penstock.config import RetryConfig
from penstock.store.protocol import KeyOrder, Page, Pages
from penstock.store.translate import Failure

__all__ = ["Entry", "PartLister", "level_of", "list_entries", "predecessor"]

Entry: TypeAlias = Any
"""obstore's ObjectMeta: a dict with path, size, e_tag, last_modified."""

Call: TypeAlias = Callable[[Any, Any], Any]

_PAGE_KEYS = 1000
_PROBE_TIMEOUT_S = 5.0


def list_entries(
    scheme: str,
    prefix: str,
    *,
    start_after: str | None,
    endpoint: str | None,
    retry: RetryConfig,
    run: Callable[[Call], Any],
) -> Iterator[Entry]:
    """Every entry whose path starts with `prefix` and sorts after `start_after`; `run` makes one engine call.

    A prefix that ends inside a segment is listed from just before it in its folder until the first path that
    does not have it, so that it costs no more requests than a prefix that ends with a slash.
    """
    folder = prefix[: prefix.rfind("/") + 1]
    inside_segment = folder != prefix
    offset = predecessor(prefix) if inside_segment else None
    if start_after is not None and not (endpoint is not None and _orders_by_path(endpoint)):
        offset = max(offset or "", start_after, key=str.encode)
    pages = _pages(_Stream(folder.removesuffix("/") or None, offset, retry), run)
    entries = _in_order(pages) if scheme == "file" else _without_placeholders(pages)
    after = start_after.encode() if start_after is not None else None
    for entry in entries:
        path = entry["path"]
        if not path.startswith(prefix):
            if inside_segment and offset is not None and scheme != "file" and path > prefix:
                return
            continue
        if after is None or path.encode() > after:
            yield entry


def level_of(result: Any, prefix: str) -> tuple[list[str], list[Entry]]:
    """The folders, with their slash, and the entries that start with `prefix`, from the engine's list of its folder."""
    folders = {f"{path}/" for path in result["common_prefixes"]}
    # An empty object beside a folder of its name is the placeholder that consoles create.
    entries = (e for e in result["objects"] if e["size"] or f"{e['path']}/" not in folders)
    return (
        sorted(path for path in folders if path.startswith(prefix) and path != prefix),
        _in_order(entry for entry in entries if entry["path"].startswith(prefix)),
    )


class PartLister(Pages):
    """Lists pages below `root` from anywhere; `run` makes one engine call for a prefix."""

    def __init__(
        self,
        root: str,
        *,
        endpoint: str | None,
        retry: RetryConfig,
        run: Callable[[str, Call], Any],
    ) -> None:
        self._root = root
        self._endpoint = endpoint
        self._retry = retry
        self._run = run

    def order(self) -> KeyOrder:
        by_path = self._endpoint is not None and _orders_by_path(self._endpoint)
        return KeyOrder.PATH if by_path else KeyOrder.UTF8

    def pages(self, prefix: str, *, start_after: str | None) -> Iterator[Page]:
        full = self._root + prefix
        folder = full[: full.rfind("/") + 1]
        offset = predecessor(full) if folder != full else None
        if start_after is not None:
            offset = self._root + start_after
        stream = _Stream(folder.removesuffix("/") or None, offset, self._retry)
        while entries := self._run(prefix, stream.next_page):
            inside = [entry for entry in entries if entry["path"].startswith(full)]
            yield _page(inside, len(self._root))
            past = entries[-1]["path"] > full and not entries[-1]["path"].startswith(full)
            if len(entries) < _PAGE_KEYS or (offset is not None and past):
                return


def _page(entries: list[Entry], root: int) -> Page:
    return Page(
        [entry["path"][root:] for entry in entries],
        [entry["size"] for entry in entries],
        [entry["e_tag"] for entry in entries],
    )


def predecessor(prefix: str) -> str | None:
    """A string that sorts before everything that starts with `prefix`, and after nearly everything else before it.

    None where there is none that could travel in a request.
    """
    before = ord(prefix[-1]) - 1
    if before < 0x20 or 0xD800 <= before <= 0xDFFF or before == 0x7F:
        return None
    if before == ord("/") and prefix[-2:-1] in ("", "/"):
        # An empty segment cannot travel.
        before -= 1
    return f"{prefix[:-1]}{chr(before)}\U0010ffff"


class _Stream:
    """The engine's listing, opened again where the body of a page broke off: the engine retries only its head."""

    def __init__(self, folder: str | None, offset: str | None, retry: RetryConfig) -> None:
        self._folder = folder
        self._offset = offset
        self._retry = retry
        self._stream: Any = None
        self._pages_read = 0

    def next_page(self, obstore: Any, client: Any) -> Any:
        """The next page, or None at the end."""
        began = time.monotonic()
        pause_s = self._retry.backoff_initial_s
        for attempt in range(1, self._retry.max_attempts + 1):
            try:
                return self._read(obstore, client)
            except Exception as exc:
                late = time.monotonic() - began > self._retry.deadline_s
                if attempt == self._retry.max_attempts or late or not Failure.of(exc).broke_in_body:
                    raise
                self._stream = None
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, self._retry.backoff_max_s)
        raise AssertionError("max_attempts is at least 1")

    def _read(self, obstore: Any, client: Any) -> Any:
        if self._stream is None:
            self._stream = obstore.list(
                client, self._folder, offset=self._offset, chunk_size=_PAGE_KEYS
            )
            # From the start, not from the last key: not every store can be told to start there.
            for _ in range(self._pages_read):
                next(self._stream, None)
        page = next(self._stream, None)
        self._pages_read += 1
        return page


def _pages(stream: _Stream, run: Callable[[Call], Any]) -> Iterator[Entry]:
    while page := run(stream.next_page):
        yield from page
        if len(page) < _PAGE_KEYS:
            return


def _in_order(entries: Iterable[Entry]) -> list[Entry]:
    return sorted(entries, key=lambda entry: entry["path"].encode())


def _without_placeholders(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Leaves out the empty objects named `folder/` that consoles create: the engine drops their slash.

    Such an entry is empty and comes right before an entry of its folder.
    """
    held: Entry | None = None
    for entry in entries:
        if held is not None and not entry["path"].startswith(f"{held['path']}/"):
            yield held
        held = entry if entry["size"] == 0 else None
        if held is None:
            yield entry
    if held is not None:
        yield held


_path_order: dict[str, bool] = {}


def _orders_by_path(endpoint: str) -> bool:
    """Whether the store lists by path segment, as SeaweedFS does, so that `start_after` cannot be left to it.

    SeaweedFS sorts `a/x` before `a-b` and, asked to start after `a`, leaves out `a/x`. It says its name in the
    `Server` header; asking costs one request per process and endpoint, and only where `start_after` is used.
    """
    if endpoint not in _path_order:
        parts = urlsplit(endpoint)
        secure = parts.scheme == "https"
        connect = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = connect(parts.hostname or "", parts.port, timeout=_PROBE_TIMEOUT_S)
        try:
            connection.request("GET", parts.path or "/")
            server = connection.getresponse().getheader("Server", "")
        except (OSError, ssl.SSLError, http.client.HTTPException):
            # The listing itself goes to the same endpoint and will say what is wrong, after its retries.
            return False
        finally:
            connection.close()
        _path_order[endpoint] = server.startswith("SeaweedFS")
    return _path_order[endpoint]


os.register_at_fork(after_in_child=_path_order.clear)
