"""Lightning's checkpoints in any store: the plugin that reads and writes them, and the callbacks that decide when.

Lightning is published as `lightning` and as `pytorch_lightning`, the same classes twice. The callbacks here are those
of the one that is imported already, else of the one that is installed; the plugin is good for both.
"""

import json
import re
import sys
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from datetime import UTC, datetime
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from penstock.checkpoint import CheckpointManager, DamagedCheckpoint, PendingSave, load, save
from penstock.checkpoint.manifest import folder_of
from penstock.config import StoreConfig
from penstock.errors import ConfigError, IntegrityError, InvalidCheckpoint, NotFound
from penstock.store import open_object, open_store
from penstock.transfer import open_writer
from penstock.url import Location

if TYPE_CHECKING:
    from lightning.fabric.plugins.io.checkpoint_io import CheckpointIO
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import Checkpoint
    from lightning.pytorch.callbacks import ModelCheckpoint as _ModelCheckpoint
    from lightning.pytorch.plugins.io import AsyncCheckpointIO as _AsyncCheckpointIO
else:
    is_the_other = "pytorch_lightning" in sys.modules and "lightning" not in sys.modules
    if is_the_other or find_spec("lightning") is None:
        if find_spec("pytorch_lightning") is None:
            raise ImportError("Lightning is not installed; pip install 'penstock[lightning]'")
        pytorch, fabric = "pytorch_lightning", "lightning_fabric"
    else:
        pytorch, fabric = "lightning.pytorch", "lightning.fabric"
    CheckpointIO = import_module(f"{fabric}.plugins.io.checkpoint_io").CheckpointIO
    Checkpoint = import_module(f"{pytorch}.callbacks").Checkpoint
    _ModelCheckpoint = import_module(f"{pytorch}.callbacks").ModelCheckpoint
    _AsyncCheckpointIO = import_module(f"{pytorch}.plugins.io").AsyncCheckpointIO

__all__ = ["AsyncCheckpointIO", "Checkpoints", "ModelCheckpoint", "ObjectStoreCheckpointIO"]

_STEP_FOLDER = re.compile(r"(?P<root>.+)/step-(?P<step>\d{10,19})/?")


class ObjectStoreCheckpointIO(CheckpointIO):
    """For `Trainer(plugins=[ObjectStoreCheckpointIO()])`: checkpoints stream to a store and load in parallel.

    Takes every URL that Penstock does, plain paths, and URLs that lost a slash in a `pathlib.Path`. The folder of a
    step of a `CheckpointManager` loads too, verified. `weights_only` is for where Lightning asks for neither, as
    versions before 2.6 never do; `True` runs no code that is in a file.
    """

    def __init__(self, config: StoreConfig | None = None, *, weights_only: bool = True) -> None:
        for name in ("lightning.fabric", "lightning_fabric"):
            if (module := sys.modules.get(f"{name}.plugins.io.checkpoint_io")) is not None:
                module.CheckpointIO.register(type(self))
        self.config = config
        self._weights_only = weights_only

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None
    ) -> None:
        """Streams the checkpoint to `path`. Of storage options, knows `config`, a `StoreConfig` for this save."""
        save(checkpoint, _url(path), config=self._config_for(storage_options))

    def load_checkpoint(
        self,
        path: str | Path,
        map_location: Any = "cpu",
        weights_only: bool | None = None,  # noqa: FBT001 - Lightning's signature
    ) -> Any:
        """The checkpoint at `path`. Raises `NotFound`, a `FileNotFoundError`, where there is none."""
        safe = self._weights_only if weights_only is None else weights_only
        url = _url(path)
        if (managed := _STEP_FOLDER.fullmatch(url)) is not None:
            manager = CheckpointManager(managed["root"], config=self.config)
            return manager.load(int(managed["step"]), map_location=map_location, weights_only=safe)
        return load(url, map_location=map_location, weights_only=safe, config=self.config)

    def remove_checkpoint(self, path: str | Path) -> None:
        """Deletes the object. One that is not there is fine."""
        store, key = open_object(_url(path), self.config)
        store.delete(key)

    def teardown(self) -> None:
        """Nothing to do: what was saved is durable when `save_checkpoint` returns."""

    def _config_for(self, storage_options: Any | None) -> StoreConfig | None:
        if storage_options is None:
            return self.config
        if not isinstance(storage_options, Mapping) or set(storage_options) != {"config"}:
            raise TypeError(
                f"storage_options may be {{'config': StoreConfig(…)}}, got {storage_options!r}; give other settings "
                "to ObjectStoreCheckpointIO(config)"
            )
        config = storage_options["config"]
        if not isinstance(config, StoreConfig):
            raise TypeError(f"config must be a penstock.StoreConfig, got {type(config).__name__}")
        return config


