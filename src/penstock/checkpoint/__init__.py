"""State kept: saved by streaming, loaded by ranges, committed by a manifest.

Read in the order of the data. Out: `capture`, `write`, `saving`; in the background `stage`, `commit`. Back: `window`,
`files`, `survey` (pure), `read`, `loading`. The formats: `torchfile` and `safetensors` (pure). Around them: `manifest`
and `retention` (pure), `tiers`, `manager`, `preemption`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.checkpoint.loading import SlowLoadWarning, TensorInfo, describe, load
    from penstock.checkpoint.manager import CheckpointManager
    from penstock.checkpoint.manifest import Manifest, StoredFile
    from penstock.checkpoint.pending import PendingSave
    from penstock.checkpoint.preemption import PreemptionGuard, preemption_guard
    from penstock.checkpoint.retention import Best
    from penstock.checkpoint.saving import SavedObject, save
    from penstock.checkpoint.tiers import DamagedCheckpoint

__all__ = [
    "Best",
    "CheckpointManager",
    "DamagedCheckpoint",
    "Manifest",
    "PendingSave",
    "PreemptionGuard",
    "SavedObject",
    "SlowLoadWarning",
    "StoredFile",
    "TensorInfo",
    "describe",
    "load",
    "preemption_guard",
    "save",
]

# Imported when first used: the process that uploads in the background does without torch.
_HOMES = {
    "Best": "retention",
    "CheckpointManager": "manager",
    "DamagedCheckpoint": "tiers",
    "Manifest": "manifest",
    "PendingSave": "pending",
    "PreemptionGuard": "preemption",
    "SavedObject": "saving",
    "SlowLoadWarning": "loading",
    "StoredFile": "manifest",
    "TensorInfo": "loading",
    "describe": "loading",
    "load": "loading",
    "preemption_guard": "preemption",
    "save": "saving",
}


def __getattr__(name: str) -> Any:
    """Imports the file that has `name`."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
