"""Turns the engine's exceptions into ours, once, by type and HTTP status. A message is object, fact, remedy."""

import re
from dataclasses import dataclass
from typing import Self

from penstock.config import StoreConfig
from penstock.errors import (
    AccessDenied,
    AlreadyExists,
    BucketNotFound,
    CredentialsExpired,
    IntegrityError,
    InvalidUrl,
    NotFound,
    ObjectChanged,
    PenstockError,
    PreconditionFailed,
    StoreUnavailable,
    Throttled,
    TransferFailed,
    Unsupported,
)

__all__ = ["Failure", "Target", "code_in", "translate"]

_THROTTLED = {
    "SlowDown",
    "ServerBusy",
    "TooManyRequests",
    "RequestLimitExceeded",
    "OperationTimedOut",
}
_EXPIRED = {"ExpiredToken", "TokenRefreshRequired", "RequestExpired", "ExpiredTokenException"}
_BROKEN_BODY = re.compile(
    r"\bBody\b|body error|error decoding|IncompleteMessage|ConnectionReset|UnexpectedEof|TimedOut|invalid list response"
)
_SECRET = re.compile(
    r"(?i)\b(sig|signature|token|password|secret|awsaccesskeyid|googleaccessid|x-(?:amz|goog)-[\w-]+)=[^&\s\"']+"
)


@dataclass(frozen=True, slots=True)
class Failure:
    """What the engine's exception says, read from its debug text, which is the only place where it says it."""

    kind: str
    status: int | None
    code: str | None
    retries: int | None
    text: str
    exception: Exception

    @classmethod
    def of(cls, exc: Exception) -> Self:
        """Reads one."""
        text = str(exc)
        return cls(
            kind=type(exc).__name__.removesuffix("Error"),
            status=_number(r"\bstatus: (\d{3})\b", text),
            code=code_in(text),
            retries=_number(r"\bretries: (\d+)\b", text),
            text=text,
            exception=exc,
        )

    @property
    def past_the_end(self) -> bool:
        """Whether a range began at or after the end of the object."""
        return self.status == 416 or "InvalidGetRange" in self.text or "StartTooLarge" in self.text

    def scrubbed(self) -> Exception:
        """The engine's exception with signed queries and tokens cut out of its text."""
        clean = _SECRET.sub(r"\1=…", self.text)
        return self.exception if clean == self.text else type(self.exception)(clean)

    @property
    def answer(self) -> str:
        """The status and the store's word for it, such as `503 SlowDown`."""
        return " ".join(str(part) for part in (self.status, self.code) if part is not None)

    @property
    def attempts(self) -> str:
        """How often the request was sent, in words; the engine does not say so where a body broke off."""
        if self.retries is None:
            return "again and again"
        return f"after {self.retries + 1} attempts" if self.retries else "at the first attempt"

    @property
    def broke_in_body(self) -> bool:
        """Whether a response began well and then broke off, stalled or made no sense."""
        return self.retries is None and _BROKEN_BODY.search(self.text) is not None


@dataclass(frozen=True, slots=True)
class Target:
    """What the failed request was about."""

    verb: str
    url: str
    bucket_url: str
    where: str
    config: StoreConfig


def translate(
    failure: Failure, target: Target, provider_failure: Exception | None
) -> PenstockError:
    """The error to raise, its cause already set to a copy of the engine's that is free of secrets."""
    error = (
        _chain_failed(target, provider_failure)
        if provider_failure is not None and failure.status is None
        else _by_code(failure, target)
        or _by_type(failure, target)
        or (
            _by_status(failure, target)
            if failure.status is not None
            else _without_answer(failure, target)
        )
    )
    error.__cause__ = provider_failure or failure.scrubbed()
    return error


def _chain_failed(target: Target, provider_failure: Exception) -> PenstockError:
    return CredentialsExpired(
        f"{target.url}: the credential chain failed ({type(provider_failure).__name__}: {provider_failure}); "
        "log in again (aws sso login, gcloud auth application-default login, az login) or pass "
        "StoreConfig(credentials=…)"
    )


def _by_code(failure: Failure, target: Target) -> PenstockError | None:
    message = _word(r"<Message>([^<]*)</Message>", failure.text) or ""
    if failure.code in _EXPIRED or (
        failure.status in (400, 401, 403) and "expired" in message.lower()
    ):
        return CredentialsExpired(
            f"{target.url}: the credentials have expired ({failure.answer}); renew them (aws sso login, a fresh "
            "session token) or give StoreConfig(credentials=…) a function that returns fresh ones"
        )
    if failure.code in ("NoSuchBucket", "ContainerNotFound"):
        return _missing_bucket(target)
    if failure.code == "BadDigest":
        return IntegrityError(
            f"{target.url}: the store received other bytes than were sent, {failure.attempts}; check the network"
        )
    if failure.code == "AccessDenied":
        return _denied(failure, target)
    return None


