"""Where credentials come from, in one order for every cloud: given, environment variables, the SDK's own chain.

The SDKs are imported only when nothing nearer has credentials, because importing one costs more than a request.
"""

import importlib.util
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from penstock.config import AccessKey, AccountKey, BearerToken, Credentials, SasToken, StoreConfig
from penstock.errors import ConfigError

__all__ = ["EngineOptions", "Provider", "azure_options", "gcs_options", "s3_options"]

EngineOptions: TypeAlias = dict[str, Any]
"""Keyword arguments of an obstore store."""

_FUNCTION_TTL = timedelta(minutes=5)


class Provider:
    """Asks `source` for credentials whenever the engine wants fresh ones, and keeps the failure it may meet.

    The engine reports a provider's exception as text only; `failure` lets the translation name it properly.
    """

    def __init__(self, source: Callable[[], Any]) -> None:
        self.source = source
        self.failure: Exception | None = None

    def __call__(self) -> Any:
        """Fresh credentials, as the engine expects them."""
        try:
            fresh = self.source()
        except Exception as exc:
            self.failure = exc
            raise
        self.failure = None
        return fresh


def s3_options(config: StoreConfig, environ: Mapping[str, str]) -> EngineOptions:
    """Credentials for S3: config, `AWS_ACCESS_KEY_ID`, then boto3's chain, or the engine's without boto3."""
    if config.anonymous:
        return {"skip_signature": True}
    if config.credentials is not None:
        return _given(config.credentials, _s3_static)
    if config.profile is None and "AWS_ACCESS_KEY_ID" in environ:
        secret = environ.get("AWS_SECRET_ACCESS_KEY")
        if not secret:
            raise ConfigError(
                "AWS_ACCESS_KEY_ID is set and AWS_SECRET_ACCESS_KEY is not; set both or neither"
            )
        return _s3_static(
            AccessKey(environ["AWS_ACCESS_KEY_ID"], secret, environ.get("AWS_SESSION_TOKEN"))
        )
    profile = config.profile or environ.get("AWS_PROFILE")
    if importlib.util.find_spec("boto3") is None:
        if profile is not None:
            raise ConfigError(f"AWS profile {profile!r} needs boto3; pip install 'penstock[s3]'")
        return {}
    return {"credential_provider": Provider(_boto3_chain(profile))}


def gcs_options(config: StoreConfig, environ: Mapping[str, str]) -> EngineOptions:
    """Credentials for Google Cloud Storage: config, an emulator's none, then google-auth's chain."""
    if config.anonymous:
        return {"skip_signature": True}
    if config.credentials is not None:
        return _given(config.credentials, _gcs_static)
    if "STORAGE_EMULATOR_HOST" in environ:
        return _gcs_static(BearerToken("emulator"))
    if (
        importlib.util.find_spec("google") is None
        or importlib.util.find_spec("google.auth") is None
    ):
        return {}
    return {"credential_provider": Provider(_google_chain())}


def azure_options(
    config: StoreConfig, environ: Mapping[str, str], account: str | None
) -> EngineOptions:
    """Account and credentials for Azure: config, `AZURE_STORAGE_*`, then azure-identity's chain."""
    connection = dict(
        part.split("=", 1)
        for part in environ.get("AZURE_STORAGE_CONNECTION_STRING", "").split(";")
        if "=" in part
    )
    account = account or connection.get("AccountName") or environ.get("AZURE_STORAGE_ACCOUNT_NAME")
    account = account or environ.get("AZURE_STORAGE_ACCOUNT")
    if isinstance(config.credentials, AccountKey | SasToken):
        account = account or config.credentials.account
    if account is None:
        raise ConfigError(
            "no Azure storage account; write abfs://container@account.dfs.core.windows.net/, set "
            "AZURE_STORAGE_ACCOUNT_NAME, or pass StoreConfig(credentials=AccountKey(account, key))"
        )
    named: EngineOptions = {"account_name": account}
    if config.anonymous:
        return named | {"skip_signature": True}
    if config.credentials is not None:
        return named | _given(config.credentials, _azure_static)
    key = (
        connection.get("AccountKey")
        or environ.get("AZURE_STORAGE_ACCOUNT_KEY")
        or environ.get("AZURE_STORAGE_KEY")
    )
    if key:
        return named | {"account_key": key}
    sas = connection.get("SharedAccessSignature") or environ.get("AZURE_STORAGE_SAS_TOKEN")
    if sas:
        return named | {"sas_key": sas}
    if (
        importlib.util.find_spec("azure") is None
        or importlib.util.find_spec("azure.identity") is None
    ):
        return named
    return named | {"credential_provider": Provider(_azure_chain())}


def _given(
    credentials: Credentials | Callable[[], Credentials],
    static: Callable[[Credentials], EngineOptions],
) -> EngineOptions:
    if not callable(credentials):
        return static(credentials)
    source = credentials
    rename = {
        "account_key": "access_key",
        "sas_key": "sas_token",
        "bearer_token": "token",
        "session_token": "token",
    }

    def fresh() -> dict[str, Any]:
        options = static(source())
        options.pop("account_name", None)
        named = {rename.get(name, name): value for name, value in options.items()}
        return named | {"expires_at": datetime.now(UTC) + _FUNCTION_TTL}

    return {"credential_provider": Provider(fresh)}


def _s3_static(credentials: Credentials) -> EngineOptions:
    if not isinstance(credentials, AccessKey):
        raise ConfigError(
            f"s3:// takes credentials=AccessKey(id, secret), got {type(credentials).__name__}"
        )
    options = {"access_key_id": credentials.id, "secret_access_key": credentials.secret}
    return options | ({"session_token": credentials.token} if credentials.token else {})


def _gcs_static(credentials: Credentials) -> EngineOptions:
    if not isinstance(credentials, BearerToken):
        raise ConfigError(
            f"gs:// takes credentials=BearerToken(token), got {type(credentials).__name__}"
        )
    return {"bearer_token": credentials.token}


def _azure_static(credentials: Credentials) -> EngineOptions:
    match credentials:
        case AccountKey():
            return {"account_key": credentials.key}
        case SasToken():
            return {"sas_key": credentials.token.removeprefix("?")}
        case BearerToken():
            return {"token": credentials.token}
        case AccessKey():
            raise ConfigError(
                "az:// takes credentials=AccountKey, SasToken or BearerToken, got AccessKey"
            )


def _boto3_chain(profile: str | None) -> Callable[[], Any]:
    import boto3
    import botocore.exceptions
    from obstore.auth.boto3 import Boto3CredentialProvider

    try:
        session = boto3.Session(profile_name=profile)
        if session.get_credentials() is None:
            raise ConfigError(
                "no AWS credentials found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, run `aws sso login`, "
                "pass StoreConfig(profile=…), or StoreConfig(anonymous=True) for a public bucket"
            )
        return Boto3CredentialProvider(session)
    except botocore.exceptions.ProfileNotFound as exc:
        raise ConfigError(f"{exc}; see `aws configure list-profiles`") from exc


def _google_chain() -> Callable[[], Any]:
    import google.auth.exceptions
    from obstore.auth.google import GoogleCredentialProvider

    try:
        return GoogleCredentialProvider()
    except google.auth.exceptions.DefaultCredentialsError as exc:
        raise ConfigError(
            "no Google credentials found; run `gcloud auth application-default login`, set "
            "GOOGLE_APPLICATION_CREDENTIALS, or pass StoreConfig(anonymous=True) for a public bucket"
        ) from exc


def _azure_chain() -> Callable[[], Any]:
    from obstore.auth.azure import AzureCredentialProvider

    return AzureCredentialProvider()
