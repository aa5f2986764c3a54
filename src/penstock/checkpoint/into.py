"""Loading into tensors that exist: which of the file's goes into which of theirs, decided before anything is read."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from penstock.checkpoint.files import row_major
from penstock.checkpoint.survey import Opaque, TensorSpec, storages_in
from penstock.checkpoint.torchfile import Unplannable
from penstock.checkpoint.tree import leaves, matches

__all__ = ["Pair", "copy_plain", "copy_tensors", "has_plain", "pair_up"]

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Pair:
    """A tensor of the caller's, and the one in the file that goes into it."""

    path: str
    target: torch.Tensor
    spec: TensorSpec

    @property
    def is_direct(self) -> bool:
        """Whether the bytes of the storage are those of the target, in the same order."""
        whole = self.spec.offset == 0 and self.spec.storage.size == self.target.nbytes
        same = tuple(self.target.stride()) == self.spec.stride and _is_dense(self.spec)
        both_rows = self.target.is_contiguous() and self.spec.stride == row_major(self.spec.shape)
        as_is = not self.target.is_conj() and not self.target.is_neg()
        reachable = self.target.device.type in ("cpu", "cuda")
        return whole and as_is and reachable and (same or both_rows)


def pair_up(into: Any, tree: Any, patterns: Sequence[str] | None) -> list[Pair]:
    """Finds every tensor's counterpart. Raises ValueError, naming the keys, where one is missing or does not fit."""
    targets = _tensors(into)
    found = _facts(tree)
    _compare(targets, found, patterns)
    pairs = []
    for path, target in targets.items():
        if not matches(path, patterns):
            continue
        spec = found[path]
        if not isinstance(spec, TensorSpec) or not spec.is_plain or target.is_quantized:
            raise Unplannable(f"{path} is no plain tensor, which cannot be read into place")
        pairs.append(Pair(path, target.detach(), spec))
    return pairs


def copy_tensors(into: Any, tree: Any, patterns: Sequence[str] | None) -> None:
    """Fills `into` from an object that is loaded already."""
    targets = _tensors(into)
    found = _facts(tree)
    _compare(targets, found, patterns)
    with torch.no_grad():
        for path, target in targets.items():
            if matches(path, patterns):
                target.copy_(found[path])


def copy_plain(into: Any, tree: Any, patterns: Sequence[str] | None, path: str = "") -> None:
    """Replaces what is no tensor, in the dicts and lists of `into`, by what the file has there."""
    slots: list[tuple[Any, Any]] = []
    if isinstance(into, dict):
        slots = [*into.items()]
    elif isinstance(into, list):
        slots = [*enumerate(into)]
    for key, value in slots:
        at = f"{path}.{key}" if path else str(key)
        if isinstance(value, torch.nn.Module) or not _has(tree, key):
            continue
        if isinstance(value, dict | list) or any(_is_tensor(leaf) for _, leaf in leaves(value)):
            copy_plain(value, tree[key], patterns, at)
        elif matches(at, patterns):
            into[key] = tree[key]


def has_plain(into: Any) -> bool:
    """Whether there is anything but tensors and modules in `into`."""
    return any(
        not _is_tensor(leaf) and not isinstance(leaf, torch.nn.Module) for _, leaf in leaves(into)
    )


def _tensors(into: Any) -> dict[str, torch.Tensor]:
    if not isinstance(into, dict | OrderedDict | torch.nn.Module):
        raise TypeError(f"into must be a state dict or a module, got {type(into).__name__}")
    found: dict[str, torch.Tensor] = {}
    for path, leaf in leaves(into):
        state = leaf.state_dict() if isinstance(leaf, torch.nn.Module) else {"": leaf}
        for name, value in state.items():
            at = ".".join(part for part in (path, name) if part)
            if _is_tensor(value):
                found[at] = value
            elif isinstance(leaf, torch.nn.Module):
                raise ValueError(
                    f"{at}: {type(leaf).__name__} keeps more than tensors in its state; load the state, then "
                    "call load_state_dict"
                )
    return found


def _facts(tree: Any) -> dict[str, Any]:
    return {path: leaf for path, leaf in leaves(tree) if hasattr(leaf, "shape") or _stands(leaf)}


def _compare(
    targets: Mapping[str, torch.Tensor], found: Mapping[str, Any], patterns: Sequence[str] | None
) -> None:
    problems = []
    for path, target in targets.items():
        if not matches(path, patterns):
            continue
        there = found.get(path)
        if there is None:
            problems.append(f"{path} is not in the file")
        elif isinstance(there, TensorSpec | torch.Tensor):
            has = (tuple(there.shape), there.dtype)
            if has != (tuple(target.shape), target.dtype):
                problems.append(
                    f"{path} is {_show(*has)} in the file and {_show(tuple(target.shape), target.dtype)} here"
                )
    problems += [
        f"{path} is in the file and not here"
        for path in found
        if path not in targets and matches(path, patterns)
    ]
    if problems:
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise ValueError(
            f"into does not fit the file: {'; '.join(problems[:_SHOWN])}{more}; nothing was read into place. "
            "Load a part with only=, or load without into="
        )
    if not any(matches(path, patterns) for path in targets):
        raise ValueError("into has no tensor that only= matches")


def _show(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    return f"{str(dtype).removeprefix('torch.')} {[*shape]}"


def _is_dense(spec: TensorSpec) -> bool:
    step = 1
    for stride, length in sorted(zip(spec.stride, spec.shape, strict=True)):
        if length != 1 and stride != step:
            return False
        step *= length
    return True


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def _stands(leaf: object) -> bool:
    return isinstance(leaf, Opaque) and next(storages_in(leaf), None) is not None


def _has(tree: Any, key: Any) -> bool:
    if isinstance(tree, dict):
        return key in tree
    return isinstance(tree, list | tuple) and isinstance(key, int) and key < len(tree)
