"""Where things lie in a `torch.save` file: an uncompressed zip of a pickle and one record per storage. Pure.

`read_layout` understands what torch wrote; `plan_archive` lays out what torch would write, byte for byte.
"""

import io
import struct
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from penstock.errors import InvalidCheckpoint

__all__ = ["Archive", "Layout", "Record", "Slot", "Unplannable", "plan_archive", "read_layout"]

ReadBytes = Callable[[int, int], memoryview]
"""Gives the bytes of a half-open range of the file."""

_ALIGNMENT = 64
_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_LIMIT = 0xFFFFFFFF
_HAS_DESCRIPTOR = 0x0008
_ENCRYPTED = 0x0001
_FLAGS = 0x0808  # sizes follow the data; names are UTF-8
_NAME = "archive"


class Unplannable(Exception):
    """A file that cannot be read by ranges; its text says why. `load` then reads it as torch would."""


@dataclass(frozen=True, slots=True)
class Record:
    """Bytes of the file that belong together. `crc32` is None where the writer kept none."""

    name: str
    start: int
    size: int
    crc32: int | None = None

    @property
    def stop(self) -> int:
        return self.start + self.size


@dataclass(frozen=True, slots=True)
class Layout:
    """The pickle and, by the key that it uses, every storage."""

    pickle: Record
    storages: Mapping[str, Record]


class _File(io.RawIOBase):
    """Lets `zipfile` read the directory, and only what it asks for."""

    def __init__(self, size: int, read: ReadBytes) -> None:
        super().__init__()
        self._size = size
        self._read = read
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise zipfile.BadZipFile(f"it speaks of byte {base + offset}")
        self._at = base + offset
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        stop = self._size if size < 0 else min(self._size, self._at + size)
        data = bytes(self._read(self._at, stop)) if stop > self._at else b""
        self._at += len(data)
        return data


def read_layout(size: int, read: ReadBytes, *, byteorder: str) -> Layout:
    """Finds the pickle and the storages from the zip's directory, which is all it reads of a file by torch.

    `byteorder` is this machine's. Raises `Unplannable` for what only torch itself can read.
    """
    if bytes(read(0, min(4, size))) != b"PK\x03\x04":
        raise Unplannable("it is not a zip file; torch before 1.6 wrote such")
    try:
        with zipfile.ZipFile(_File(size, read)) as archive:
            found = archive.infolist()
            end = archive.start_dir
    except (zipfile.BadZipFile, NotImplementedError, UnicodeError, struct.error) as exc:
        raise InvalidCheckpoint(f"its zip directory cannot be read ({exc})") from exc
    records = {record.name: record for record in _locate(found, end, read)}
    prefix = next(iter(records), "").partition("/")[0]
    if f"{prefix}/constants.pkl" in records:
        raise Unplannable("it is a TorchScript archive")
    pickle = records.get(f"{prefix}/data.pkl")
    if pickle is None:
        raise Unplannable("its zip has no data.pkl")
    order = records.get(f"{prefix}/byteorder")
    if order is not None and bytes(read(order.start, order.stop)).decode() != byteorder:
        raise Unplannable("it was written on a machine of another byte order")
    at = f"{prefix}/data/"
    storages = {name[len(at) :]: record for name, record in records.items() if name.startswith(at)}
    return Layout(pickle, storages)


def _locate(found: Sequence[zipfile.ZipInfo], end: int, read: ReadBytes) -> Iterable[Record]:
    ordered = sorted(found, key=lambda info: info.header_offset)
    nexts = [info.header_offset for info in ordered[1:]] + [end]
    # Written by torch with set_crc32_options(False), every checksum is 0.
    has_crc = any(info.CRC for info in ordered)
    for info, following in zip(ordered, nexts, strict=True):
        if info.compress_type != zipfile.ZIP_STORED:
            raise Unplannable("its zip is compressed")
        if info.flag_bits & _ENCRYPTED:
            raise Unplannable("its zip is encrypted")
        start = _start_of(info, following, read)
        if not info.header_offset < start <= start + info.file_size <= following:
            raise InvalidCheckpoint(f"record {info.filename} does not lie inside the file")
        yield Record(info.filename, start, info.file_size, info.CRC if has_crc else None)


def _start_of(info: zipfile.ZipInfo, following: int, read: ReadBytes) -> int:
    """Torch aligns data to 64 bytes and ends it with a descriptor just before the next record; else it is looked up."""
    shortest = info.header_offset + _LOCAL.size + len(info.orig_filename.encode())
    if info.file_size == 0:
        return shortest
    if info.flag_bits & _HAS_DESCRIPTOR:
        start = following - _descriptor_bytes(info.header_offset, info.file_size) - info.file_size
        if start % _ALIGNMENT == 0 and 0 <= start - shortest <= 2 * _ALIGNMENT:
            return start
    header = bytes(read(info.header_offset, info.header_offset + _LOCAL.size))
    if len(header) < _LOCAL.size or header[:4] != b"PK\x03\x04":
        raise InvalidCheckpoint(f"record {info.filename} has no header where the directory says")
    *_, name_bytes, extra_bytes = _LOCAL.unpack(header)
    return int(info.header_offset + _LOCAL.size + name_bytes + extra_bytes)


