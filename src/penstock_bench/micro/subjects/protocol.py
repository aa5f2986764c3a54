"""What a subject is told and what it may be asked to do. An adapter implements only what its rows need."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from typing_extensions import Buffer

__all__ = ["Reads", "ReadsInto", "ReadsMany", "Subject", "Take", "Target", "Writes"]

Take: TypeAlias = Callable[[int, Buffer], None]
"""Given the index of a key and its object's bytes, in any order and from any thread."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where the objects are. Credentials are in the environment too, for subjects that only look there."""

    endpoint: str
    bucket: str
    access_key_id: str
    secret_access_key: str
    region: str

    def url(self, key: str) -> str:
        return f"s3://{self.bucket}/{key}"

    @property
    def env(self) -> dict[str, str]:
        """Leads AWS's own libraries here, whatever the user's settings are."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret_access_key,
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        }


class Subject(Protocol):
    """Opened by its constructor, before the clock: it takes a Target, the keys to come, and the row's options."""

    def close(self) -> None: ...


class ReadsMany(Subject, Protocol):
    """Reads many whole objects."""

    def read_many(self, count: int, take: Take) -> None:
        """The first `count` of the keys it was opened with."""
        ...


class Reads(Subject, Protocol):
    """Reads one object into memory of its own choice."""

    def read(self, key: str) -> Buffer: ...


class ReadsInto(Subject, Protocol):
    """Reads one object into the caller's memory."""

    def read_into(self, key: str, buffer: memoryview) -> None: ...


class Writes(Subject, Protocol):
    """Writes one object that lies in memory."""

    def write(self, key: str, source: bytes) -> None: ...
