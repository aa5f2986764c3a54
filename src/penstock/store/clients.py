"""Builds the engine's client for a location and a config; `engine.py` keeps it, per process."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from penstock.config import RetryConfig, StoreConfig, check_endpoint
from penstock.errors import ConfigError
from penstock.store import engine
from penstock.store.authorise import gcs_authorise, s3_authorise
from penstock.store.credentials import (
    EngineOptions,
    Provider,
    azure_options,
    gcs_options,
    s3_options,
)
from penstock.store.wire import Wire
from penstock.url import Location

__all__ = ["Client", "endpoint_of", "open_client", "open_wire"]

Client = Any
"""One of obstore's store classes."""


def open_client(location: Location, config: StoreConfig) -> tuple[Client, Any]:
    """This process's client for the bucket, and its credential provider where it has one.

    Shared by all stores with the same bucket, config and environment.
    """
    environ = {name: value for name, value in os.environ.items() if name.startswith(_VARIABLES)}
    bucket = replace(location, key="")
    recipe = (bucket, config, frozenset(environ.items()))
    return engine.client(recipe, lambda: _BUILDERS[location.scheme](bucket, config, environ))


def open_wire(location: Location, config: StoreConfig) -> Wire | None:
    """This process's direct connections to the bucket; None where only the engine can speak to it.

    That is every store but S3 and GCS, and those two where the engine alone knows the credentials.
    """
    if location.scheme not in ("s3", "gs"):
        return None
    environ = {name: value for name, value in os.environ.items() if name.startswith(_VARIABLES)}
    bucket = replace(location, key="")
    recipe = ("wire", bucket, config, frozenset(environ.items()))
    return engine.client(recipe, lambda: (_build_wire(bucket, config, environ),))[0]


def _build_wire(location: Location, config: StoreConfig, environ: Mapping[str, str]) -> Wire | None:
    s3 = location.scheme == "s3"
    options = s3_options(config, environ) if s3 else gcs_options(config, environ)
    if not options:
        return None
    endpoint = endpoint_of(location, config, environ)
    region = _region(config, environ, options.get("credential_provider"))
    cloud = f"https://s3.{region}.amazonaws.com" if s3 else "https://storage.googleapis.com"
    base = endpoint or cloud
    path_style = (
        config.path_style if config.path_style is not None else (endpoint is not None or not s3)
    )
    base = (
        f"{base}/{location.bucket}"
        if path_style or "." in location.bucket
        else _with_bucket(base, location.bucket)
    )
    authorise = s3_authorise(options, region) if s3 else gcs_authorise(options)
    return Wire(
        base,
        bucket_url=location.root,
        config=config,
        authorise=authorise,
        whole_read_headers={"x-amz-checksum-mode": "ENABLED"} if s3 else {},
    )


_VARIABLES = ("AWS_", "AZURE_", "GOOGLE_", "STORAGE_EMULATOR_HOST")


def endpoint_of(
    location: Location, config: StoreConfig, environ: Mapping[str, str] = os.environ
) -> str | None:
    """The endpoint requests go to, or None for the cloud's own."""
    if config.endpoint is not None:
        return config.endpoint.rstrip("/")
    for name in _ENDPOINT_VARIABLES.get(location.scheme, ()):
        if value := environ.get(name):
            if name == "STORAGE_EMULATOR_HOST" and "://" not in value:
                value = f"http://{value}"
            check_endpoint(value, of=name)
            return value.rstrip("/")
    return None


_ENDPOINT_VARIABLES = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "gs": ("STORAGE_EMULATOR_HOST",),
    "az": ("AZURE_STORAGE_ENDPOINT",),
}


