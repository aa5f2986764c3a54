"""Names what is inside nested containers by dotted paths, and takes parts of them. Pure.

Only `dict`, `OrderedDict`, `list` and `tuple` themselves are entered; an object of any other class is a leaf.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

__all__ = ["keep", "leaves", "matches", "patterns_of"]


def patterns_of(only: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """The globs of an `only=` argument; None for everything."""
    if only is None:
        return None
    patterns = (only,) if isinstance(only, str) else tuple(only)
    if not patterns:
        raise ValueError("only must name something to load; leave it out to load everything")
    return patterns


def matches(path: str, patterns: Sequence[str] | None) -> bool:
    """Whether a glob matches the path, or something that it is inside of. `*` crosses dots."""
    if patterns is None:
        return True
    parts = path.split(".")
    above = [".".join(parts[:n]) for n in range(1, len(parts) + 1)]
    return any(fnmatchcase(name, pattern) for pattern in patterns for name in above)


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Everything that is not a container, with its dotted path, in order. An empty container is a leaf."""
    inside = _items(tree)
    if not inside:
        yield path, tree
    for key, value in inside:
        yield from leaves(value, f"{path}.{key}" if path else str(key))


def keep(tree: Any, patterns: Sequence[str], path: str = "") -> Any:
    """A copy of the containers with what matches: keys that do not are left out, list elements become None."""
    if path and matches(path, patterns):
        return tree
    if type(tree) is dict or type(tree) is OrderedDict:
        kept = type(tree)()
        for key, value in tree.items():
            at = f"{path}.{key}" if path else str(key)
            if any(matches(leaf, patterns) for leaf, _ in leaves(value, at)):
                kept[key] = keep(value, patterns, at)
        return kept
    inside = [
        keep(value, patterns, f"{path}.{key}" if path else str(key)) for key, value in _items(tree)
    ]
    if not inside:
        return tree if matches(path, patterns) else None
    return tuple(inside) if type(tree) is tuple else inside


def _items(tree: Any) -> list[tuple[Any, Any]]:
    if type(tree) is dict or type(tree) is OrderedDict:
        return [*tree.items()]
    if type(tree) is list or type(tree) is tuple:
        return [*enumerate(tree)]
    return []
