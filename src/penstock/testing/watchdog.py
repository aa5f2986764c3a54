"""Run as a script: ends a process group, and removes what it leaves, when the process that owns it dies.

Standard library only, and started by path, so that it costs 10 ms and imports nothing of Penstock.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

_PATIENCE_S = 5.0
_POLL_S = 0.05


def watch(group: int, litter: Sequence[Path]) -> None:
    """Blocks on standard input. A byte means released; the end of it means that the owner is dead."""
    if os.read(sys.stdin.fileno(), 1):
        return
    # macOS answers EPERM, not ESRCH, for a group of which only a zombie is left.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        for number in (signal.SIGTERM, signal.SIGKILL):
            os.killpg(group, number)
            deadline = time.monotonic() + _PATIENCE_S
            while time.monotonic() < deadline:
                os.killpg(group, 0)
                time.sleep(_POLL_S)
    for path in litter:
        remove(path)


def remove(path: Path) -> None:
    """Removes a file or a whole folder; already gone is fine."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    watch(int(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
