"""A real S3 or GCS server on this machine: SeaweedFS on free ports, with its own credentials and folder."""

import atexit
import fcntl
import http.client
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock.config import AccessKey, BearerToken, StoreConfig
from penstock.errors import ConfigError, StoreUnavailable, Unsupported
from penstock.testing import watchdog
from penstock.testing.process import LOOPBACK, OwnedProcess, is_free
from penstock.testing.weed import (
    Identities,
    Ports,
    answers,
    check_bucket_name,
    command,
    environment,
    find_weed,
    lost_a_port,
    takes_objects,
)

__all__ = ["ObjectServer"]

_REGION = "us-east-1"
_ATTEMPTS = 5
_STARTUP_TIMEOUT_S = 60.0
_POLL_S = 0.02
_IDENTITIES = "s3.config"


class ObjectServer:
    """SeaweedFS, ready when `start()` or the `with` statement returns, and ended with this process at the latest.

    Starts in under a second. `dir` keeps data and credentials for the next server on that folder; without it a
    temporary folder goes when the server stops. `port=0` picks a free one, kept for the life of this object.
    `gcs=True` serves the XML dialect of `gs://` and takes any bearer token. Only this machine can connect, but
    every user of it: the filer behind the S3 port asks for no credentials.
    """

    def __init__(
        self,
        buckets: Sequence[str] = (),
        *,
        dir: Path | str | None = None,  # noqa: A002 - as in tempfile, and as the option --dir
        port: int = 0,
        gcs: bool = False,
    ) -> None:
        if isinstance(buckets, str):
            raise TypeError(
                f"buckets must be a sequence of names, got the string {buckets!r}; write [{buckets!r}]"
            )
        for bucket in buckets:
            check_bucket_name(bucket)
        self._buckets = list(buckets)
        self._kept_dir = None if dir is None else Path(dir).absolute()
        self._dir = self._kept_dir
        self._port = port
        self._gcs = gcs
        self._identities = Identities.generate()
        self._ports: Ports | None = None
        self._process: OwnedProcess | None = None
        self._owner_pid = os.getpid()

    def __repr__(self) -> str:
        state = "running" if self.running else "not running"
        return f"<ObjectServer {LOOPBACK}:{self._port} {self._buckets} {state}>"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> Self:
        """Returns when every bucket has taken, given back and deleted an object. Running already is fine."""
        if os.getpid() != self._owner_pid:
            raise ConfigError(
                f"{self!r} belongs to process {self._owner_pid}, which forked this one; start a new one"
            )
        if self.running:
            return self
        weed = find_weed()
        if self._port and not is_free(self._port):
            raise ConfigError(
                f"port {self._port} on {LOOPBACK} is in use; choose another, or 0 for any free one"
            )
        atexit.register(self.stop)
        try:
            self._launch(weed, self._prepared_dir())
            for bucket in self._buckets:
                self.create_bucket(bucket)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Ends the server, in order where it lets us, and removes a temporary folder. Twice is fine.

        Does nothing in a forked child: the server is its parent's.
        """
        if os.getpid() != self._owner_pid:
            return
        self._end(OwnedProcess.stop)
        if self._kept_dir is None and self._dir is not None:
            watchdog.remove(self._dir)
            self._dir = None
        atexit.unregister(self.stop)

    def kill(self) -> None:
        """Ends the server at once, as a crash would. Its data stays, for `restart()`, until `stop()`."""
        self._end(OwnedProcess.kill)

    def restart(self) -> None:
        """Stops the server where it runs, and starts it with the same endpoint, data and credentials."""
        self._end(OwnedProcess.stop)
        self.start()

    def create_bucket(self, name: str) -> None:
        """Existing already is fine. Takes 0.2 s, for the first object of a bucket has room made for it."""
        check_bucket_name(name)
        ports = self._ports
        if ports is None or not self.running:
            raise ConfigError(
                f"bucket {name!r}: not created, for the server is not running; start() it first"
            )
        self._wait_until(lambda: takes_objects(ports, bucket=name), what=f"bucket {name!r}")
        if name not in self._buckets:
            self._buckets.append(name)

    @property
    def running(self) -> bool:
        """Whether this process started the server and it has not ended."""
        return self._process is not None and self._process.running

    @property
    def endpoint(self) -> str:
        """`http://127.0.0.1:PORT`, the same after every restart."""
        if self._ports is None:
            raise ConfigError("ObjectServer: no endpoint before start()")
        return f"http://{LOOPBACK}:{self._port}"

    @property
    def pid(self) -> int:
        """Of the server process."""
        return self._started().pid

    @property
    def dir(self) -> Path:
        """Where data, credentials and log are."""
        if self._dir is None:
            raise ConfigError("ObjectServer: no folder before start() or after stop()")
        return self._dir

    def log_tail(self) -> str:
        """The last 4 KiB that the server wrote since it was last started."""
        return self._started().log_tail()

    def url(self, bucket: str, key: str = "") -> str:
        """`s3://bucket` or `s3://bucket/key`; `gs://` of a GCS server."""
        root = f"{'gs' if self._gcs else 's3'}://{bucket}"
        return f"{root}/{key}" if key else root

    @property
    def config(self) -> StoreConfig:
        """For whoever may do everything."""
        if self._gcs:
            return StoreConfig(endpoint=self.endpoint, credentials=BearerToken("any"))
        return self._config_of(self._identities.writer)

    @property
    def read_only_config(self) -> StoreConfig:
        """For whoever may list and get, and is refused everything else."""
        if self._gcs:
            raise Unsupported(
                "ObjectServer(gcs=True) takes any token for everything; use an S3 server"
            )
        return self._config_of(self._identities.reader)

    @property
    def env(self) -> dict[str, str]:
        """Variables that lead this library, boto3 and most other clients here. The secret is among them."""
        if self._gcs:
            return {"STORAGE_EMULATOR_HOST": self.endpoint}
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self._identities.writer.id,
            "AWS_SECRET_ACCESS_KEY": self._identities.writer.secret,
            "AWS_REGION": _REGION,
            "AWS_DEFAULT_REGION": _REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def _config_of(self, key: AccessKey) -> StoreConfig:
        return StoreConfig(endpoint=self.endpoint, region=_REGION, credentials=key)

    def _prepared_dir(self) -> Path:
        if self._dir is None:
            self._dir = Path(tempfile.mkdtemp(prefix="penstock-server-"))
        for name in ("data", "tmp"):
            (self._dir / name).mkdir(parents=True, exist_ok=True)
        # weed reads back the options of its last start, which may have been another kind of server.
        (self._dir / "data" / "mini.options").unlink(missing_ok=True)
        path = self._dir / _IDENTITIES
        if path.exists():
            self._identities = Identities.load(path)
        else:
            self._identities.save(path)
        return self._dir

    def _launch(self, weed: str, folder: Path) -> None:
        for _ in range(_ATTEMPTS):
            self._ports = Ports.pick(s3=self._port)
            self._process = self._spawn(weed, folder, self._ports)
            try:
                self._wait_until(self._is_ready, what="the server")
            except StoreUnavailable:
                if self.running or not lost_a_port(self.log_tail()):
                    raise
                # Not _end(): the sockets named after a lost port are the winner's.
                self._process.kill()
                self._process = self._ports = None
            else:
                self._port = self._ports.s3
                return
        raise StoreUnavailable(
            f"ObjectServer: its ports were taken by others {_ATTEMPTS} times in a row; try again"
        )

    def _is_ready(self) -> bool:
        """Asks two ports: if another server has taken one of them, it does not answer on both."""
        assert self._ports is not None
        bucket = self._buckets[0] if self._buckets else None
        return answers(self._ports) and takes_objects(self._ports, bucket=bucket)

    def _spawn(self, weed: str, folder: Path, ports: Ports) -> OwnedProcess:
        with (folder / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as exc:
                raise ConfigError(
                    f"{folder} is in use by a running ObjectServer; stop it, or use another folder"
                ) from exc
            return OwnedProcess(
                command(
                    weed,
                    ports=ports,
                    data=folder / "data",
                    identities=None if self._gcs else folder / _IDENTITIES,
                ),
                env=environment(folder / "tmp"),
                cwd=folder / "tmp",
                log=folder / "weed.log",
                litter=ports.sockets if self._kept_dir else [*ports.sockets, folder],
                # The server itself holds the lock, so that it is free exactly when the server is gone.
                keep_fds=[lock.fileno()],
            )

    def _end(self, how: Callable[[OwnedProcess], None]) -> None:
        if self._process is None or self._ports is None or os.getpid() != self._owner_pid:
            return
        how(self._process)
        for path in self._ports.sockets:
            path.unlink(missing_ok=True)

    def _started(self) -> OwnedProcess:
        if self._process is None:
            raise ConfigError(
                "ObjectServer: not started; call start() or use it in a with statement"
            )
        return self._process

    def _wait_until(self, condition: Callable[[], bool], *, what: str) -> None:
        process = self._started()
        deadline = time.monotonic() + _STARTUP_TIMEOUT_S
        while True:
            try:
                if condition():
                    return
            except (OSError, http.client.HTTPException):
                # Refused or cut off while it starts; the loop decides for how long that is fine.
                pass
            if not process.running:
                raise StoreUnavailable(
                    f"ObjectServer: {what} is not ready, for weed has ended; its log:\n{self.log_tail()}"
                )
            if time.monotonic() > deadline:
                raise StoreUnavailable(
                    f"ObjectServer: {what} is not ready after {_STARTUP_TIMEOUT_S:.0f} s; its log:\n{self.log_tail()}"
                )
            time.sleep(_POLL_S)
