"""Runs every fault of FaultProxy against every way of moving bytes, and writes the table in docs/reliability.md.

`python scripts/fault_matrix.py` measures, compares with what is expected, and renews the table; `--check` only
compares. The expectations below are those that tests/transfer/test_fault_matrix.py asserts, cell by cell.
"""  # noqa: INP001 - a script, run by path

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from penstock import RetryConfig, Store, TransferConfig, open_store
from penstock.errors import PenstockError
from penstock.testing import Fault, FaultProxy, ObjectServer
from penstock.transfer import ObjectReader, ObjectWriter, Upload, fetch, fetch_many

PAGE = Path(__file__).parents[1] / "docs/reliability.md"
BEGIN = "<!-- begin: scripts/fault_matrix.py -->"
END = "<!-- end: scripts/fault_matrix.py -->"

_MIB = 1 << 20
ATTEMPTS = 2
RETRY = RetryConfig(
    max_attempts=ATTEMPTS, deadline_s=5.0, backoff_initial_s=0.01, backoff_max_s=0.05
)
READ_TIMEOUT_S = 0.3
# No attempt begins after the deadline, and none is silent for longer than the read timeout.
GIVES_UP_WITHIN_S = RETRY.deadline_s + READ_TIMEOUT_S + 1.0

OK = "ok"
"""The right bytes, and nothing lost but time."""
DAMAGED = "wrong bytes"
"""What must never happen."""

FAULTS: dict[str, Callable[..., Fault]] = {
    "429": lambda **m: Fault.status(429, **m),
    "500": lambda **m: Fault.status(500, **m),
    "503": lambda **m: Fault.status(503, error_code="ServiceUnavailable", **m),
    "503 slow down": lambda **m: Fault.status(503, **m),
    "503 with Retry-After": lambda **m: Fault.status(503, retry_after_s=1, **m),
    "reset before": Fault.reset_before,
    "reset during": Fault.reset_during,
    "reset after": Fault.reset_after,
    "truncate": Fault.truncate,
    "flip a bit": Fault.flip,
    "stall before the headers": lambda **m: Fault.stall(after_bytes=None, **m),
    "stall in the body": lambda **m: Fault.stall(after_bytes=10, **m),
    "latency": lambda **m: Fault.latency(30, **m),
    "throttle": lambda **m: Fault.throttle(20, **m),
}