def _s3(location: Location, config: StoreConfig, environ: Mapping[str, str]) -> tuple[Client, Any]:
    options = s3_options(config, environ)
    provider = options.get("credential_provider")
    endpoint = endpoint_of(location, config, environ)
    region = _region(config, environ, provider)
    path_style = config.path_style if config.path_style is not None else endpoint is not None
    if endpoint is not None:
        options["endpoint"] = endpoint if path_style else _with_bucket(endpoint, location.bucket)
    if config.requester_pays:
        options["request_payer"] = True
    store = engine.obstore().store.S3Store(
        location.bucket,
        region=region,
        virtual_hosted_style_request=not path_style,
        client_options=_client_options(config, endpoint),
        retry_config=_retry_options(config.retry),
        **options,
    )
    return store, provider


def _gcs(location: Location, config: StoreConfig, environ: Mapping[str, str]) -> tuple[Client, Any]:
    options = gcs_options(config, environ)
    endpoint = endpoint_of(location, config, environ)
    if endpoint is not None:
        options["base_url"] = endpoint
    store = engine.obstore().store.GCSStore(
        location.bucket,
        client_options=_client_options(config, endpoint),
        retry_config=_retry_options(config.retry),
        **options,
    )
    return store, options.get("credential_provider")


def _azure(
    location: Location, config: StoreConfig, environ: Mapping[str, str]
) -> tuple[Client, Any]:
    options = azure_options(config, environ, location.account)
    endpoint = endpoint_of(location, config, environ)
    if endpoint is not None:
        options["endpoint"] = endpoint
    store = engine.obstore().store.AzureStore(
        location.bucket,
        client_options=_client_options(config, endpoint),
        retry_config=_retry_options(config.retry),
        **options,
    )
    return store, options.get("credential_provider")


def _http(location: Location, config: StoreConfig, _: Mapping[str, str]) -> tuple[Client, Any]:
    store = engine.obstore().store.HTTPStore(
        str(location),
        client_options=_client_options(config, location.bucket),
        retry_config=_retry_options(config.retry),
    )
    return store, None


def _file(_: Location, __: StoreConfig, ___: Mapping[str, str]) -> tuple[Client, Any]:
    return engine.obstore().store.LocalStore(), None


_BUILDERS: dict[str, Callable[[Location, StoreConfig, Mapping[str, str]], tuple[Client, Any]]] = {
    "s3": _s3,
    "gs": _gcs,
    "az": _azure,
    "http": _http,
    "https": _http,
    "file": _file,
}


def _region(config: StoreConfig, environ: Mapping[str, str], provider: Provider | None) -> str:
    named = config.region or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    if named is not None:
        return named
    of_profile: Mapping[str, str] = getattr(getattr(provider, "source", None), "config", {})
    return of_profile.get("region", "us-east-1")


def _with_bucket(endpoint: str, bucket: str) -> str:
    scheme, _, host = endpoint.partition("://")
    return f"{scheme}://{bucket}.{host}"


def _client_options(config: StoreConfig, endpoint: str | None) -> EngineOptions:
    options: EngineOptions = {
        "user_agent": config.user_agent,
        "connect_timeout": timedelta(seconds=config.connect_timeout_s),
        "read_timeout": timedelta(seconds=config.read_timeout_s),
        "timeout": timedelta(seconds=config.request_timeout_s),
        "allow_http": endpoint is not None and endpoint.startswith("http://"),
    }
    if not config.verify_tls:
        options["allow_invalid_certificates"] = True
    if config.ca_file is not None:
        try:
            options["root_certificate"] = Path(config.ca_file).read_bytes()
        except OSError as exc:
            raise ConfigError(
                f"ca_file {config.ca_file}: {exc.strerror}; give a readable PEM file"
            ) from exc
    if config.headers:
        options["default_headers"] = dict(config.headers)
    return options


def _retry_options(retry: RetryConfig) -> EngineOptions:
    return {
        "max_retries": retry.max_attempts - 1,
        "retry_timeout": timedelta(seconds=retry.deadline_s),
        "backoff": {
            "init_backoff": timedelta(seconds=retry.backoff_initial_s),
            "max_backoff": timedelta(seconds=retry.backoff_max_s),
            "base": 2,
        },
    }