def _descriptor_bytes(header_at: int, size: int) -> int:
    if size == 0:
        return 0
    return 24 if header_at >= _LIMIT or size >= _LIMIT else 16


@dataclass(frozen=True, slots=True)
class Slot:
    """A record to be written: what comes before its data, and where that begins."""

    name: str
    header_at: int
    header: bytes
    start: int
    size: int

    def trailer(self, crc32: int) -> bytes:
        """What comes after the data."""
        if self.size == 0:
            return b""
        wide = _descriptor_bytes(self.header_at, self.size) == 24
        return struct.pack(
            "<4sLQQ" if wide else "<4s3L", b"PK\x07\x08", crc32, self.size, self.size
        )


@dataclass(frozen=True, slots=True)
class Archive:
    """A file to be written, record by record: what is in each is `contents` for small ones, else a storage."""

    slots: Sequence[Slot]
    contents: Mapping[str, bytes]
    directory_at: int
    size: int

    def directory(self, crcs: Mapping[str, int]) -> bytes:
        """The end of the file, once every record's checksum is known."""
        entries = b"".join(_entry(slot, crcs[slot.name]) for slot in self.slots)
        return entries + _ending(len(self.slots), self.directory_at, len(entries))


def plan_archive(pickle: bytes, storages: Sequence[tuple[str, int]], *, byteorder: str) -> Archive:
    """Lays out the file that torch would write for this pickle and these storages, each a (key, size)."""
    contents = {
        f"{_NAME}/data.pkl": pickle,
        f"{_NAME}/.format_version": b"1",
        f"{_NAME}/.storage_alignment": str(_ALIGNMENT).encode(),
        f"{_NAME}/byteorder": byteorder.encode(),
        f"{_NAME}/version": b"3\n",
    }
    sizes = {name: len(data) for name, data in contents.items() if not name.endswith("/version")}
    sizes |= {f"{_NAME}/data/{key}": size for key, size in storages}
    sizes[f"{_NAME}/version"] = len(contents[f"{_NAME}/version"])
    slots = []
    at = 0
    for name, size in sizes.items():
        slot = _slot(name, at, size)
        slots.append(slot)
        at = slot.start + size + _descriptor_bytes(at, size)
    entries = sum(len(_entry(slot, 0)) for slot in slots)
    return Archive(slots, contents, at, at + entries + len(_ending(len(slots), at, entries)))


def _slot(name: str, at: int, size: int) -> Slot:
    wide = _zip64(size, at)
    start = at + _LOCAL.size + len(name) + len(wide) + 4
    padding = -start % _ALIGNMENT
    extra = wide + b"FB" + struct.pack("<H", padding) + b"Z" * padding
    flags = _FLAGS if size else _FLAGS & ~_HAS_DESCRIPTOR
    header = _LOCAL.pack(b"PK\x03\x04", 0, flags, 0, 0, 0, 0, 0, 0, len(name), len(extra))
    return Slot(name, at, header + name.encode() + extra, start + padding, size)


def _entry(slot: Slot, crc32: int) -> bytes:
    extra = _zip64(slot.size, slot.header_at)
    size, at = min(slot.size, _LIMIT), min(slot.header_at, _LIMIT)
    flags = _FLAGS if slot.size else _FLAGS & ~_HAS_DESCRIPTOR
    name = slot.name.encode()
    fixed = _CENTRAL.pack(
        b"PK\x01\x02", 0, 0, flags, 0, 0, 0, crc32, size, size, len(name), len(extra), 0, 0, 0, 0, at
    )  # fmt: skip
    return fixed + name + extra


def _zip64(size: int, at: int) -> bytes:
    """The extra field for what does not fit into 32 bits; torch's zip writer puts it into both headers."""
    values = [size, size] if size >= _LIMIT else []
    values += [at] if at >= _LIMIT else []
    return struct.pack(f"<HH{len(values)}Q", 1, 8 * len(values), *values) if values else b""


def _ending(count: int, at: int, size: int) -> bytes:
    """The zip64 end, its locator and the old end: torch writes all three, however small the file."""
    zip64 = struct.pack("<4sQHHLLQQQQ", b"PK\x06\x06", 44, 0x031E, 45, 0, 0, count, count, size, at)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, at + size, 1)
    few = min(count, 0xFFFF)
    old = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, few, few, size, min(at, _LIMIT), 0)
    return zip64 + locator + old
