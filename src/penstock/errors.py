"""Every error Penstock raises. A message is object, fact, remedy; each class is a builtin too where one fits.

Store errors are translated once, in `store/translate.py`, by the engine's exception type and the HTTP status.
"""

__all__ = [
    "AccessDenied",
    "AlreadyExists",
    "BadSample",
    "BucketNotFound",
    "ConfigError",
    "CredentialsExpired",
    "IntegrityError",
    "InvalidCheckpoint",
    "InvalidUrl",
    "NotFound",
    "ObjectChanged",
    "PenstockError",
    "PreconditionFailed",
    "SaveFailed",
    "SaveInProgress",
    "StoreUnavailable",
    "Throttled",
    "TransferFailed",
    "Unsupported",
]


class PenstockError(Exception):
    """Base of all errors raised by Penstock."""


class InvalidUrl(PenstockError, ValueError):
    """A URL or key that no store could accept; raised before any request."""


class ConfigError(PenstockError, ValueError):
    """Settings, credentials or an installation that cannot work; raised before any request."""


class Unsupported(PenstockError, NotImplementedError):
    """The store behind this URL cannot do what was asked."""


class NotFound(PenstockError, FileNotFoundError):
    """The object does not exist, or the bucket it should be in: see `BucketNotFound`."""


class BucketNotFound(NotFound):
    """The bucket, container or folder does not exist, so no key in it can."""


class AlreadyExists(PenstockError, FileExistsError):
    """A put with `if_absent=True` found an object in its place."""


class PreconditionFailed(PenstockError):
    """A put with `if_match=` found another version of the object, or none."""


class ObjectChanged(PenstockError):
    """A read pinned to one version found that the object has been overwritten."""


class AccessDenied(PenstockError, PermissionError):
    """The store knows the credentials, or refuses them, and does not allow the request."""


class CredentialsExpired(AccessDenied):
    """The credentials were good once; renew them."""


class Throttled(PenstockError, OSError):
    """The store still answered 429 or 503 "slow down" when the retries were used up."""


class StoreUnavailable(PenstockError, ConnectionError):
    """The store could not be reached, or answered with a server error, until the retries were used up."""


class TransferFailed(PenstockError, OSError):
    """A request reached the store and failed for a reason that no other class names."""


class BadSample(PenstockError, ValueError):
    """A sample was read and its transform failed; the message names the object."""


class IntegrityError(PenstockError, OSError):
    """Bytes arrived that are not the bytes that were stored. They are never handed to the caller."""


class InvalidCheckpoint(PenstockError, ValueError):
    """A checkpoint file that contradicts itself; nothing of it was loaded."""


class SaveInProgress(PenstockError, RuntimeError):
    """A save was refused, for the one before it is not durable yet."""


class SaveFailed(PenstockError, RuntimeError):
    """An earlier save in the background failed; its cause is the `__cause__`."""
