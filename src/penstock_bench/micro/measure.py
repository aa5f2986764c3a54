"""Takes samples: one process each, in turn across the rows, so that a slow minute strikes them all alike."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from penstock_bench.micro.probe import Job, Reading

__all__ = ["SampleFailed", "Taken", "interleave", "sample"]

_TIMEOUT_S = 900.0
_REASON_CHARACTERS = 600


class SampleFailed(RuntimeError):
    """The process of a sample ended without a reading: an error of the subject, or wrong bytes."""


@dataclass(frozen=True, slots=True)
class Taken:
    """One attempt at one sample: its reading, or why there is none."""

    row: str
    repetition: int
    position: int
    """Place in its round; it moves from round to round."""
    reading: Reading | None
    failure: str | None = None


def sample(job: Job, env: Mapping[str, str]) -> Reading:
    """One reading from a fresh process; `env` is added to this one's environment."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "penstock_bench.micro.probe"],
            input=json.dumps(asdict(job)),
            env=os.environ | env,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as exc:
        raise SampleFailed(f"no end after {_TIMEOUT_S:.0f} s") from exc
    if done.returncode != 0:
        reason = done.stderr.strip() or f"exit status {done.returncode}"
        raise SampleFailed(reason[-_REASON_CHARACTERS:])
    return Reading(**json.loads(done.stdout.rstrip().rpartition("\n")[2]))


def interleave(
    rows: Sequence[str], take: Callable[[str, int], Reading], *, repeats: int
) -> Iterator[Taken]:
    """`repeats` rounds over the rows, each beginning one row later. A row that fails takes no further part."""
    failed: set[str] = set()
    for repetition in range(repeats):
        first = repetition % len(rows) if rows else 0
        for position, row in enumerate([*rows[first:], *rows[:first]]):
            if row in failed:
                continue
            try:
                yield Taken(row, repetition, position, take(row, repetition))
            except SampleFailed as exc:
                failed.add(row)
                yield Taken(row, repetition, position, None, str(exc))
