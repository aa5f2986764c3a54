"""Settings are refused where they are built, and never show a secret."""

import pickle

import pytest

from penstock import AccessKey, AccountKey, BearerToken, RetryConfig, SasToken, StoreConfig
from penstock.errors import ConfigError

SECRETS = [
    AccessKey("id", "s3cr3t", "s3cr3t-token"),
    BearerToken("s3cr3t"),
    AccountKey("account", "s3cr3t"),
    SasToken("account", "sig=s3cr3t"),
]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: StoreConfig(endpoint="127.0.0.1:8333"),
            "endpoint must look like http://127.0.0.1:8333",
        ),
        (lambda: StoreConfig(endpoint="ftp://host"), "must look like"),
        (
            lambda: StoreConfig(endpoint="http://user:s3cr3t@host"),
            "must not contain a user or password",
        ),
        (lambda: StoreConfig(endpoint="http://host?token=s3cr3t"), "no query"),
        (
            lambda: StoreConfig(read_timeout_s=0),
            "read_timeout_s must be a positive number of seconds, got 0",
        ),
        (lambda: StoreConfig(connect_timeout_s=float("nan")), "connect_timeout_s"),
        (lambda: RetryConfig(max_attempts=0), "max_attempts must be from 1 to 1000, got 0"),
        (lambda: RetryConfig(deadline_s=-1), "deadline_s"),
        (
            lambda: StoreConfig(anonymous=True, credentials=BearerToken("s3cr3t")),
            "exclude each other",
        ),
        (lambda: StoreConfig(profile="p", credentials=BearerToken("s3cr3t")), "exclude each other"),
    ],
)
def test_a_bad_value_says_what_would_do(build, message):
    with pytest.raises(ConfigError, match=message) as caught:
        build()
    assert isinstance(caught.value, ValueError)
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize("credentials", SECRETS, ids=lambda c: type(c).__name__)
def test_a_secret_is_not_in_the_repr(credentials):
    config = StoreConfig(credentials=credentials, headers={"Authorization": "s3cr3t"})
    assert "s3cr3t" not in repr(config) + str(config) + repr(credentials)


def test_a_config_is_a_value():
    config = StoreConfig(credentials=SECRETS[0], headers={"x": "y"})
    assert pickle.loads(pickle.dumps(config)) == config
    assert hash(config) == hash(StoreConfig(credentials=SECRETS[0], headers={"x": "y"}))
    assert config != StoreConfig(credentials=SECRETS[0], headers={"x": "z"})
    with pytest.raises(AttributeError):
        config.endpoint = "http://elsewhere"
