"""The end of a copy that is a folder on this disk. A file is written beside its place and renamed: it appears whole."""

import errno
import fcntl
import hashlib
import os
import re
import secrets
import stat
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from crc32c import crc32c

from penstock.errors import InvalidUrl, ObjectChanged
from penstock.store import ObjectMeta, PartUpload
from penstock.store.protocol import Buffer
from penstock.transfer.copy_ends import End, PartSource, refusal
from penstock.transfer.copy_plan import Entry, Failure, md5_in, shadowed

__all__ = ["LocalEnd"]

# `name#digits` is what listings of local stores leave out and `sweep` finds; twenty of them, nobody's file has.
_STAGED = re.compile(r".+#[0-9]{20}", re.DOTALL)
_KEPT_NAME_BYTES = 200
_BOTH = "is also the folder of other objects, and a disk cannot hold both; copy it by itself"
_PIECE_BYTES = 4 << 20


class LocalEnd(End):
    """The files below a folder, hidden ones included. Links to files are followed, links to folders are not."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.warnings: list[str] = []
        self.failures: list[Failure] = []
        self._real_root = os.path.realpath(root)
        self._lock = threading.Lock()
        self._staged: set[str] = set()
        self._ready: set[str] = set()

    def url(self, name: str) -> str:
        return str(self.root / name)

    def list(self) -> Iterator[Entry]:
        return self._walk("")

    def _walk(self, folder: str) -> Iterator[Entry]:
        try:
            children = sorted(os.scandir(self.root / folder), key=lambda child: child.name)
        except OSError as exc:
            self.failures.append(Failure(self.url(folder), f"cannot be listed: {exc.strerror}"))
            return
        for child in children:
            name = f"{folder}{child.name}"
            if child.is_dir(follow_symlinks=False):
                yield from self._walk(f"{name}/")
            elif child.is_file():
                if not _STAGED.fullmatch(child.name):
                    yield Entry(name, child.stat().st_size)
            else:
                self.warnings.append(f"{self.url(name)}: skipped, for it is {_kind(child)}")

    def find(self, names: Iterable[str]) -> Mapping[str, Entry]:
        found: dict[str, Entry] = {}
        for name in names:
            # Absent, or in the way of a folder: writing it will tell.
            with suppress(OSError, ValueError):
                status = os.stat(self.root / name)
                if stat.S_ISREG(status.st_mode):
                    found[name] = Entry(name, status.st_size)
        return found

    def refuse(self, names: Iterable[str]) -> Mapping[str, str]:
        names = [*names]
        refused = dict.fromkeys(shadowed(names), _BOTH)
        for name in names:
            if (reason := refusal(name)) is not None:
                refused[name] = reason
        return refused

    def read(self, entry: Entry) -> memoryview:
        with self.open_parts(entry) as parts:
            view = memoryview(bytearray(entry.size))
            parts.read_into(view, start=0)
            parts.check(0)
            return view

    def write(self, name: str, data: Buffer) -> None:
        file = self.open_upload(name)
        try:
            view = memoryview(data)
            file.put_part(0, view, offset=0)
            file.complete(size=len(view), crc32c=0)
        finally:
            file.abort()

    @contextmanager
    def open_parts(self, entry: Entry) -> Iterator[PartSource]:
        with (self.root / entry.name).open("rb", buffering=0) as file:
            yield _FileParts(file.fileno(), self.url(entry.name), entry)

    def open_upload(self, name: str) -> PartUpload:
        return _StagedFile(self, self.root / name)

    def has_etag(self, entry: Entry, etag: str | None) -> bool:
        expected = md5_in(etag)
        if expected is None:
            return False
        digest = hashlib.md5(usedforsecurity=False)
        for piece in self._pieces(entry):
            digest.update(piece)
        return digest.hexdigest() == expected

    def crc32c(self, entry: Entry) -> int | None:
        crc = 0
        for piece in self._pieces(entry):
            crc = crc32c(piece, crc)
        return crc

    def _pieces(self, entry: Entry) -> Iterator[memoryview]:
        buffer = memoryview(bytearray(min(_PIECE_BYTES, entry.size + 1)))
        with (self.root / entry.name).open("rb", buffering=0) as file:
            while got := file.readinto(buffer):
                yield buffer[:got]

    def prepare(self, path: Path) -> None:
        """Makes the folder of a file that is to be written, and removes what a killed process left in it."""
        folder = str(path.parent)
        with self._lock:
            if folder in self._ready:
                return
        real = os.path.realpath(folder)
        if os.path.commonpath([real, self._real_root]) != self._real_root:
            raise InvalidUrl(
                f"{path}: a link leads to {real}, outside of {self.root}; remove the link"
            )
        try:
            os.makedirs(folder, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as exc:
            raise InvalidUrl(
                f"{path}: there is a file in place of one of its folders; remove it"
            ) from exc
        _remove_leftovers(folder)
        with self._lock:
            self._ready.add(folder)

    def staged(self, path: str) -> None:
        """Notes a file that must not outlive the copy."""
        with self._lock:
            self._staged.add(path)

    def settled(self, path: str) -> None:
        """Forgets it, renamed or removed."""
        with self._lock:
            self._staged.discard(path)

    def remove_staged(self) -> None:
        """Removes what is being written now; whoever writes it will fail."""
        with self._lock:
            left, self._staged = self._staged, set()
        for path in left:
            with suppress(FileNotFoundError):  # renamed or removed since
                os.unlink(path)


class _FileParts(PartSource):
    def __init__(self, descriptor: int, url: str, entry: Entry) -> None:
        self._descriptor = descriptor
        self._url = url
        self._before = os.fstat(descriptor)
        if self._before.st_size != entry.size:
            raise self._changed()

    def read_into(self, view: memoryview, *, start: int) -> None:
        done = 0
        while done < len(view):
            got = os.preadv(self._descriptor, [view[done:]], start + done)
            if not got:
                raise self._changed()
            done += got

    def check(self, crc32c: int) -> None:
        del crc32c  # Nobody knows what it should be; the time tells of a writer.
        after = os.fstat(self._descriptor)
        if (after.st_size, after.st_mtime_ns) != (self._before.st_size, self._before.st_mtime_ns):
            raise self._changed()

    def _changed(self) -> ObjectChanged:
        return ObjectChanged(
            f"{self._url}: changed while it was copied; copy it again when it is still"
        )


class _StagedFile(PartUpload):
    """A file under a name of its own until it is complete. Locked, so that another copy sees that it is in use."""

    def __init__(self, end: LocalEnd, path: Path) -> None:
        end.prepare(path)
        if path.is_dir() and not path.is_symlink():
            raise InvalidUrl(f"{path}: there is a folder of that name; remove it")
        self._end = end
        self._path = path
        self._staged, self._descriptor = self._create()
        self._finished = False

    def _create(self) -> tuple[str, int]:
        kept = os.fsdecode(os.fsencode(self._path.name)[:_KEPT_NAME_BYTES])
        while True:
            staged = f"{self._path.parent}/{kept}#{secrets.randbelow(10**20):020d}"
            descriptor = os.open(staged, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o666)
            self._end.staged(staged)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink:
                return staged, descriptor
            # Another copy took it for a leftover before it was locked.
            os.close(descriptor)
            self._end.settled(staged)

    def put_part(self, number: int, data: memoryview, *, offset: int) -> None:
        del number
        done = 0
        while done < len(data):
            done += os.pwrite(self._descriptor, data[done:], offset + done)

    def complete(self, *, size: int, crc32c: int) -> ObjectMeta:
        del crc32c  # Compared with the source's, by who read it.
        os.replace(self._staged, self._path)
        self._close()
        return ObjectMeta(self._path.name, size)

    def abort(self) -> None:
        if not self._finished:
            with suppress(FileNotFoundError):  # removed when the copy was interrupted
                os.unlink(self._staged)
            self._close()

    def _close(self) -> None:
        self._finished = True
        self._end.settled(self._staged)
        os.close(self._descriptor)


def _remove_leftovers(folder: str) -> None:
    for child in os.scandir(folder):
        if not _STAGED.fullmatch(child.name) or not child.is_file(follow_symlinks=False):
            continue
        try:
            descriptor = os.open(child.path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            # Somebody else's, or gone since.
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(child.path)
        except OSError as exc:
            if exc.errno not in (errno.EWOULDBLOCK, errno.ENOENT):
                raise
        finally:
            os.close(descriptor)


def _kind(child: os.DirEntry[str]) -> str:
    if child.is_symlink():
        return "a link to a folder" if child.is_dir() else "a link to nothing"
    return "neither a file nor a folder"
