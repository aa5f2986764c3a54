"""Which checkpoints go, and what interrupted saves have left behind. Pure; `manager.py` deletes."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from penstock.checkpoint.manifest import MANIFEST, split_key
from penstock.store import ObjectMeta

__all__ = ["Best", "Retention", "contested", "debris", "surplus"]


@dataclass(frozen=True, slots=True)
class Best:
    """Keep the `count` checkpoints with the smallest or largest value of a metric."""

    metric: str
    count: int = 1
    mode: Literal["min", "max"] = "min"

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"keep_best must keep at least 1, got {self.count}")
        if self.mode not in ("min", "max"):
            raise ValueError(f'keep_best goes by "min" or "max", got {self.mode!r}')


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What to keep: what any of these rules keeps. With no rule, everything."""

    last: int | None = None
    every: int | None = None
    best: Best | None = None

    def __post_init__(self) -> None:
        for name, value in (("keep_last", self.last), ("keep_every", self.every)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")

    @property
    def keeps_all(self) -> bool:
        """Whether nothing is ever to go."""
        return self.last is None and self.every is None and self.best is None


def surplus(
    committed: Mapping[int, Mapping[str, float]], rules: Retention, *, in_use: Collection[int]
) -> list[int]:
    """The steps that go, oldest first, of these committed ones with their metrics. Never the newest, nor one in use."""
    if rules.keeps_all or not committed:
        return []
    steps = sorted(committed)
    kept = {steps[-1], *in_use}
    if rules.last is not None:
        kept.update(steps[-rules.last :])
    if rules.every is not None:
        kept.update(step for step in steps if step % rules.every == 0)
    if rules.best is not None:
        kept.update(_best(committed, rules.best))
    return [step for step in steps if step not in kept]


def _best(committed: Mapping[int, Mapping[str, float]], rule: Best) -> list[int]:
    """The best of those that have the metric; of equals the newer. What is not a number is never good."""
    sign = 1.0 if rule.mode == "min" else -1.0
    scored = [
        (sign * metrics[rule.metric], -step)
        for step, metrics in committed.items()
        if rule.metric in metrics and not math.isnan(metrics[rule.metric])
    ]
    return [-negative for _, negative in sorted(scored)[: rule.count]]


def contested(found: Iterable[str]) -> set[int]:
    """The steps with more state objects than one, of which only their manifest tells which is committed."""
    count: dict[int, int] = {}
    for key in found:
        parts = split_key(key)
        if parts is not None and parts[1] != MANIFEST:
            count[parts[0]] = count.get(parts[0], 0) + 1
    return {step for step, n in count.items() if n > 1}


def debris(
    found: Sequence[ObjectMeta], owned: Mapping[int, Collection[str]], *, before: datetime
) -> list[str]:
    """The keys of objects that no commit owns, written before `before`, of steps up to the newest committed.

    `owned` gives the names that belong to each contested step. A newer step than the newest committed may be on its
    way, and what no save has named is not ours: neither is touched.
    """
    committed = {parts[0] for m in found if (parts := split_key(m.key)) and parts[1] == MANIFEST}
    if not committed:
        return []
    newest = max(committed)
    gone = []
    for meta in found:
        parts = split_key(meta.key)
        if parts is None or parts[1] == MANIFEST or parts[0] > newest:
            continue
        step, name = parts
        is_owned = step in committed and (step not in owned or name in owned[step])
        if not is_owned and meta.last_modified is not None and meta.last_modified <= before:
            gone.append(meta.key)
    return gone
