"""Inside the process of one sample: runs a task under the clock and counts this process's CPU time and memory."""

import importlib
import json
import os
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

__all__ = ["Job", "ManyProcesses", "Reading", "Task", "main", "restart_peak", "run_job"]


class Task(Protocol):
    """One thing to be measured. Building it imports, connects and allocates, before anything is counted."""

    def warm_up(self) -> None:
        """Opens connections and finds a pace, with a smaller piece of the same work."""
        ...

    def run(self) -> None:
        """The work, under the clock."""
        ...

    def check(self) -> None:
        """Raises unless `run` moved the right bytes. After the clock."""
        ...

    def close(self) -> None:
        """Lets go of threads and connections."""
        ...


@runtime_checkable
class ManyProcesses(Protocol):
    """What a task has beside, whose work is shared by processes that it started in its warm-up."""

    def workers(self) -> Mapping[int, int | None]:
        """Their ids, each with what was resident when it began: its `restart_peak`."""
        ...

    def facts(self) -> Mapping[str, float]:
        """What only the task itself could measure; the unit is in the name."""
        ...


@dataclass(frozen=True, slots=True)
class Job:
    """What a sample's process is asked to do. Travels as JSON."""

    task: str
    """`module:function`, which takes `arguments` and returns a Task."""
    arguments: Mapping[str, Any]
    warm_up: bool = True
    """Off where requests are counted, so that all of them belong to the work."""
    watch: Mapping[str, Sequence[int]] | None = None
    """Processes whose CPU time is read beside our own: role to process ids."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One sample. CPU is user and system time of all threads and processes; memory is resident, summed over them."""

    wall_s: float
    cpu_s: float
    peak_rss_over_baseline_bytes: int | None
    """None where the kernel does not let a process reset its peak."""
    watched_cpu_s: Mapping[str, float]
    others_cpu_s: float
    """What the rest of the machine took meanwhile: neither this process nor a watched one. Noise, if it is much."""
    facts: Mapping[str, float] = field(default_factory=dict)
    """What the task itself has measured."""


def observe(task: Task, job: Job) -> Reading:
    """Runs the task once. The memory baseline is taken before the warm-up, so that what is kept from it counts."""
    baseline_bytes = restart_peak()
    if job.warm_up:
        task.warm_up()
    workers = task.workers() if isinstance(task, ManyProcesses) else {}
    watch = job.watch or {}
    watched = {role: _cpu_s_of(pids) for role, pids in watch.items()}
    machine_s = _machine_cpu_s()
    cpu_s = _cpu_s() + _cpu_s_of([*workers])
    started = time.perf_counter()
    task.run()
    wall_s = time.perf_counter() - started
    cpu_s = _cpu_s() + _cpu_s_of([*workers]) - cpu_s
    machine_s = _machine_cpu_s() - machine_s
    watched = {role: _cpu_s_of(pids) - watched[role] for role, pids in watch.items()}
    peak_bytes = _peak_over({os.getpid(): baseline_bytes, **workers})
    others_s = max(0.0, machine_s - cpu_s - sum(watched.values()))
    facts = task.facts() if isinstance(task, ManyProcesses) else {}
    return Reading(wall_s, cpu_s, peak_bytes, watched, others_s, facts)


def _cpu_s() -> float:
    """Of this process, and of children that it has waited for."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _cpu_s_of(pids: Sequence[int]) -> float:
    """User and system time of other processes and of children they have waited for, in steps of 10 ms."""
    ticks = 0
    for pid in pids:
        # The name, in parentheses, may hold spaces: fields are counted from behind it.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _machine_cpu_s() -> float:
    """User and system time of all processes, in steps of 10 ms; interrupts belong to nobody and are left out."""
    user, nice, system = Path("/proc/stat").read_text().split(maxsplit=4)[1:4]
    return (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK")


def restart_peak() -> int | None:
    """Resets this process's VmHWM to what is resident now, and returns that; None where the kernel does not let it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    return _memory_bytes("VmRSS", os.getpid())


def _peak_over(baselines: Mapping[int, int | None]) -> int | None:
    total = 0
    for pid, baseline_bytes in baselines.items():
        if baseline_bytes is None:
            return None
        total += max(0, _memory_bytes("VmHWM", pid) - baseline_bytes)
    return total


def _memory_bytes(name: str, pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(f"/proc/{pid}/status has no {name}")


def run_job(job: Job) -> Reading:
    """Builds the task, observes it and checks it."""
    module, _, name = job.task.partition(":")
    task: Task = getattr(importlib.import_module(module), name)(job.arguments)
    try:
        reading = observe(task, job)
        task.check()
    finally:
        task.close()
    return reading


def main() -> None:
    """A Job comes on standard input; the Reading goes out as the last line of standard output."""
    reading = run_job(Job(**json.load(sys.stdin)))
    sys.stdout.write(f"\n{json.dumps(asdict(reading))}\n")


if __name__ == "__main__":
    main()