def _by_type(  # noqa: PLR0911 - a table, one row a return
    failure: Failure, target: Target
) -> PenstockError | None:
    url = target.url
    match failure.kind:
        case "FileNotFound" | "NotFound":
            return NotFound(
                f"{url}: no such object; check the key, or list what is there with penstock ls"
            )
        case "AlreadyExists":
            sent = (
                f" (sent {failure.retries + 1} times: an earlier try may have written it)"
                if failure.retries
                else ""
            )
            return AlreadyExists(
                f"{url}: there is an object already{sent}; delete it, or put without if_absent"
            )
        case "Precondition" | "NotModified" if target.verb == "get":
            return ObjectChanged(
                f"{url}: the object was overwritten since its version was read; read it anew"
            )
        case "Precondition" | "NotModified":
            return PreconditionFailed(
                f"{url}: the object is not the version given as if_match; read it again and decide anew"
            )
        case "PermissionDenied" | "Unauthenticated" | "Permission":
            return _denied(failure, target)
        case "NotSupported" | "NotImplemented":
            return Unsupported(
                f"{url}: this store cannot {target.verb} that way ({_first_line(failure.text)})"
            )
        case "InvalidPath" | "Value":
            return InvalidUrl(f"{url}: {_first_line(failure.text)}; rename the object")
    return None


def _missing_bucket(target: Target) -> PenstockError:
    return BucketNotFound(
        f"{target.bucket_url}: no such bucket at {target.where}; create it, or check the name, "
        "StoreConfig.endpoint and region"
    )


def _denied(failure: Failure, target: Target) -> PenstockError:
    url, verb = target.url, target.verb
    if failure.status == 401:
        return CredentialsExpired(
            f"{url}: the store does not accept the token ({failure.answer}); it may have expired: log in again "
            "or pass StoreConfig(credentials=…)"
        )
    if failure.code in ("SignatureDoesNotMatch", "InvalidAccessKeyId", "AuthenticationFailed"):
        return AccessDenied(
            f"{url}: the store does not accept these credentials ({failure.answer}); check the access key and its "
            "secret, and the clock of this machine"
        )
    if target.config.anonymous:
        return AccessDenied(
            f"{url}: anonymous {verb} is not allowed ({failure.answer}); leave out anonymous=True to sign requests"
        )
    return AccessDenied(
        f"{url}: these credentials may not {verb} here ({failure.answer or 'permission denied'}); ask for the "
        "permission, or use other credentials (AWS_PROFILE, StoreConfig.credentials)"
    )


def _by_status(failure: Failure, target: Target) -> PenstockError:
    url, retry = target.url, target.config.retry
    status = failure.status or 0
    tried = f"{failure.attempts} ({failure.answer})"
    if status == 404:
        return _missing_bucket(target)
    if status == 429 or failure.code in _THROTTLED:
        return Throttled(
            f"{url}: the store asked to slow down {tried}; lower concurrency or raise StoreConfig.retry.max_attempts "
            f"(now {retry.max_attempts}) and deadline_s (now {retry.deadline_s:g})"
        )
    if status >= 500:
        return StoreUnavailable(
            f"{url}: the store failed {tried}; try later or raise StoreConfig.retry.max_attempts "
            f"(now {retry.max_attempts}) and deadline_s (now {retry.deadline_s:g})"
        )
    if status in (401, 403):
        return _denied(failure, target)
    return TransferFailed(
        f"{url}: the store refused the request ({failure.answer}): {_first_line(failure.text)}"
    )


def _without_answer(  # noqa: PLR0911 - a table, one row a return
    failure: Failure, target: Target
) -> PenstockError:
    url, where, config = target.url, target.where, target.config
    if re.search(r"\bTimedOut\b|kind: Timeout|operation timed out", failure.text):
        return StoreUnavailable(
            f"{url}: {where} was silent for {config.read_timeout_s:g} s, {failure.attempts}; check the "
            "network, or raise StoreConfig.read_timeout_s and retry.deadline_s"
        )
    if re.search(r"kind: Connect\b|\bConnect,", failure.text):
        reason = _word(r"message: \"([^\"]+)\"", failure.text) or "no connection"
        return StoreUnavailable(
            f"{url}: cannot connect to {where} ({reason.lower()}), {failure.attempts}; check StoreConfig.endpoint "
            "(or AWS_ENDPOINT_URL) and that the store is running"
        )
    if target.verb == "put" and failure.retries == 0 and config.retry.max_attempts > 1:
        return TransferFailed(
            f"{url}: the connection to {where} was lost, and a conditional put is not sent twice; read the object "
            "to see whether it was written"
        )
    if _BROKEN_BODY.search(failure.text):
        return TransferFailed(
            f"{url}: the connection to {where} was lost in the middle of a request, {failure.attempts}; try later, or "
            f"raise StoreConfig.retry.max_attempts (now {config.retry.max_attempts})"
        )
    if "HTTP error" in failure.text:
        return StoreUnavailable(
            f"{url}: the request to {where} failed {failure.attempts} ({_first_line(failure.text)}); check the "
            "network and StoreConfig.endpoint"
        )
    if "os error 20" in failure.text or "os error 21" in failure.text:
        return InvalidUrl(
            f"{url}: a file and a folder cannot have the same name on a local disk; rename the object"
        )
    return TransferFailed(f"{url}: {_first_line(failure.text)}")


def _first_line(text: str) -> str:
    return _SECRET.sub(r"\1=…", text.partition("\n")[0])[:300]


def code_in(text: str) -> str | None:
    """The store's own word for an error, from its XML or from the engine's account of it."""
    return _word(r"<Code>([\w.]+)</Code>", text) or _word(r"\bcode: \"(\w+)\"", text)


def _word(pattern: str, text: str) -> str | None:
    match = re.search(pattern, text)
    return match[1] if match else None


def _number(pattern: str, text: str) -> int | None:
    word = _word(pattern, text)
    return int(word) if word is not None else None
