"""How a store is spoken to: one frozen value, validated where it is built, passed whole."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import urlsplit

from penstock._version import __version__
from penstock.errors import ConfigError

__all__ = [
    "AccessKey",
    "AccountKey",
    "BearerToken",
    "Credentials",
    "RetryConfig",
    "SasToken",
    "StoreConfig",
    "TransferConfig",
]

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class AccessKey:
    """An S3 access key. `token` is the session token of temporary credentials."""

    id: str
    secret: str = field(repr=False)
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class BearerToken:
    """An OAuth2 access token, for Google Cloud Storage or Azure."""

    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class AccountKey:
    """An Azure storage account and one of its two keys."""

    account: str
    key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class SasToken:
    """An Azure storage account and a shared access signature for it."""

    account: str
    token: str = field(repr=False)


Credentials: TypeAlias = AccessKey | BearerToken | AccountKey | SasToken


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryConfig:
    """When to stop trying one request. Retries happen in one place, below the store interface.

    Connection errors, broken bodies, timeouts, 429 and 5xx are tried again, after a pause that doubles from
    `backoff_initial_s` to `backoff_max_s` with jitter.
    """

    max_attempts: int = 10
    """How often a request is sent at most; 1 turns retries off."""
    deadline_s: float = 180.0
    """No attempt begins later than this after the first one."""
    backoff_initial_s: float = 0.1
    """The first pause."""
    backoff_max_s: float = 15.0
    """The longest pause."""

    def __post_init__(self) -> None:
        if not 1 <= self.max_attempts <= 1000:
            raise ConfigError(f"max_attempts must be from 1 to 1000, got {self.max_attempts}")
        for name in ("deadline_s", "backoff_initial_s", "backoff_max_s"):
            _positive(self, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferConfig:
    """How bytes are moved: how large the pieces are and how many are under way."""

    budget_bytes: int = 128 * _MIB
    """What this process holds in flight at most: reads, writes and staging of all stores with this value share it.
    One larger item passes alone."""
    part_bytes: int = 16 * _MIB
    """Size of a ranged read, and of the first parts of an upload, which grow so that 10,000 make 5 TiB."""
    max_concurrency: int = 128
    """Requests in flight at most. How many of them are used is found by watching throughput and latency."""
    max_gap_bytes: int = 1 * _MIB
    """Wanted ranges with no larger gap between them are read as one."""
    hedge: bool = False
    """Send a second request where the first takes longer than 95 % of its kind; the first answer wins."""
    hedge_share: float = 0.05
    """Second requests, as a share of all, at most."""

    def __post_init__(self) -> None:
        if self.part_bytes < 5 * _MIB:
            raise ConfigError(f"part_bytes must be at least 5 MiB, got {self.part_bytes}")
        if self.budget_bytes < self.part_bytes:
            raise ConfigError(
                f"budget_bytes must hold at least one part of {self.part_bytes}, got {self.budget_bytes}"
            )
        if not 1 <= self.max_concurrency <= 1024:
            raise ConfigError(f"max_concurrency must be from 1 to 1024, got {self.max_concurrency}")
        if self.max_gap_bytes < 0:
            raise ConfigError(f"max_gap_bytes must not be negative, got {self.max_gap_bytes}")
        if not 0 < self.hedge_share <= 1:
            raise ConfigError(f"hedge_share must be above 0 and at most 1, got {self.hedge_share}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Settings of a store. What is None comes from the environment and the cloud's own credential chain."""

    endpoint: str | None = None
    """`http(s)://host:port` of an S3-compatible store, a GCS emulator or an Azure endpoint.
    None: `AWS_ENDPOINT_URL`, `STORAGE_EMULATOR_HOST`, `AZURE_STORAGE_ENDPOINT`, else the cloud itself."""
    region: str | None = None
    """S3 region. None: `AWS_REGION`, `AWS_DEFAULT_REGION`, the profile's, else us-east-1."""
    profile: str | None = None
    """AWS profile. None: `AWS_PROFILE`."""
    credentials: Credentials | Callable[[], Credentials] | None = None
    """Fixed credentials, or a function called for fresh ones when the store asks (it must pickle to reach
    spawned workers). None: environment variables, then the SDK's chain (SSO, web identity, metadata server)."""
    anonymous: bool = False
    """Send unsigned requests, for public buckets."""
    requester_pays: bool = False
    """Pay for requests to a requester-pays bucket (S3)."""
    path_style: bool | None = None
    """`host/bucket/key` (True) or `bucket.host/key` (False). None: path style whenever an endpoint is set."""
    verify_tls: bool = True
    """False accepts any certificate. Prefer `ca_file`."""
    ca_file: str | None = None
    """PEM file of a private certificate authority, trusted beside the system's."""
    connect_timeout_s: float = 5.0
    """Longest wait for a connection."""
    read_timeout_s: float = 30.0
    """Longest silence in the middle of a response; a stalled one is given up and tried again."""
    request_timeout_s: float = 300.0
    """Longest time of one attempt, its body included."""
    retry: RetryConfig = field(default_factory=RetryConfig)
    """When to stop trying."""
    transfer: TransferConfig = field(default_factory=TransferConfig)
    """How bytes are moved."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    """Extra headers of every request, for instance an `Authorization` for `https://` stores."""
    user_agent: str = f"penstock/{__version__}"
    """Sent with every request."""
    verify_checksums: bool = True
    """Writes record a CRC32C beside the object; whole-object reads compare it. Costs 4 µs for 100 KiB."""

    def __post_init__(self) -> None:
        for name in ("connect_timeout_s", "read_timeout_s", "request_timeout_s"):
            _positive(self, name)
        if self.endpoint is not None:
            check_endpoint(self.endpoint, of="endpoint")
        if self.anonymous and self.credentials is not None:
            raise ConfigError("anonymous=True and credentials exclude each other; give one of them")
        if self.profile is not None and self.credentials is not None:
            raise ConfigError("profile and credentials exclude each other; give one of them")


def check_endpoint(endpoint: str, *, of: str) -> None:
    """Refuses what no client could connect to, naming the setting it came from."""
    parts = urlsplit(endpoint)
    if parts.username or parts.password:
        raise ConfigError(
            f"{of} must not contain a user or password; pass StoreConfig(credentials=…)"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            f"{of} must look like http://127.0.0.1:8333 or https://host, got {endpoint!r}"
        )
    if parts.query or parts.fragment:
        raise ConfigError(
            f"{of} must have no query or fragment, got {endpoint.partition('?')[0]!r}?…"
        )


def _positive(config: object, name: str) -> None:
    value = getattr(config, name)
    if not value > 0 or value == float("inf"):
        raise ConfigError(f"{name} must be a positive number of seconds, got {value}")
