"""The shortest tour: start the embedded server, write, list, read back, and say what it did."""

import hashlib
import random
import time
from concurrent.futures import ThreadPoolExecutor

import penstock
from penstock import metrics
from penstock.testing import ObjectServer

OBJECTS = 500
OBJECT_BYTES = 100 << 10


def main() -> None:
    """Writes 500 objects of 100 KiB, lists them, reads them back on 16 threads and compares every byte."""
    began = time.perf_counter()
    with ObjectServer(buckets=["demo"]) as server:
        print(
            f"server    {server.endpoint} (SeaweedFS, ready after {time.perf_counter() - began:.1f} s)"
        )
        store = penstock.open_store(server.url("demo", "samples"), server.config)
        rng = random.Random(0)
        written = {f"{i:05}.bin": rng.randbytes(OBJECT_BYTES) for i in range(OBJECTS)}

        with ThreadPoolExecutor(16) as pool:
            began = time.perf_counter()
            list(pool.map(lambda item: store.put(*item), written.items()))
            print(f"wrote     {_rate(OBJECTS, time.perf_counter() - began)} to {store.url}")

            began = time.perf_counter()
            keys = [meta.key for meta in store.list()]
            print(f"listed    {len(keys)} keys in {1e3 * (time.perf_counter() - began):.0f} ms")

            began = time.perf_counter()
            read = dict(zip(keys, pool.map(store.get, keys), strict=True))
            print(f"read      {_rate(len(read), time.perf_counter() - began)}")

        if {key: _digest(data) for key, data in read.items()} != {
            key: _digest(data) for key, data in written.items()
        }:
            raise SystemExit("what was read is not what was written")
        print("compared  every byte equal")
        counted = metrics.snapshot()
        calls = ", ".join(f"{count} {verb}" for verb, count in sorted(counted.requests.items()))
        print(f"requests  {calls}; {sum(counted.errors.values())} errors")


def _rate(objects: int, seconds: float) -> str:
    mib = objects * OBJECT_BYTES / 2**20
    return f"{objects} objects, {objects / seconds:,.0f} a second, {mib / seconds:,.0f} MiB/s"


def _digest(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


if __name__ == "__main__":
    main()