_LASTING = {
    "429": "Throttled",
    "500": "StoreUnavailable",
    "503": "StoreUnavailable",
    "503 slow down": "Throttled",
    "503 with Retry-After": "Throttled",
    "reset before": "TransferFailed",
    "reset during": "TransferFailed",
    "reset after": "TransferFailed",
    "truncate": "TransferFailed",
    "flip a bit": "IntegrityError",
    "stall before the headers": "StoreUnavailable",
    "stall in the body": "StoreUnavailable",
    "latency": OK,
    "throttle": OK,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What comes of a fault that strikes once, and of one that stays."""

    passing: str
    lasting: str


class World:
    """Objects stored directly, and the same place seen through the proxy."""

    def __init__(self, server: ObjectServer, proxy: FaultProxy, url: str) -> None:
        transfer = TransferConfig(part_bytes=5 * _MIB, budget_bytes=20 * _MIB)
        config = replace(server.config, transfer=transfer)
        self.proxy = proxy
        self.direct = open_store(url, config)
        self.data = os.urandom(6 * _MIB)
        self.direct.put("whole", self.data)
        self.direct.put("file", self.data[: 3 * _MIB])
        for number in range(4):
            self.direct.put(f"many/{number}", self.data[number : number + 50_000])
        self.store: Store = open_store(
            url,
            replace(config, endpoint=proxy.endpoint, retry=RETRY, read_timeout_s=READ_TIMEOUT_S),
        )

    def fetch(self) -> bool:
        buffer = bytearray(len(self.data))
        return fetch(self.store, "whole", buffer) == len(buffer) and buffer == self.data

    def fetch_many(self) -> bool:
        found = [bytes(one.data) for one in fetch_many(self.store, [f"many/{n}" for n in range(4)])]
        return found == [self.data[number : number + 50_000] for number in range(4)]

    def upload(self) -> bool:
        try:
            upload = Upload(self.store, "uploaded")
            upload.write(self.data)
            upload.close()
        except PenstockError:
            self._nothing_or_all("uploaded", self.data)
            raise
        return self.direct.get("uploaded") == self.data

    def reader(self) -> bool:
        with ObjectReader(self.store, "file") as file:
            return b"".join(iter(lambda: file.read(200_000), b"")) == self.data[: 3 * _MIB]

    def writer(self) -> bool:
        try:
            with ObjectWriter(self.store, "written", if_absent=False) as file:
                file.write(self.data[:300_000])
        except PenstockError:
            self._nothing_or_all("written", self.data[:300_000])
            raise
        return self.direct.get("written") == self.data[:300_000]

    def _nothing_or_all(self, key: str, data: bytes) -> None:
        if self.direct.exists(key) and self.direct.get(key) != data:
            raise AssertionError(f"{key}: part of an object is visible")

    def outcome(self, fault: str, operation: str, *, times: int | None) -> str:
        """Runs one cell: what came of it, in a word. Takes no longer than `GIVES_UP_WITHIN_S`."""
        self.direct.delete(["uploaded", "written"])
        self.proxy.clear_faults()
        self.proxy.clear_log()
        self.proxy.add(FAULTS[fault](method=OPERATIONS[operation], times=times))
        began = time.monotonic()
        try:
            result = OK if getattr(self, operation)() else DAMAGED
        except PenstockError as exc:
            result = type(exc).__name__
        took_s = time.monotonic() - began
        if took_s > GIVES_UP_WITHIN_S:
            return f"{result}, after {took_s:.1f} s"
        if not any(request.fault is not None for request in self.proxy.requests):
            return "the fault struck nothing"
        return result


OPERATIONS = {
    "fetch": "GET",
    "fetch_many": "GET",
    "upload": "PUT",
    "reader": "GET",
    "writer": "PUT",
}
"""Each with the requests that are struck."""


def expected(fault: str, operation: str) -> Outcome:
    """What this cell must come to."""
    reads = OPERATIONS[operation] == "GET"
    noticed = (
        fault == "flip a bit" and reads
    )  # bytes that came damaged are refused, not asked for again
    return Outcome("IntegrityError" if noticed else OK, _LASTING[fault])


def measured(world: World) -> Iterator[tuple[str, str, Outcome]]:
    """Every cell: fault, operation, what came of it."""
    for fault in FAULTS:
        for operation in OPERATIONS:
            once = world.outcome(fault, operation, times=1)
            yield fault, operation, Outcome(once, world.outcome(fault, operation, times=None))


def table(cells: Mapping[tuple[str, str], Outcome]) -> str:
    """The cells as Markdown."""
    rows = [
        ["fault", *(f"`{operation}`" for operation in OPERATIONS)],
        ["---"] * (len(OPERATIONS) + 1),
        *(
            [fault, *(_cell(cells[fault, operation]) for operation in OPERATIONS)]
            for fault in FAULTS
        ),
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(outcome: Outcome) -> str:
    once, lasting = (
        text if text == OK else f"`{text}`" for text in (outcome.passing, outcome.lasting)
    )
    return f"{once} / {lasting}"


def main() -> int:
    """Exits with 1 where the outcomes are not the expected ones; then the page is left as it is."""
    with ObjectServer(["train"]) as server, FaultProxy(server.endpoint) as proxy:
        world = World(server, proxy, server.url("train", "matrix"))
        cells = {(fault, operation): outcome for fault, operation, outcome in measured(world)}
    wrong = [
        f"{fault} × {operation}: {outcome}, expected {expected(fault, operation)}"
        for (fault, operation), outcome in cells.items()
        if outcome != expected(fault, operation)
    ]
    if wrong:
        sys.stderr.write("\n".join([*wrong, ""]))
        return 1
    if "--check" not in sys.argv:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        after = rest.partition(END)[2]
        PAGE.write_text(f"{before}{BEGIN}\n\n{table(cells)}\n\n{END}{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
