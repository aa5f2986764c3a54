"""Takes samples in processes forked from one that has imported torch, which would else take longer than many samples.

That one is multiprocessing's fork server: it has read nothing and started no threads.
"""

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path

from penstock_bench.micro.measure import SampleFailed
from penstock_bench.micro.probe import Job, Reading, run_job

__all__ = ["sample_forked"]

_TIMEOUT_S = 120.0
_EXIT_TIMEOUT_S = 20.0
_REASON_CHARACTERS = 600


def sample_forked(job: Job, env: Mapping[str, str]) -> Reading:
    """One reading from a process of its own, as `measure.sample`; for tasks that use torch."""
    context = multiprocessing.get_context("forkserver")
    # Without effect once the server runs.
    context.set_forkserver_preload(["torch.utils.data", "penstock_bench.micro.data"])
    with tempfile.TemporaryDirectory(prefix="penstock-micro-") as folder:
        log = Path(folder) / "log"
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_run, args=(job, dict(env), str(log), sender))
        process.start()
        sender.close()
        try:
            if not receiver.poll(_TIMEOUT_S):
                raise SampleFailed(f"no end after {_TIMEOUT_S:.0f} s")
            reading: Reading = receiver.recv()
        except EOFError as exc:
            process.join(_EXIT_TIMEOUT_S)
            reason = log.read_text(errors="replace").strip() if log.exists() else ""
            reason = reason or f"exit status {process.exitcode}"
            raise SampleFailed(reason[-_REASON_CHARACTERS:]) from exc
        finally:
            receiver.close()
            process.join(_EXIT_TIMEOUT_S)
            if process.is_alive():
                process.kill()
                process.join()
        return reading


def _run(job: Job, env: Mapping[str, str], log: str, sender: Connection) -> None:
    """In the process of the sample."""
    os.environ.update(env)
    file = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1)
    os.dup2(file, 2)
    try:
        reading = run_job(job)
    except BaseException:  # noqa: BLE001 - the log is read by the one who waits
        traceback.print_exc()
        raise SystemExit(1) from None
    sender.send(reading)
