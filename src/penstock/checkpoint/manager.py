"""`CheckpointManager`: saves in the background, commits, finds, verifies and lets go."""

import json
import os
import secrets
import threading
import warnings
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Literal, NoReturn, Self

from penstock.checkpoint.background import finish_before_exit
from penstock.checkpoint.capture import capture
from penstock.checkpoint.commit import Root, Task, write_checkpoint
from penstock.checkpoint.loading import Wanted
from penstock.checkpoint.manifest import Manifest, check_metrics, folder_of
from penstock.checkpoint.memory import chunks_of
from penstock.checkpoint.pending import PendingSave
from penstock.checkpoint.placement import MapLocation
from penstock.checkpoint.process import write_in_process
from penstock.checkpoint.retention import Best, Retention
from penstock.checkpoint.stage import Arena, Staged
from penstock.checkpoint.tiers import DamagedCheckpoint, Tier, Tiers
from penstock.checkpoint.tree import patterns_of
from penstock.checkpoint.write import BytesOf
from penstock.config import StoreConfig
from penstock.errors import (
    IntegrityError,
    InvalidCheckpoint,
    NotFound,
    SaveFailed,
    SaveInProgress,
)
from penstock.store import open_object

__all__ = ["CheckpointManager"]


class CheckpointManager:
    """The checkpoints of one run, under one URL. Use it in a `with` statement, or `close` it.

    A checkpoint is in `step-<n>/`: the state, a plain `torch.save` file, and then a manifest, written on the condition
    that there is none. Until that is there, there is no checkpoint. At most one save is on its way. For one thread of
    one process; in a distributed run, for one rank.

    `keep_last`, `keep_every` (multiples of a number of steps) and `keep_best` say what stays after a commit: what any
    of them keeps, the newest, and the one that was loaded. Without them everything stays. `on_busy` decides whether a
    save waits for the one before it or raises `SaveInProgress`; `background`, whether uploads share this process or,
    against the contention of a busy interpreter, get their own. `local` is a folder for a first, fast copy: saves are
    committed there and then at `url`, and loads prefer it where it verifies.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        config: StoreConfig | None = None,
        keep_last: int | None = None,
        keep_every: int | None = None,
        keep_best: Best | tuple[str, int, Literal["min", "max"]] | None = None,
        on_busy: Literal["wait", "refuse"] = "wait",
        background: Literal["thread", "process"] = "thread",
        local: str | os.PathLike[str] | None = None,
    ) -> None:
        if on_busy not in ("wait", "refuse"):
            raise ValueError(f'on_busy must be "wait" or "refuse", got {on_busy!r}')
        if background not in ("thread", "process"):
            raise ValueError(f'background must be "thread" or "process", got {background!r}')
        best = Best(*keep_best) if isinstance(keep_best, tuple) else keep_best
        self._rules = Retention(last=keep_last, every=keep_every, best=best)
        local_tier = None if local is None else Tier(_root(local, None))
        self._tiers = Tiers(Tier(_root(url, config)), local_tier)
        self._on_busy = on_busy
        self._background = background
        self._arena = Arena(shared=background == "process")
        self._thread: threading.Thread | None = None
        self._pending: PendingSave | None = None
        self._aside: Exception | None = None
        self._in_use: set[int] = set()
        self._closed = False

    @property
    def url(self) -> str:
        """Where the checkpoints are, without a slash at the end; of two tiers the durable one."""
        root = self._tiers.durable.root
        return f"{root.store.url.rstrip('/')}/{root.prefix}".rstrip("/")

    def save(
        self,
        step: int,
        state: object,
        *,
        metrics: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        block: bool = False,
    ) -> PendingSave:
        """Copies the state to host memory and returns; it may change from then on. The rest happens behind.

        `block=True` copies nothing and returns when the checkpoint is committed. Both raise `SaveFailed` first if an
        earlier save failed and nobody has asked. `metadata` is anything that JSON holds; `metrics` are numbers.
        """
        if self._closed:
            raise ValueError("the manager is closed; make a new one")
        folder_of(step)
        details = json.loads(json.dumps(dict(metadata or {}), allow_nan=False))
        numbers = check_metrics(metrics)
        self._settle(wait=self._on_busy == "wait")
        captured = capture(state)
        task = Task(
            step=step,
            attempt=secrets.token_hex(8),
            created=datetime.now(UTC),
            archive=captured.archive,
            metrics=numbers,
            metadata=details,
        )
        pending = PendingSave(step)
        if block:
            pending.staged.set_result(None)
            self._write(pending, task, lambda name: chunks_of(captured.storages[name]), None)
            pending.result()
            return pending
        staged = self._arena.stage(captured)
        pending.staged.set_result(None)
        self._pending = pending
        self._thread = threading.Thread(
            target=self._write,
            args=(pending, task, staged.bytes_of, staged),
            name=f"penstock-save-{step}",
        )
        finish_before_exit(self)
        self._thread.start()
        return pending

    def save_and_exit(self, step: int, state: object, *, code: int = 0) -> NoReturn:
        """Saves, waits until it is committed, closes and ends the process: for the end of a preempted run."""
        self._settle(wait=True)
        self.save(step, state, block=True)
        self.close()
        raise SystemExit(code)

    def wait(self) -> None:
        """Returns when no save is on its way. Raises nothing."""
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        """Waits for the save on its way. Raises `SaveFailed` if one failed and nobody has asked. Twice is fine."""
        try:
            self._settle(wait=True)
        finally:
            self._closed = True
            self._arena.close()

    def steps(self) -> list[int]:
        """Every committed step, in order. One request per 1,000 objects."""
        return self._tiers.steps()

    def latest(self) -> int | None:
        """The newest committed step; None if there is none."""
        return max(self.steps(), default=None)

    def manifest(self, step: int) -> Manifest:
        """What a checkpoint consists of, its metrics and metadata. Raises `NotFound` if it is not committed."""
        return self._tiers.manifest(step)

    def load(
        self,
        step: int,
        *,
        map_location: MapLocation = None,
        weights_only: bool = True,
        into: Any = None,
        only: str | Sequence[str] | None = None,
    ) -> Any:
        """The state of a step, as `penstock.load` gives it, checked against the checksums in the file.

        Raises `IntegrityError`, which names the object. Retention leaves this step alone from now on.
        """
        wanted = Wanted(map_location, weights_only, into, patterns_of(only))
        state = self._tiers.load(step, wanted)
        self._in_use = {step}
        return state

    def load_latest(
        self,
        *,
        fallback: bool = False,
        map_location: MapLocation = None,
        weights_only: bool = True,
        into: Any = None,
        only: str | Sequence[str] | None = None,
    ) -> tuple[int, Any]:
        """The newest step and its state. With `fallback`, the newest that verifies, with a warning for each before it.

        Raises `NotFound` where there is none.
        """
        wanted = Wanted(map_location, weights_only, into, patterns_of(only))
        damaged: list[Exception] = []
        for step in reversed(self.steps()):
            try:
                state = self._tiers.load(step, wanted)
            except (IntegrityError, InvalidCheckpoint, NotFound) as exc:
                if not fallback:
                    raise
                damaged.append(exc)
                warnings.warn(f"step {step} is left out: {exc}", DamagedCheckpoint, stacklevel=2)
                continue
            self._in_use = {step}
            return step, state
        where = self._tiers.durable.root
        url = f"{where.store.url.rstrip('/')}/{where.prefix}"
        if damaged:
            raise IntegrityError(
                f"{url}: none of its {len(damaged)} checkpoints verifies"
            ) from damaged[0]
        raise NotFound(f"{url}: no committed checkpoint; start from the beginning")

    def verify(self, step: int) -> Manifest:
        """Reads every byte of a checkpoint again. Raises `IntegrityError` or `NotFound`, which name the object."""
        return self._tiers.verify(step)

    def delete(self, step: int) -> None:
        """Removes a checkpoint, whatever the retention says: its manifest first. One that is not there is fine."""
        for tier in self._tiers.all:
            tier.delete(step)

    def prune(
        self, *, dry_run: bool = False, older_than: timedelta = timedelta(days=1)
    ) -> list[str]:
        """Removes what retention lets go, and what saves that never finished left behind more than `older_than` ago.

        Returns the URLs. Never touches the newest committed step or a newer one, the one that was loaded, or what
        Penstock did not write.
        """
        before = datetime.now(UTC) - older_than
        gone = []
        for tier in self._tiers.all:
            root = tier.root
            steps = tier.surplus(self._rules, in_use=[*self._in_use])
            left = tier.debris(before=before)
            gone += [root.url(step, "") for step in steps]
            gone += [f"{root.store.url.rstrip('/')}/{root.prefix}{key}" for key in left]
            if not dry_run:
                for step in steps:
                    tier.delete(step)
                tier.remove(left)
                tier.abort_uploads(before=before)
        return gone

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except SaveFailed as exc:
            if error is None:
                raise
            error.add_note(f"beside this, {exc}: {exc.__cause__}")

    def _settle(self, *, wait: bool) -> None:
        """Comes to the end of the save before this one, and raises what nobody has been told of it."""
        thread, pending = self._thread, self._pending
        if thread is not None and thread.is_alive():
            if not wait:
                step = pending.step if pending is not None else "?"
                raise SaveInProgress(
                    f'step {step} is still being saved; save less often, or use on_busy="wait"'
                )
            thread.join()
        self._thread = self._pending = None
        failure = pending.unseen_failure if pending is not None else None
        if failure is not None and pending is not None:
            raise SaveFailed(f"step {pending.step} was not saved") from failure
        aside, self._aside = self._aside, None
        if aside is not None:
            raise SaveFailed(
                "the last step was saved, but not everything around it went well"
            ) from aside

    def _write(
        self, pending: PendingSave, task: Task, bytes_of: BytesOf, staged: Staged | None
    ) -> None:
        """Writes to every tier, durable last, and then lets go of what is surplus. Raises nothing."""
        try:
            self._write_local(task, bytes_of)
            root = self._tiers.durable.root
            if self._background == "process" and staged is not None:
                manifest = write_in_process(
                    root, task, descriptor=self._arena.descriptor, ranges=staged.ranges
                )
            else:
                manifest = write_checkpoint(root, task, bytes_of)
        except BaseException as exc:  # noqa: BLE001 - raised where the caller asks, or at the next save
            pending.durable.set_exception(exc)
            return
        pending.durable.set_result(manifest)
        try:
            self._let_go()
        except Exception as exc:  # noqa: BLE001 - the checkpoint is safe; told at the next save
            self._aside = exc

    def _write_local(self, task: Task, bytes_of: BytesOf) -> None:
        if self._tiers.local is None:
            return
        try:
            write_checkpoint(self._tiers.local.root, task, bytes_of)
        except Exception as exc:  # noqa: BLE001 - the durable copy matters more; told at the next save
            self._aside = exc

    def _let_go(self) -> None:
        if self._rules.keeps_all:
            return
        for tier in self._tiers.all:
            for step in tier.surplus(self._rules, in_use=[*self._in_use]):
                tier.delete(step)


def _root(url: str | os.PathLike[str], config: StoreConfig | None) -> Root:
    store, key = open_object(f"{os.fspath(url).rstrip('/')}/x", config)
    return Root(store, key.removesuffix("x"))
