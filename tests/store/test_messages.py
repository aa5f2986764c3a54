"""What a person reads when something is wrong: object, fact, remedy. The texts are part of the interface."""

import os
import subprocess
import sys

import pytest

from penstock.testing import Fault, FaultProxy

READ = "import penstock, sys; penstock.open_store(sys.argv[1]).get('key')"
QUICK = (
    "import penstock, sys; penstock.open_store(sys.argv[1], penstock.StoreConfig("
    "retry=penstock.RetryConfig(max_attempts=2))).get('key')"
)


def run(script, url, environment):
    """The last line a person sees, and the whole of it."""
    done = subprocess.run(
        [sys.executable, "-c", script, url],
        env={**os.environ, "AWS_EC2_METADATA_DISABLED": "true", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    return done.stderr.strip().splitlines()[-1], done.stderr


def test_a_missing_key(object_server):
    line, _ = run(READ, object_server.url("train"), object_server.env)
    assert line == (
        "penstock.errors.NotFound: s3://train/key: no such object; check the key, or list what is there "
        "with penstock ls"
    )


def test_a_missing_bucket(object_server):
    line, _ = run(READ, "s3://no-such-bucket", object_server.env)
    assert line == (
        f"penstock.errors.BucketNotFound: s3://no-such-bucket: no such bucket at {object_server.endpoint}; "
        "create it, or check the name, StoreConfig.endpoint and region"
    )


def test_a_wrong_secret(object_server):
    environment = {**object_server.env, "AWS_SECRET_ACCESS_KEY": "wr0ng-s3cret"}
    line, everything = run(READ, object_server.url("train"), environment)
    assert line == (
        "penstock.errors.AccessDenied: s3://train/key: the store does not accept these credentials "
        "(403 SignatureDoesNotMatch); check the access key and its secret, and the clock of this machine"
    )
    assert "wr0ng-s3cret" not in everything


def test_an_expired_token(object_server):
    environment = {**object_server.env, "AWS_SESSION_TOKEN": "0ld-t0ken"}
    expired = Fault.status(
        400, error_code="ExpiredToken", message="The provided token has expired."
    )
    with FaultProxy(object_server.endpoint, faults=[expired]) as proxy:
        environment["AWS_ENDPOINT_URL"] = proxy.endpoint
        line, everything = run(READ, object_server.url("train"), environment)
    assert line == (
        "penstock.errors.CredentialsExpired: s3://train/key: the credentials have expired (400 ExpiredToken); "
        "renew them (aws sso login, a fresh session token) or give StoreConfig(credentials=…) a function that "
        "returns fresh ones"
    )
    assert "0ld-t0ken" not in everything


def test_an_unreachable_endpoint(object_server):
    environment = {**object_server.env, "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    line, _ = run(QUICK, object_server.url("train"), environment)
    assert line == (
        "penstock.errors.StoreUnavailable: s3://train/key: cannot connect to http://127.0.0.1:9 "
        "(connection refused), after 2 attempts; check StoreConfig.endpoint (or AWS_ENDPOINT_URL) and that the "
        "store is running"
    )


def test_a_bad_url(object_server):
    line, _ = run(READ, "s5://bucket", object_server.env)
    assert line == (
        "penstock.errors.InvalidUrl: 's5://bucket': no store speaks 's5'; a good URL looks like s3://bucket/key, "
        "gs://bucket/key, az://container/key, abfs://container@account.dfs.core.windows.net/key, "
        "file:///folder/key, a plain path, memory://name/key or https://host/path"
    )


def test_no_credentials_at_all(object_server, tmp_path):
    environment = {"AWS_ENDPOINT_URL": object_server.endpoint, "HOME": str(tmp_path)}
    line, _ = run(READ, object_server.url("train"), environment)
    assert line == (
        "penstock.errors.ConfigError: no AWS credentials found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
        "run `aws sso login`, pass StoreConfig(profile=…), or StoreConfig(anonymous=True) for a public bucket"
    )


def test_a_profile_that_is_not_there(object_server, tmp_path):
    environment = {
        "AWS_ENDPOINT_URL": object_server.endpoint,
        "HOME": str(tmp_path),
        "AWS_PROFILE": "nobody",
    }
    line, _ = run(READ, object_server.url("train"), environment)
    assert line.startswith(
        "penstock.errors.ConfigError: The config profile (nobody) could not be found"
    )
    assert "aws configure list-profiles" in line


@pytest.mark.parametrize("method", ["put", "delete"])
def test_a_write_with_read_only_credentials(object_server, store_url, method):
    from penstock import open_store
    from penstock.errors import AccessDenied

    store = open_store(store_url, object_server.read_only_config)
    call = {"put": lambda: store.put("key", b""), "delete": lambda: store.delete("key")}[method]
    with pytest.raises(
        AccessDenied, match=rf"s3://train/.*may not {method} here.*ask for the permission"
    ):
        call()