class AsyncCheckpointIO(_AsyncCheckpointIO):
    """Saves behind the training, like Lightning's class of this name, and never lets a removal overtake a save.

    Lightning's removes the old checkpoint while the new one is still on its way, and though that may fail. Here both
    go in order, and after a failure nothing is removed until somebody is told: the next save, or the end of the run,
    raises it. At most one save is on its way; the next waits for it.
    """

    def __init__(self, checkpoint_io: "CheckpointIO | None" = None) -> None:
        super().__init__(checkpoint_io)
        self._thread: ThreadPoolExecutor | None = None
        self._tasks: deque[Future[None]] = deque()

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None
    ) -> None:
        """Copies the state and returns. Raises what went wrong before."""
        from lightning_utilities.core.apply_func import apply_to_collection

        self._settle()
        inner = self._inner
        # Detached first, for only leaves can be copied; a deep copy keeps shared storages shared.
        copied = deepcopy(apply_to_collection(checkpoint, torch.Tensor, torch.Tensor.detach))
        self._submit(lambda: inner.save_checkpoint(copied, path, storage_options))

    def remove_checkpoint(self, path: str | Path) -> None:
        """Removes it when all that was asked before is done, and only if it went well."""
        inner = self._inner
        self._submit(lambda: inner.remove_checkpoint(path))

    def load_checkpoint(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Loads when what was saved before is there."""
        self._settle()
        return self._inner.load_checkpoint(*args, **kwargs)

    def teardown(self) -> None:
        """Waits for the save on its way. Raises what nobody was told of."""
        try:
            self._settle()
        finally:
            if self._thread is not None:
                self._thread.shutdown()
                self._thread = None
            self._inner.teardown()

    @property
    def _inner(self) -> CheckpointIO:
        if self.checkpoint_io is None:
            raise ConfigError(
                "nothing to save with; write AsyncCheckpointIO(ObjectStoreCheckpointIO())"
            )
        return self.checkpoint_io

    def _submit(self, task: Callable[[], None]) -> None:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="penstock-lightning")
        before = [*self._tasks]

        def run() -> None:
            # One thread: these are done. What follows a failure is not to happen.
            if not any(earlier.cancelled() or earlier.exception() for earlier in before):
                task()

        self._tasks.append(self._thread.submit(run))

    def _settle(self) -> None:
        """Waits for all that was asked, and raises the first failure, once."""
        tasks, self._tasks = self._tasks, deque()
        failures = [task.exception() for task in tasks]
        for failure in failures:
            if failure is not None:
                raise failure


class ModelCheckpoint(_ModelCheckpoint):
    """Lightning's `ModelCheckpoint`, whose `dirpath` may be any URL; all else is Lightning's.

    Lightning's own asks fsspec what is in the folder, which needs another package for each store and other credentials
    than the plugin's. This one asks Penstock, with the config of the trainer's `ObjectStoreCheckpointIO`. One request
    for each name that is tried.
    """

    # Lightning's own arguments, of which each version has others.
    def __init__(self, dirpath: str | Path | None = None, *args: Any, **kwargs: Any) -> None:
        self._config: StoreConfig | None = None
        self._store_url: str | None = None
        location = None if dirpath is None else Location.parse(dirpath)
        if location is None or location.scheme == "file":
            super().__init__(dirpath, *args, **kwargs)
            return
        self._store_url = str(location).rstrip("/")
        super().__init__(None, *args, **kwargs)
        if self.save_last == "link":
            raise ValueError(f"{location}: a store has no links; use save_last=True")
        self.dirpath = self._store_url
        # What Lightning would ask about the folder; it is of this disk, and its answers would be wrong.
        del self._fs

    def setup(self, trainer: "Trainer", pl_module: "LightningModule", stage: str) -> None:
        """Makes no request. Raises `ConfigError` if the trainer would save by other means than Penstock."""
        if self._store_url is None:
            super().setup(trainer, pl_module, stage)
        else:
            self._config = _config_of(trainer)

    def file_exists(self, filepath: str | Path, trainer: "Trainer") -> bool:
        """Whether there is such a checkpoint. Rank zero asks for all."""
        if self._store_url is None:
            return super().file_exists(filepath, trainer)
        found = False
        if trainer.is_global_zero:
            store, key = open_object(_url(filepath), self._config)
            found = store.exists(key)
        return bool(trainer.strategy.broadcast(found))

    def find_last(self, trainer: "Trainer") -> str | None:
        """The newest checkpoint that `save_last=True` wrote, for `fit(ckpt_path=…)`; None if there is none."""
        if self._store_url is None:
            raise ConfigError('dirpath is no URL; use fit(ckpt_path="last")')
        store = open_store(self._store_url, _config_of(trainer))
        name, extension = self.CHECKPOINT_NAME_LAST, self.FILE_EXTENSION
        if "{" in name:
            raise ConfigError(f"CHECKPOINT_NAME_LAST is {name!r}, which cannot be looked for")
        last = re.compile(rf"{re.escape(name)}(-v\d+)?{re.escape(extension)}")
        found = [meta for meta in store.list(name) if last.fullmatch(meta.key)]
        beginning = datetime.min.replace(tzinfo=UTC)
        newest = max(found, key=lambda meta: meta.last_modified or beginning, default=None)
        return None if newest is None else f"{self._store_url}/{newest.key}"

    def to_yaml(self, filepath: str | Path | None = None) -> None:
        """The checkpoints that are kept, with their scores, at `filepath` or in `dirpath`."""
        if self._store_url is None:
            super().to_yaml(filepath)
            return
        url = f"{self._store_url}/best_k_models.yaml" if filepath is None else _url(filepath)
        scores = {path: float(score) for path, score in self.best_k_models.items()}
        with open_writer(url, config=self._config) as file:
            file.write(json.dumps(scores, indent=1).encode())  # JSON is YAML

    def _find_last_checkpoints(self, trainer: "Trainer") -> set[str]:
        if self._store_url is None:
            return super()._find_last_checkpoints(trainer)
        raise ConfigError(
            f'{self._store_url}: Lightning looks for ckpt_path="last" on disks only; use '
            "fit(ckpt_path=checkpoint.find_last(trainer))"
        )


class Checkpoints(Checkpoint):
    """Saves through a `CheckpointManager` every n steps and at the end: committed, verified and let go as it says.

    A save that failed is raised in the training loop, after the next batch. In a distributed run every rank has its
    manager, and rank zero saves. Does not close the manager.
    """

    best_model_path = ""
    """Lightning looks here for `ckpt_path="best"`, and says that there is none."""

    def __init__(self, manager: CheckpointManager, *, every_n_steps: int) -> None:
        super().__init__()
        if every_n_steps < 1:
            raise ValueError(f"every_n_steps must be at least 1, got {every_n_steps}")
        self._manager = manager
        self._every_n_steps = every_n_steps
        self._pending: PendingSave | None = None
        self._last_step = 0
        self._damaged: set[int] = set()

    def resume_from(self, *, fallback: bool = False) -> str | None:
        """The URL of the newest committed step, for `fit(ckpt_path=…)`; None where there is none.

        `ObjectStoreCheckpointIO` verifies what it loads from there. With `fallback`, every byte is read here too, and
        the newest step that verifies is taken, with a warning for each before it; saving may replace those.
        """
        for step in reversed(self._manager.steps()):
            if fallback:
                try:
                    self._manager.verify(step)
                except (IntegrityError, InvalidCheckpoint, NotFound) as exc:
                    warnings.warn(
                        f"step {step} is left out: {exc}", DamagedCheckpoint, stacklevel=2
                    )
                    self._damaged.add(step)
                    continue
            return f"{self._manager.url}/{folder_of(step)}"
        if self._damaged:
            raise IntegrityError(
                f"{self._manager.url}: none of its {len(self._damaged)} checkpoints verifies"
            )
        return None

    def on_train_start(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """Refuses to train where steps are committed that training has not reached, and would save again."""
        del pl_module
        self._last_step = trainer.global_step
        if not trainer.is_global_zero:
            return
        ahead = [s for s in self._manager.steps() if s > trainer.global_step]
        if not self._damaged.issuperset(ahead):
            raise ConfigError(
                f"{self._manager.url}: step {ahead[-1]} is committed, and training starts after step "
                f"{trainer.global_step}; use fit(ckpt_path=checkpoints.resume_from()), another URL, or delete what "
                "is newer"
            )

    def on_train_batch_end(
        self,
        trainer: "Trainer",
        pl_module: "LightningModule",
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Raises what went wrong with the save before; saves if it is time."""
        del pl_module, outputs, batch, batch_idx
        if self._pending is not None and self._pending.done():
            self._finish()
        if trainer.global_step % self._every_n_steps == 0:
            self._save(trainer)

    def on_train_end(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """Saves what came after the last save, and returns when it is committed."""
        del pl_module
        self._save(trainer)
        self._finish()

    def on_exception(
        self, trainer: "Trainer", pl_module: "LightningModule", exception: BaseException
    ) -> None:
        """Waits for the save on its way; its failure is noted in the exception that ended the training."""
        del trainer, pl_module
        try:
            self._finish()
        except Exception as exc:  # noqa: BLE001 - told together with what ended the training
            exception.add_note(f"beside this, a checkpoint was not saved: {exc}")

    def _save(self, trainer: "Trainer") -> None:
        step = trainer.global_step
        # Several batches may make one step.
        if step == self._last_step or getattr(trainer, "fast_dev_run", False):
            return
        self._last_step = step
        # On every rank, for a sharded strategy gathers here. Lightning has no public name for it.
        state = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)  # noqa: SLF001 - see above
        if trainer.is_global_zero:
            self._finish()
            if step in self._damaged:
                self._manager.delete(step)
            self._pending = self._manager.save(step, state, metrics=trainer.callback_metrics)

    def _finish(self) -> None:
        """Waits for the save on its way, and raises what went wrong with it, once."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()


def _url(path: str | Path) -> str:
    return str(Location.parse(path))


def _config_of(trainer: "Trainer") -> StoreConfig | None:
    """The config of the trainer's plugin, which may be wrapped."""
    plugin: Any = trainer.strategy.checkpoint_io
    while not isinstance(plugin, ObjectStoreCheckpointIO):
        plugin = getattr(plugin, "checkpoint_io", None)
        if plugin is None:
            raise ConfigError(
                "a ModelCheckpoint with a URL needs Trainer(plugins=[ObjectStoreCheckpointIO()])"
            )
    return plugin.config
