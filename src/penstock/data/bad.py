"""What happens to a sample that cannot be read or decoded: raise, skip, or whatever the user's function says."""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from penstock import metrics
from penstock.errors import (
    BadSample,
    BucketNotFound,
    ConfigError,
    CredentialsExpired,
    PenstockError,
    StoreUnavailable,
    Throttled,
)

__all__ = ["SKIPPED", "OnError", "check_on_error", "handle"]

OnError: TypeAlias = Literal["raise", "skip"] | Callable[[str, Exception], Any]
"""`raise`, `skip`, or a function of key and error that returns a substitute or raises.

A store that cannot be read at all is no bad sample: `skip` raises that too.
"""

_NOT_THE_SAMPLE = (BucketNotFound, ConfigError, CredentialsExpired, StoreUnavailable, Throttled)


class _Skipped:
    def __repr__(self) -> str:
        return "SKIPPED"


SKIPPED = _Skipped()
"""Stands for a sample that is left out. A user's function may return it too."""


def check_on_error(on_error: object) -> None:
    """Refuses what is neither of the words nor a function."""
    if on_error not in ("raise", "skip") and not callable(on_error):
        raise ValueError(
            f"on_error must be 'raise', 'skip' or a function of key and error, got {on_error!r}"
        )


def handle(on_error: OnError, url: str, key: str, error: Exception) -> Any:
    """The substitute for a bad sample, `SKIPPED`, or no return at all."""
    metrics.count_bad_sample()
    if callable(on_error):
        return on_error(key, error)
    if on_error == "skip" and not isinstance(error, _NOT_THE_SAMPLE):
        return SKIPPED
    if isinstance(error, PenstockError):
        raise error
    raise BadSample(
        f"{url.rstrip('/')}/{key}: transform raised {type(error).__name__}: {error}; mend the object or the "
        "transform, or pass on_error='skip'"
    ) from error
