"""A child process that cannot outlive its owner, and free ports for it to listen on."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from penstock.testing import watchdog

LOOPBACK = "127.0.0.1"
# Below the range from which Linux and macOS take the ports of outgoing connections. One inside it may be gone
# when its server restarts, and a client that knocks meanwhile may even be connected to itself.
_PORTS = range(10_000, 22_000)


def free_ports(count: int, *, offsets: Sequence[int] = (0,)) -> list[int]:
    """Distinct ports p for which p + offset is free for every offset; all are held until all are found.

    They are free when this returns and may be taken a moment later: be ready to pick again.
    """
    found: list[int] = []
    with contextlib.ExitStack() as held:
        # Any port will do; nothing here is a secret.
        for port in random.sample(_PORTS, len(_PORTS)):
            if len(found) == count:
                break
            if all(held.enter_context(_held(port + offset)) for offset in offsets):
                found.append(port)
    if len(found) < count:
        raise OSError(f"{LOOPBACK}: {count} free ports wanted, {len(found)} found in {_PORTS}")
    return found


def is_free(port: int) -> bool:
    """Whether a server could listen on the port now."""
    with _held(port) as held:
        return held


@contextlib.contextmanager
def _held(port: int) -> Iterator[bool]:
    with socket.socket() as sock:
        # As the server will: a port whose last connections are still in TIME_WAIT is free.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((LOOPBACK, port))
        except OSError:
            held = False
        else:
            held = True
        yield held


class OwnedProcess:
    """A process in a session of its own, its output in a file, ended with its owner however that one ends.

    A session of its own: Ctrl-C in the terminal reaches the owner only, which then stops it in order. Where the
    owner is killed, a watchdog at the other end of a pipe ends it and removes `litter`. Children forked by the
    owner neither keep it alive nor stop it.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        log: Path,
        litter: Sequence[Path],
        keep_fds: Sequence[int] = (),
    ) -> None:
        self._owner_pid = os.getpid()
        self._log = log
        with log.open("ab") as sink:
            self._log_start = sink.tell()
            self._process = subprocess.Popen(  # noqa: S603 - a server we found ourselves, no shell
                command,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env=env,
                cwd=cwd,
                start_new_session=True,
                pass_fds=keep_fds,
            )
        try:
            self._watchdog = subprocess.Popen(  # noqa: S603 - our own script, no shell
                # -I and -S: neither the user's environment nor site-packages, so that it starts at once.
                [sys.executable, "-I", "-S", watchdog.__file__, str(self.pid), *map(str, litter)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                bufsize=0,
            )
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise
        _alive.add(self)

    @property
    def pid(self) -> int:
        """Of the process, which leads its process group."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """False in a forked child, which has no say in it."""
        return os.getpid() == self._owner_pid and self._process.poll() is None

    def log_tail(self, max_bytes: int = 4096) -> str:
        """The end of what this process wrote; not of what an earlier one wrote to the same file."""
        with self._log.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(self._log_start, end - max_bytes))
            return file.read().decode(errors="replace")

    def stop(self, *, grace_s: float = 10.0) -> None:
        """Asks, waits, then insists. Nothing to do where it has ended."""
        try:
            if self.running:
                self._process.terminate()
                self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            pass  # What kill() is for.
        finally:
            self.kill()

    def kill(self) -> None:
        """SIGKILL to the whole group at once, as in a crash. Returns when the process is gone."""
        if os.getpid() != self._owner_pid:
            return
        if self._process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
        if self in _alive:
            _alive.discard(self)
            # A watchdog that someone killed has nothing left to be told.
            with contextlib.suppress(BrokenPipeError):
                self._lifeline.write(b".")
            self._lifeline.close()
            self._watchdog.wait()

    @property
    def _lifeline(self) -> IO[bytes]:
        lifeline = self._watchdog.stdin
        assert lifeline is not None
        return lifeline


_alive: "weakref.WeakSet[OwnedProcess]" = weakref.WeakSet()


def _let_go_in_forked_child() -> None:
    """A child that held the pipe open would hide the owner's death from the watchdog."""
    for process in list(_alive):
        process._lifeline.close()  # noqa: SLF001 - same file
    _alive.clear()


os.register_at_fork(after_in_child=_let_go_in_forked_child)
