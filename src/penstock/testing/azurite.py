"""A real Azure Blob server on this machine: Azurite, from npm, on a free port, with its own account."""

import atexit
import base64
import fcntl
import hashlib
import hmac
import http.client
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from email.utils import formatdate
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock.config import AccountKey, StoreConfig
from penstock.errors import ConfigError, StoreUnavailable
from penstock.testing import watchdog
from penstock.testing.process import LOOPBACK, OwnedProcess, free_ports
from penstock.testing.weed import check_bucket_name

__all__ = ["AzureServer"]

_PACKAGE = "azurite@3.35.0"
_API_VERSION = "2021-12-02"
_ATTEMPTS = 5
_INSTALL_TIMEOUT_S = 300.0
_STARTUP_TIMEOUT_S = 60.0
_REQUEST_TIMEOUT_S = 10.0
_POLL_S = 0.05


class AzureServer:
    """Azurite, ready when `start()` or the `with` statement returns, and ended with this process at the latest.

    Needs Node. Where `azurite-blob` is not on PATH, the first use installs it with npm into the user's cache
    folder (190 MB, half a minute). Starts in about two seconds. Its data goes when it stops.
    """

    def __init__(self, containers: Sequence[str] = ()) -> None:
        for container in containers:
            check_bucket_name(container)
        self._containers = list(containers)
        self._account = AccountKey(
            f"penstock{secrets.token_hex(4)}", base64.b64encode(secrets.token_bytes(64)).decode()
        )
        self._port = 0
        self._dir: Path | None = None
        self._process: OwnedProcess | None = None
        self._owner_pid = os.getpid()

    @staticmethod
    def unavailable_reason() -> str | None:
        """Why it cannot be started here, None where it can. Installs Azurite where only that is missing."""
        try:
            _find_azurite()
        except ConfigError as exc:
            return str(exc)
        return None

    def __repr__(self) -> str:
        return f"<AzureServer {LOOPBACK}:{self._port} {self._containers}>"

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

    def start(self) -> None:
        """Returns when every container exists. Running already is fine."""
        if self._process is not None and self._process.running:
            return
        azurite = _find_azurite()
        atexit.register(self.stop)
        try:
            self._dir = Path(tempfile.mkdtemp(prefix="penstock-azure-"))
            self._launch(azurite, self._dir)
            for container in self._containers:
                self.create_container(container)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends the server and removes its data. Twice is fine; nothing happens in a forked child."""
        if os.getpid() != self._owner_pid:
            return
        if self._process is not None:
            self._process.stop()
        if self._dir is not None:
            watchdog.remove(self._dir)
            self._dir = None
        atexit.unregister(self.stop)

    def create_container(self, name: str) -> None:
        """Existing already is fine."""
        check_bucket_name(name)
        path = f"/{self._account.account}/{name}"
        status, body = self._request("PUT", path, {"restype": "container"})
        if status not in (201, 409):
            raise StoreUnavailable(f"az://{name}: not created ({status}): {body!r}")
        if name not in self._containers:
            self._containers.append(name)

    @property
    def endpoint(self) -> str:
        """`http://127.0.0.1:PORT/ACCOUNT`: emulators have the account in the path."""
        if not self._port:
            raise ConfigError("AzureServer: no endpoint before start()")
        return f"http://{LOOPBACK}:{self._port}/{self._account.account}"

    @property
    def pid(self) -> int:
        """Of the server process."""
        if self._process is None:
            raise ConfigError(
                "AzureServer: not started; call start() or use it in a with statement"
            )
        return self._process.pid

    def url(self, container: str, key: str = "") -> str:
        """`az://container` or `az://container/key`."""
        return f"az://{container}/{key}" if key else f"az://{container}"

    @property
    def config(self) -> StoreConfig:
        """For the owner of the account."""
        return StoreConfig(endpoint=self.endpoint, credentials=self._account)

    @property
    def env(self) -> dict[str, str]:
        """Variables that lead this library here. The account's key is among them."""
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": self._account.account,
            "AZURE_STORAGE_ACCOUNT_KEY": self._account.key,
            "AZURE_STORAGE_ENDPOINT": self.endpoint,
        }

    def _launch(self, azurite: Path, folder: Path) -> None:
        environment = {
            # A script that begins with `env node`.
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(folder),
            "AZURITE_ACCOUNTS": f"{self._account.account}:{self._account.key}",
        }
        for _ in range(_ATTEMPTS):
            (port,) = free_ports(1)
            options = {"blobHost": LOOPBACK, "blobPort": port, "location": folder}
            flags = ("skipApiVersionCheck", "disableProductStyleUrl", "disableTelemetry", "silent")
            process = self._process = OwnedProcess(
                [
                    str(azurite),
                    *(
                        item
                        for name, value in options.items()
                        for item in (f"--{name}", str(value))
                    ),
                    *(f"--{flag}" for flag in flags),
                ],
                env=environment,
                cwd=folder,
                log=folder / "azurite.log",
                litter=[folder],
            )
            self._port = port
            if self._answers_in_time(process):
                return
            if "EADDRINUSE" not in process.log_tail():
                raise StoreUnavailable(
                    f"AzureServer: did not start; its log:\n{process.log_tail()}"
                )
            process.kill()
        raise StoreUnavailable(
            f"AzureServer: its port was taken by others {_ATTEMPTS} times in a row; try again"
        )

    def _answers_in_time(self, process: OwnedProcess) -> bool:
        deadline = time.monotonic() + _STARTUP_TIMEOUT_S
        while process.running and time.monotonic() < deadline:
            try:
                status, _ = self._request("GET", f"/{self._account.account}/", {"comp": "list"})
            except OSError:
                # Refused while it starts; the loop decides for how long that is fine.
                time.sleep(_POLL_S)
            else:
                return status == 200
        return False

    def _request(self, method: str, path: str, query: dict[str, str]) -> tuple[int, bytes]:
        """Signed with the account's key (SharedKey, empty body)."""
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": _API_VERSION}
        canonical = [
            method,
            *[""] * 11,  # None of the standard headers that are signed.
            *(f"{name}:{value}" for name, value in sorted(headers.items())),
            # The account twice: once as account, once as the first segment of an emulator's path.
            f"/{self._account.account}{path}",
            *(f"{name}:{value}" for name, value in sorted(query.items())),
        ]
        key = base64.b64decode(self._account.key)
        digest = hmac.digest(key, "\n".join(canonical).encode(), hashlib.sha256)
        headers["Authorization"] = (
            f"SharedKey {self._account.account}:{base64.b64encode(digest).decode()}"
        )
        connection = http.client.HTTPConnection(LOOPBACK, self._port, timeout=_REQUEST_TIMEOUT_S)
        try:
            parameters = "&".join(f"{name}={value}" for name, value in query.items())
            connection.request(method, f"{path}?{parameters}", headers=headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


def _find_azurite() -> Path:
    """On PATH, else in the cache folder, else installed there."""
    on_path = shutil.which("azurite-blob")
    if on_path is not None:
        return Path(on_path)
    if shutil.which("node") is None:
        raise ConfigError(
            "azurite-blob: not on PATH, and there is no Node to run it; install Node 18 or later"
        )
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"
    installed = cache / _PACKAGE.replace("@", "-")
    binary = installed / "node_modules" / ".bin" / "azurite-blob"
    if not binary.exists():
        _install(installed)
    return binary


def _install(folder: Path) -> None:
    """With npm, beside its place and then renamed into it, so that an interrupted one leaves nothing half done."""
    npm = shutil.which("npm")
    if npm is None:
        raise ConfigError(
            f"azurite-blob: not on PATH, and no npm to install it with; npm install -g {_PACKAGE}"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            return
        with tempfile.TemporaryDirectory(dir=folder.parent, ignore_cleanup_errors=True) as scratch:
            fresh = Path(scratch) / "azurite"
            try:
                subprocess.run(  # noqa: S603 - npm from PATH, fixed arguments, no shell
                    [
                        npm,
                        "install",
                        "--prefix",
                        str(fresh),
                        "--no-audit",
                        "--no-fund",
                        "--loglevel=error",
                        _PACKAGE,
                    ],
                    check=True,
                    capture_output=True,
                    stdin=subprocess.DEVNULL,
                    text=True,
                    timeout=_INSTALL_TIMEOUT_S,
                )
            except subprocess.CalledProcessError as exc:
                raise ConfigError(
                    f"azurite-blob: {' '.join(exc.cmd)} failed: {exc.stderr.strip()[-500:]}"
                ) from exc
            except subprocess.TimeoutExpired as exc:
                raise ConfigError(
                    f"azurite-blob: npm did not finish within {_INSTALL_TIMEOUT_S:.0f} s"
                ) from exc
            fresh.rename(folder)
