"""Uploads in parts for stores that have no word for it: memory, local files, and Azure through the engine."""

import os
import re
import secrets
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from penstock.errors import AlreadyExists, IntegrityError, TransferFailed
from penstock.store.protocol import ObjectMeta, PartUpload, PendingUpload

__all__ = ["FileUpload", "MemoryUpload", "StreamUpload", "staged_files"]

_STAGED = re.compile(r"(?P<name>.+)#\d+")


class MemoryUpload(PartUpload):
    """Collects the parts and hands them to `publish` as one."""

    def __init__(self, publish: Callable[[bytes], ObjectMeta]) -> None:
        self._publish = publish
        self._parts: dict[int, bytes] = {}

    def put_part(self, number: int, data: memoryview, *, offset: int) -> None:
        del offset
        self._parts[number] = data.tobytes()

    def complete(self, *, size: int, crc32c: int) -> ObjectMeta:
        del size, crc32c
        return self._publish(b"".join(self._parts[number] for number in sorted(self._parts)))

    def abort(self) -> None:
        self._parts.clear()


class FileUpload(PartUpload):
    """Writes the parts to a file beside the target, under a name that listings leave out, and renames it.

    The engine names its own staging files alike, `name#digits`, which is why its listings skip them.
    """

    def __init__(self, path: Path, *, key: str, url: str, if_absent: bool) -> None:
        self._path = path
        self._key = key
        self._url = url
        self._if_absent = if_absent
        path.parent.mkdir(parents=True, exist_ok=True)
        self._staged = path.with_name(f"{path.name}#{os.getpid()}{secrets.randbelow(10**9)}")
        self._descriptor = os.open(self._staged, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        self._finished = False

    def put_part(self, number: int, data: memoryview, *, offset: int) -> None:
        del number
        done = 0
        while done < len(data):
            done += os.pwrite(self._descriptor, data[done:], offset + done)

    def complete(self, *, size: int, crc32c: int) -> ObjectMeta:
        del crc32c
        stored = os.fstat(self._descriptor).st_size
        if stored != size:
            self.abort()
            raise IntegrityError(
                f"{self._url}: {size} bytes were written, {stored} are on disk; write it again"
            )
        os.fsync(self._descriptor)
        if self._if_absent:
            try:
                os.link(self._staged, self._path)
            except FileExistsError as exc:
                self.abort()
                raise AlreadyExists(
                    f"{self._url}: there is an object already; delete it, or write without if_absent"
                ) from exc
        else:
            os.replace(self._staged, self._path)
        self.abort()
        return ObjectMeta(self._key, size)

    def abort(self) -> None:
        if not self._finished:
            self._finished = True
            os.close(self._descriptor)
            self._staged.unlink(missing_ok=True)


class StreamUpload(PartUpload):
    """Feeds the parts, in order, to an engine call that takes an iterator and uploads it in blocks.

    `send` runs in a thread of its own. It gets copies: the engine keeps what it is given until its own requests have
    ended, and does not say when that is, while our caller fills the same memory anew.
    """

    def __init__(
        self, send: Callable[[Iterator[memoryview]], None], verify: Callable[[int], ObjectMeta]
    ) -> None:
        self._verify = verify
        self._changed = threading.Condition()
        self._parts: dict[int, memoryview] = {}
        self._next = 0
        self._last: int | None = None
        self._aborted = False
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(send,), daemon=True)
        self._thread.start()

    def put_part(self, number: int, data: memoryview, *, offset: int) -> None:
        del offset
        with self._changed:
            self._parts[number] = data
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._next > number or not self._thread.is_alive() or self._failure
            )
            if self._failure is not None:
                raise self._failure

    def complete(self, *, size: int, crc32c: int) -> ObjectMeta:
        del crc32c
        with self._changed:
            self._last = len(self._parts)
            self._changed.notify_all()
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self._verify(size)

    def abort(self) -> None:
        with self._changed:
            self._aborted = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self, send: Callable[[Iterator[memoryview]], None]) -> None:
        try:
            send(self._in_order())
        except Exception as exc:  # noqa: BLE001 - raised again where the caller waits
            with self._changed:
                self._failure = exc
                self._changed.notify_all()

    def _in_order(self) -> Iterator[memoryview]:
        while True:
            with self._changed:
                self._changed.wait_for(self._ready)
                if self._aborted:
                    raise TransferFailed("the upload was aborted")
                if self._next == self._last:
                    return
                part = memoryview(bytes(self._parts[self._next]))
                self._parts[self._next] = memoryview(b"")
                self._next += 1
                self._changed.notify_all()
            yield part

    def _ready(self) -> bool:
        return self._aborted or self._next in self._parts or self._next == self._last


def staged_files(root: Path, prefix: str) -> Iterator[PendingUpload]:
    """Files that an upload left behind when its process was killed."""
    for path in sorted(root.rglob("*#*")):
        match = _STAGED.fullmatch(path.name)
        if match is None or not path.is_file():
            continue
        key = path.with_name(match["name"]).relative_to(root).as_posix()
        if key.startswith(prefix):
            yield PendingUpload(key, str(path), datetime.fromtimestamp(path.stat().st_mtime, UTC))
