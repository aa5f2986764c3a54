"""FaultProxy: an HTTP proxy before any object store that injects faults and counts requests."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypedDict, Unpack
from urllib.parse import urlsplit

_ERROR_CODES = {403: "AccessDenied", 429: "TooManyRequests", 500: "InternalError", 503: "SlowDown"}
_STOP_TIMEOUT_S = 5.0
_NOT_RUNNING = "FaultProxy is not running; use it as a context manager or start() it"

# The child gets bare parent packages, so that it imports neither torch nor the rest of penstock.
_BOOT = """
import sys, types
for name, path in zip(("penstock", "penstock.testing"), sys.argv[1:3]):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
from penstock.testing._proxy_process import main
main(sys.argv[3])
"""


class _Keep(Enum):
    KEEP = "keep"


class Matching(TypedDict, total=False):
    """Which requests a fault strikes; what is left out is as in `Fault`."""

    method: str | None
    key: str
    skip: int
    times: int | None
    rate: float
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What goes wrong, and for which requests. Built by the classmethods.

    A request matches by method and by a glob on its key, in which `*` crosses slashes; listings and
    other bucket requests have the key `""`, so `"?*"` is every object request. Of those that match,
    the first `skip` pass, then a share of `rate`, drawn from `seed`, is struck until `times` were.
    Offsets into a body are moved inside it where they lie beyond its end.
    """

    name: str
    method: str | None = None
    key: str = "*"
    skip: int = 0
    times: int | None = None
    rate: float = 1.0
    seed: int = 0
    code: int = 0
    retry_after_s: int | None = None
    error_code: str = ""
    message: str = ""
    offset: int | None = None
    delay_ms: float = 0.0
    mibs: float | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.rate <= 1.0:
            raise ValueError(f"rate must be between 0 and 1, got {self.rate}")
        for name, value in (("skip", self.skip), ("times", self.times), ("offset", self.offset)):
            if value is not None and value < 0:
                raise ValueError(f"{name} must not be negative, got {value}")
        _check_pace(self.delay_ms, self.mibs)

    @classmethod
    def status(
        cls,
        code: int,
        *,
        retry_after_s: int | None = None,
        error_code: str | None = None,
        message: str = "injected by FaultProxy",
        **matching: Unpack[Matching],
    ) -> Self:
        """Answers with an S3 error document once the request's body was read; upstream sees nothing."""
        if not 200 <= code <= 599:
            raise ValueError(f"code must be a final HTTP status, 200 to 599, got {code}")
        error_code = error_code or _ERROR_CODES.get(code, f"Status{code}")
        return cls(
            name="status",
            code=code,
            retry_after_s=retry_after_s,
            error_code=error_code,
            message=message,
            **matching,
        )

    @classmethod
    def reset_before(cls, **matching: Unpack[Matching]) -> Self:
        """Resets the connection when the request has arrived; upstream sees nothing."""
        return cls(name="reset_before", **matching)

    @classmethod
    def reset_during(cls, *, after_bytes: int | None = None, **matching: Unpack[Matching]) -> Self:
        """Resets after so many bytes of the body (None: half); nothing is stored.

        The body is the request's where it has one, the response's otherwise. A response without a
        body is cut in its headers.
        """
        return cls(name="reset_during", offset=after_bytes, **matching)

    @classmethod
    def reset_after(cls, **matching: Unpack[Matching]) -> Self:
        """Lets upstream complete the request, then resets: the store changed, the client cannot know.

        A GET or HEAD gets all of its response but the last byte, other methods nothing.
        """
        return cls(name="reset_after", **matching)

    @classmethod
    def truncate(cls, *, after_bytes: int | None = None, **matching: Unpack[Matching]) -> Self:
        """Closes cleanly after so many bytes of the response body (None: half), fewer than promised.

        A response without a body is cut in its headers.
        """
        return cls(name="truncate", offset=after_bytes, **matching)

    @classmethod
    def flip(cls, *, offset: int | None = None, **matching: Unpack[Matching]) -> Self:
        """Flips one bit of the body (None: in its middle), the request's where it has one.

        An empty body passes as it is.
        """
        return cls(name="flip", offset=offset, **matching)

    @classmethod
    def stall(cls, *, after_bytes: int | None = 0, **matching: Unpack[Matching]) -> Self:
        """Sends the headers and so many bytes of the response body, then nothing for ever.

        None sends not even the headers, and upstream sees nothing. A response without a body
        stalls before the last byte of its headers.
        """
        return cls(name="stall", offset=after_bytes, **matching)

    @classmethod
    def latency(cls, ms: float, **matching: Unpack[Matching]) -> Self:
        """Delays the request, on top of the proxy's own latency."""
        return cls(name="latency", delay_ms=ms, **matching)

    @classmethod
    def throttle(cls, mibs: float, **matching: Unpack[Matching]) -> Self:
        """Caps each struck request by itself, on top of the proxy's own bandwidth."""
        return cls(name="throttle", mibs=mibs, **matching)


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One request as the proxy saw it, times in seconds since the proxy started.

    `range` is half-open; a suffix of n bytes is `(-n, None)`. `status` is None while nothing was
    answered or where the connection was cut before it, `finished_s` while the request is under way.
    Values in `query` that sign or identify are redacted.
    """

    method: str
    bucket: str
    key: str
    query: str
    range: tuple[int, int | None] | None
    status: int | None
    fault: str | None
    bytes_sent: int
    started_s: float
    finished_s: float | None


class FaultProxy:
    """Forwards to the store at `upstream` from a process of its own, which ends with this one's.

    `latency_ms` delays every request before it is forwarded; delayed requests overlap.
    `bandwidth_mibs` caps the bodies of all connections together, both ways. At most one fault
    strikes a request: the first added that matches. `bucket_segments` is how many path segments
    come before the key: 2 for an Azure emulator. A forked child may use `endpoint`, nothing else.
    """

    def __init__(
        self,
        upstream: str,
        *,
        latency_ms: float = 0.0,
        bandwidth_mibs: float | None = None,
        faults: Sequence[Fault] = (),
        bucket_segments: int = 1,
    ) -> None:
        parts = urlsplit(upstream)
        if parts.scheme != "http" or parts.hostname is None:
            raise ValueError(f"upstream must look like http://127.0.0.1:8333, got {upstream!r}")
        if bucket_segments < 1:
            raise ValueError(f"bucket_segments must be at least 1, got {bucket_segments}")
        _check_pace(latency_ms, bandwidth_mibs)
        self._config = {
            "host": parts.hostname,
            "port": parts.port or 80,
            "latency_ms": latency_ms,
            "bandwidth_mibs": bandwidth_mibs,
            "faults": [asdict(fault) for fault in faults],
            "bucket_segments": bucket_segments,
        }
        self._path = parts.path.rstrip("/")
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._endpoint: str | None = None
        self._owner_pid = 0

    def start(self) -> Self:
        """Returns once the proxy accepts connections; does nothing if it already runs."""
        if self._process is not None:
            return self
        folder = Path(__file__).resolve().parent
        self._owner_pid = os.getpid()
        config = json.dumps(self._config | {"parent_pid": self._owner_pid})
        self._process = subprocess.Popen(  # noqa: S603  our own interpreter and code
            [sys.executable, "-I", "-S", "-c", _BOOT, str(folder.parent), str(folder), config],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,  # a Ctrl-C at the terminal is for the tests, not for the proxy
        )
        try:
            self._endpoint = f"http://127.0.0.1:{self._read_reply()}{self._path}"
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Ends the process and waits for it; open connections break. May be called again."""
        process = self._process
        if process is None or self._owner_pid != os.getpid():
            return
        self._process = self._endpoint = None
        assert process.stdin is not None
        with self._lock, process:  # leaving the process closes its pipes
            with suppress(BrokenPipeError):  # it died with a command unread
                process.stdin.close()
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def endpoint(self) -> str:
        """Where clients connect; the path of `upstream`, if it had one, is kept."""
        if self._endpoint is None:
            raise RuntimeError(_NOT_RUNNING)
        return self._endpoint

    @property
    def pid(self) -> int:
        """The proxy's process, for accounting its CPU time."""
        return self._running().pid

    @property
    def requests(self) -> list[LoggedRequest]:
        """Every request since the start or the last `clear_log`, in order of arrival.

        A request whose response the client has read is here, with its status.
        """
        rows = self._ask("log", None)
        for row in rows:
            row[4] = row[4] and tuple(row[4])
        return [LoggedRequest(*row) for row in rows]

    def count(self, method: str | None = None, key: str = "*") -> int:
        """How many logged requests have this method and a key that matches the glob."""
        return int(self._ask("count", [method, key]))

    def clear_log(self) -> None:
        self._ask("clear_log", None)

    def add(self, fault: Fault) -> None:
        """Adds a fault behind those already there, effective for requests from now on."""
        self._ask("add", asdict(fault))

    def clear_faults(self) -> None:
        """Forgets all faults; requests they already struck stay struck."""
        self._ask("clear_faults", None)

    def set(
        self,
        *,
        latency_ms: float | Literal[_Keep.KEEP] = _Keep.KEEP,
        bandwidth_mibs: float | Literal[_Keep.KEEP] | None = _Keep.KEEP,
    ) -> None:
        """Changes what is given, for requests from now on; a bandwidth of None is no cap."""
        pace: dict[str, float | None] = {}
        if latency_ms is not _Keep.KEEP:
            _check_pace(latency_ms, None)
            pace["latency_ms"] = latency_ms
        if bandwidth_mibs is not _Keep.KEEP:
            _check_pace(0.0, bandwidth_mibs)
            pace["bandwidth_mibs"] = bandwidth_mibs
        self._ask("set", pace)

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise RuntimeError(_NOT_RUNNING)
        if self._owner_pid != os.getpid():
            raise RuntimeError("FaultProxy is another process's; a fork may only use .endpoint")
        return self._process

    def _ask(self, operation: str, argument: object) -> Any:
        with self._lock:
            process = self._running()
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # it died: reading its reply tells
                process.stdin.write(json.dumps([operation, argument]) + "\n")
                process.stdin.flush()
            return self._read_reply()

    def _read_reply(self) -> Any:
        process = self._running()
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"FaultProxy's process died (exit {process.wait()}); see its stderr")
        return json.loads(line)


def _check_pace(latency_ms: float, mibs: float | None) -> None:
    if latency_ms < 0:
        raise ValueError(f"latency must not be negative, got {latency_ms} ms")
    if mibs is not None and mibs <= 0:
        raise ValueError(f"bandwidth must be above 0 MiB/s, or None for no cap, got {mibs}")
