"""Writes a staged checkpoint in a child process, which shares the staged memory and imports no torch."""

import mmap
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.checkpoint.commit import Root, Task, write_checkpoint
from penstock.checkpoint.manifest import Manifest
from penstock.errors import SaveFailed

__all__ = ["write_in_process"]

_BOOT = "from penstock.checkpoint.process import main; main()"


@dataclass(frozen=True, slots=True)
class _Order:
    root: Root
    task: Task
    descriptor: int
    ranges: Mapping[str, tuple[int, int]]


def write_in_process(
    root: Root, task: Task, *, descriptor: int | None, ranges: Mapping[str, tuple[int, int]]
) -> Manifest:
    """Like `write_checkpoint`, with the bytes in the file `descriptor`. The process takes 0.3 s to start."""
    held = -1 if descriptor is None else descriptor
    order = pickle.dumps(_Order(root, task, held, ranges))
    child = subprocess.Popen(  # noqa: S603 - our own interpreter and code
        [sys.executable, "-c", _BOOT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        pass_fds=() if descriptor is None else (descriptor,),
        process_group=0,  # a Ctrl-C at the terminal is for the training, not for the upload under way
    )
    with child:
        answer, _ = child.communicate(order)
    if child.returncode != 0 or not answer:
        raise SaveFailed(
            f"{root.url(task.step, '')}: the process that uploads it ended with exit code {child.returncode}; "
            "its output is above"
        )
    result = pickle.loads(answer)  # noqa: S301 - from our own child
    if isinstance(result, BaseException):
        raise result
    assert isinstance(result, Manifest)
    return result


def main() -> None:
    """The child: an order on standard input, its result on standard output."""
    answers = os.dup(1)
    os.dup2(2, 1)  # whatever prints must not end up in the answer
    order = pickle.loads(sys.stdin.buffer.read())  # noqa: S301 - from our own parent
    result: object
    try:
        result = _write(order)
    except Exception as exc:  # noqa: BLE001 - raised again in the parent
        result = exc
    with os.fdopen(answers, "wb") as file:
        file.write(_pickled(result))


def _write(order: _Order) -> Manifest:
    size = os.fstat(order.descriptor).st_size if order.descriptor >= 0 else 0
    memory = memoryview(mmap.mmap(order.descriptor, size) if size else b"")

    def bytes_of(name: str) -> Sequence[memoryview]:
        start, stop = order.ranges[name]
        return [memory[start:stop]]

    return write_checkpoint(order.root, order.task, bytes_of)


def _pickled(result: object) -> bytes:
    try:
        data = pickle.dumps(result)
        pickle.loads(data)  # noqa: S301 - our own, a moment ago; some exceptions pickle and cannot be read
    except Exception:  # noqa: BLE001 - what cannot travel is told by its text
        return pickle.dumps(SaveFailed(f"{type(result).__name__}: {result}"))
    return data
