"""The commit marker of a checkpoint: what belongs to it, with size and checksum. Pure; `commit.py` writes it.

A checkpoint lies in `step-<n>/`: its objects, and `manifest.json`, which is written last. Without it there is none.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from penstock.errors import InvalidCheckpoint, Unsupported

__all__ = [
    "MANIFEST",
    "Manifest",
    "StoredFile",
    "check_metrics",
    "folder_of",
    "split_key",
    "state_name",
]

MANIFEST = "manifest.json"
VERSION = 1

_FORMAT = "penstock-checkpoint"
_KEY = re.compile(r"step-(?P<step>\d{10,19})/(?P<name>[^/]+)")
_NAME = re.compile(r"state-[0-9a-f]{16}\.pt")
_ODD = {"nan", "inf", "-inf"}


@dataclass(frozen=True, slots=True)
class StoredFile:
    """An object of a checkpoint. `name` is its key in the checkpoint's folder."""

    name: str
    size: int
    crc32c: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a committed checkpoint consists of. `attempt` tells two saves of one step apart."""

    step: int
    attempt: str
    created: datetime
    objects: tuple[StoredFile, ...]
    metrics: Mapping[str, float] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """As it is stored."""
        return json.dumps(
            {
                "format": _FORMAT,
                "version": VERSION,
                "step": self.step,
                "attempt": self.attempt,
                "created": self.created.isoformat(),
                "objects": [
                    {"name": o.name, "size": o.size, "crc32c": f"{o.crc32c:08x}"}
                    for o in self.objects
                ],
                # JSON has no word for what a diverged run measures.
                "metrics": {
                    name: value if math.isfinite(value) else str(value)
                    for name, value in self.metrics.items()
                },
                "metadata": self.metadata,
            },
            indent=1,
            allow_nan=False,
        ).encode()

    @classmethod
    def from_json(cls, data: memoryview | bytes, *, of: str) -> "Manifest":
        """Reads one, from the object `of`. Refuses a version that it does not know, and names outside its folder."""
        try:
            found = json.loads(bytes(data))
            known = found["format"] == _FORMAT
            version = found["version"]
        except (ValueError, KeyError, TypeError) as exc:
            raise InvalidCheckpoint(f"{of}: is no manifest ({exc}); restore or delete it") from exc
        if not known or version != VERSION:
            raise Unsupported(
                f"{of}: is {found['format']!r} version {version!r}, and this Penstock reads {_FORMAT!r} version "
                f"{VERSION}; update Penstock"
            )
        try:
            manifest = cls(
                step=int(found["step"]),
                attempt=str(found["attempt"]),
                created=datetime.fromisoformat(found["created"]),
                objects=tuple(
                    StoredFile(str(o["name"]), int(o["size"]), int(o["crc32c"], 16))
                    for o in found["objects"]
                ),
                metrics={str(k): _number(v) for k, v in found["metrics"].items()},
                metadata=dict(found["metadata"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise InvalidCheckpoint(
                f"{of}: is damaged ({type(exc).__name__}: {exc}); restore or delete it"
            ) from exc
        strange = [o.name for o in manifest.objects if not _NAME.fullmatch(o.name)]
        if strange or not manifest.objects:
            raise InvalidCheckpoint(
                f"{of}: names {strange or 'no objects'}, which no save writes; restore or delete it"
            )
        return manifest


def _number(value: object) -> float:
    if isinstance(value, str) and value not in _ODD:
        raise ValueError(f"metric {value!r} is no number")
    return float(value)  # type: ignore[arg-type]  # what float refuses is refused


def check_metrics(metrics: Mapping[str, Any] | None) -> dict[str, float]:
    """Metrics as numbers; tensors of one element are taken too."""
    return {str(name): float(value) for name, value in (metrics or {}).items()}


def folder_of(step: int) -> str:
    """The folder of a step: padded, so that names sort as numbers do."""
    if step < 0:
        raise ValueError(f"step must not be negative, got {step}")
    return f"step-{step:010d}"


def state_name(attempt: str) -> str:
    """The object that holds the state. Each attempt has its own, so that none overwrites what another commits."""
    return f"state-{attempt}.pt"


def split_key(key: str) -> tuple[int, str] | None:
    """Step and name of a key below a root; None for what no save writes."""
    match = _KEY.fullmatch(key)
    if match is None or not (match["name"] == MANIFEST or _NAME.fullmatch(match["name"])):
        return None
    return int(match["step"]), match["name"]
