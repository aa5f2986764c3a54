"""Where credentials come from, against a server that checks them."""

from dataclasses import replace

import pytest

from penstock import AccessKey, BearerToken, SasToken, StoreConfig, open_store
from penstock.errors import AccessDenied, ConfigError, CredentialsExpired

AWS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_PROFILE",
    "AWS_ENDPOINT_URL",
)


@pytest.fixture(autouse=True)
def no_credentials_around(monkeypatch, tmp_path):
    for name in AWS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def _works(url, config=None):
    store = open_store(url, config)
    store.put("key", b"1")
    return store.get("key") == b"1"


def test_the_environment_is_enough(object_server, store_url, monkeypatch):
    for name, value in object_server.env.items():
        monkeypatch.setenv(name, value)
    assert _works(store_url)


def test_a_profile_file_is_read_through_boto3(object_server, store_url, monkeypatch, tmp_path):
    key = object_server.config.credentials
    (tmp_path / "credentials").write_text(
        f"[mine]\naws_access_key_id = {key.id}\naws_secret_access_key = {key.secret}\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    assert _works(store_url, StoreConfig(endpoint=object_server.endpoint, profile="mine"))
    monkeypatch.setenv("AWS_PROFILE", "mine")
    monkeypatch.setenv("AWS_ENDPOINT_URL", object_server.endpoint)
    assert _works(store_url)


def test_a_process_of_the_users_is_asked_as_boto3_would(
    object_server, store_url, monkeypatch, tmp_path
):
    key = object_server.config.credentials
    script = tmp_path / "vend"
    script.write_text(
        f'#!/bin/sh\necho \'{{"Version": 1, "AccessKeyId": "{key.id}", "SecretAccessKey": "{key.secret}"}}\'\n'
    )
    script.chmod(0o700)
    (tmp_path / "config").write_text(f"[profile vended]\ncredential_process = {script}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    assert _works(store_url, StoreConfig(endpoint=object_server.endpoint, profile="vended"))


def test_a_function_is_asked_for_fresh_credentials(object_server, store_url):
    asked = []

    def vend():
        asked.append(1)
        return object_server.config.credentials

    assert _works(store_url, replace(object_server.config, credentials=vend))
    assert asked


def test_a_function_that_fails_is_named(object_server, store_url):
    def vend():
        raise RuntimeError("the vault is sealed")

    store = open_store(store_url, replace(object_server.config, credentials=vend))
    with pytest.raises(CredentialsExpired, match=r"the vault is sealed.*log in again") as caught:
        store.get("key")
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_anonymous_requests_are_not_signed(object_server, store_url):
    config = StoreConfig(endpoint=object_server.endpoint, anonymous=True)
    with pytest.raises(
        AccessDenied, match=r"anonymous get is not allowed.*leave out anonymous=True"
    ):
        open_store(store_url, config).get("key")


def test_half_a_key_pair_is_refused(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    with pytest.raises(ConfigError, match="AWS_SECRET_ACCESS_KEY is not; set both or neither"):
        open_store("s3://bucket").get("key")


@pytest.mark.parametrize(
    ("url", "credentials", "message"),
    [
        ("s3://bucket", BearerToken("t"), r"s3:// takes credentials=AccessKey\(id, secret\)"),
        ("gs://bucket", AccessKey("i", "s"), r"gs:// takes credentials=BearerToken\(token\)"),
        (
            "abfs://c@account.dfs.core.windows.net",
            AccessKey("i", "s"),
            "AccountKey, SasToken or BearerToken",
        ),
    ],
)
def test_credentials_of_another_cloud_are_refused(url, credentials, message):
    with pytest.raises(ConfigError, match=message):
        open_store(url, StoreConfig(credentials=credentials)).get("key")


def test_azure_needs_an_account(monkeypatch):
    with pytest.raises(
        ConfigError, match="no Azure storage account; write abfs://container@account"
    ):
        open_store("az://container", StoreConfig(credentials=BearerToken("t"))).get("key")


def test_a_signature_in_a_query_is_in_no_message():
    config = StoreConfig(
        endpoint="http://127.0.0.1:9/acc",
        credentials=SasToken("acc", "sv=2024&sig=s3cr3t"),
    )
    config = replace(config, retry=replace(config.retry, max_attempts=1))
    with pytest.raises(Exception, match="cannot connect") as caught:
        open_store("az://container", config).get("key")
    seen = caught.value
    while seen is not None:
        assert "s3cr3t" not in str(seen)
        seen = seen.__cause__ or seen.__context__


def test_a_store_of_another_environment_is_another_client(object_server, store_url, monkeypatch):
    for name, value in object_server.env.items():
        monkeypatch.setenv(name, value)
    assert _works(store_url)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(AccessDenied):
        open_store(store_url).get("key")
