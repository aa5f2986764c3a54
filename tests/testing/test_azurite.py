"""AzureServer: Azurite with an account of its own."""

from pathlib import Path

import obstore
import pytest
from obstore.store import AzureStore

from penstock.errors import ConfigError
from penstock.testing import AzureServer


def store_of(server, container):
    key = server.config.credentials
    return AzureStore(
        container,
        endpoint=server.config.endpoint,
        account_name=key.account,
        account_key=key.key,
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )


@pytest.fixture(scope="module")
def server():
    reason = AzureServer.unavailable_reason()
    if reason is not None:
        pytest.skip(reason)
    with AzureServer(["train"]) as server:
        yield server


def test_a_started_server_takes_and_gives_objects(server):
    store = store_of(server, "train")
    obstore.put(store, "a/b", b"data")
    assert bytes(obstore.get(store, "a/b").bytes()) == b"data"
    assert server.url("train", "a/b") == "az://train/a/b"


def test_a_container_can_be_made_later_and_twice(server):
    server.create_container("later")
    obstore.put(store_of(server, "later"), "key", b"data")
    server.create_container("later")
    assert bytes(obstore.get(store_of(server, "later"), "key").bytes()) == b"data"


def test_a_put_into_a_missing_container_fails(server):
    with pytest.raises(FileNotFoundError, match="ContainerNotFound"):
        obstore.put(store_of(server, "missing"), "key", b"data")


def test_two_servers_at_once_do_not_collide(server):
    with AzureServer(["train"]) as second:
        assert second.endpoint != server.endpoint
        obstore.put(store_of(second, "train"), "only-here", b"data")
        with pytest.raises(FileNotFoundError):
            obstore.head(store_of(server, "train"), "only-here")


def test_the_key_is_neither_in_the_repr_nor_on_the_command_line(server):
    key = server.config.credentials.key
    shown = [repr(server), repr(server.config)]
    if Path("/proc").is_dir():
        shown.append(Path(f"/proc/{server.pid}/cmdline").read_text())
    assert not any(key in text for text in shown)


def test_without_node_the_reason_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "install Node" in AzureServer.unavailable_reason()
    with pytest.raises(ConfigError, match="install Node"):
        AzureServer().start()
