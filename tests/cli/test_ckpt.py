"""`penstock ckpt`, as a person runs it; in this process, for each of its own would import torch."""

import json
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

import penstock
from penstock import CheckpointManager, open_store
from penstock.cli import app
from penstock.errors import PenstockError


@pytest.fixture
def run(object_server, monkeypatch):
    """Runs a command and returns (exit code, lines), or (1, the error)."""
    for name, value in object_server.env.items():
        monkeypatch.setenv(name, value)

    def _run(*arguments):
        done = CliRunner().invoke(app, ["ckpt", *arguments])
        if isinstance(done.exception, PenstockError):
            return 1, [str(done.exception)]
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.exit_code, done.output.splitlines()

    return _run


@pytest.fixture
def manager(store_url, object_server):
    """Steps 1 to 3, and an unfinished fourth."""
    with CheckpointManager(store_url, config=object_server.config) as manager:
        for step in (1, 2, 3):
            state = {"w": torch.full((2, 3), float(step)), "b": torch.zeros(4), "epoch": step}
            manager.save(step, {"model": state}, metrics={"loss": 1 / step}, block=True)
        store = open_store(store_url, object_server.config)
        store.put("step-0000000004/state-0123456789abcdef.pt", b"half")
        yield manager


def test_ls_tells_what_is_committed(run, manager, store_url):
    code, lines = run("ls", store_url)
    assert code == 0
    assert lines[0].split() == ["STEP", "STATE", "SIZE", "AGE", "METRICS"]
    assert [line.split()[:2] for line in lines[1:]] == [
        ["1", "committed"],
        ["2", "committed"],
        ["3", "committed"],
        ["4", "unfinished"],
    ]
    assert lines[2].endswith("loss=0.5")
    _, lines = run("ls", store_url, "--json")
    rows = [json.loads(line) for line in lines]
    assert (rows[0]["step"], rows[0]["state"], rows[0]["metrics"]) == (
        1,
        "committed",
        {"loss": 1.0},
    )
    assert rows[3]["size"] == 4


def test_ls_shows_a_damaged_manifest_beside_the_others(run, manager, store_url, object_server):
    open_store(store_url, object_server.config).put("step-0000000002/manifest.json", b"{")
    _, lines = run("ls", store_url)
    assert [line.split()[1] for line in lines[2:4]] == ["damaged", "committed"]


@pytest.mark.parametrize("which", ["newest", "step", "folder", "file"])
def test_show_lists_tensors(run, manager, store_url, which):
    state = manager.manifest(3).objects[0].name
    arguments = {
        "newest": [store_url],
        "step": [store_url, "--step", "3"],
        "folder": [f"{store_url}/step-3/"],
        "file": [f"{store_url}/step-0000000003/{state}"],
    }[which]
    code, lines = run("show", *arguments)
    assert code == 0
    assert lines[0] == f"{store_url}/step-0000000003/{state}"
    assert lines[-3].split() == ["model.w", "float32", "24", "B", "[2,", "3]"]
    assert lines[-1] == "2 tensors, 40 B"
    _, lines = run("show", *arguments, "--json")
    assert json.loads(lines[1]) == {
        "name": "model.b",
        "dtype": "float32",
        "shape": [4],
        "size": 16,
    }


def test_show_refuses_what_it_cannot_describe_in_a_line(run, store_url, object_server):
    open_store(store_url, object_server.config).put("x.pt", b"not a checkpoint")
    code, lines = run("show", f"{store_url}/x.pt")
    assert (code, len(lines)) == (1, 1)
    assert "x.pt" in lines[0]


def test_verify_says_which_object_is_damaged(run, manager, store_url, object_server):
    assert run("verify", store_url)[0] == 0
    name = f"step-0000000002/{manager.manifest(2).objects[0].name}"
    open_store(store_url, object_server.config).put(name, b"x")
    code, lines = run("verify", store_url)
    assert code == 1
    assert [line.split()[1] for line in lines] == ["ok", "damaged", "ok"]
    assert name in lines[1]
    assert run("verify", store_url, "--step", "1", "--step", "3")[0] == 0
    _, lines = run("verify", store_url, "--step", "2", "--json")
    assert json.loads(lines[0])["ok"] is False


def test_diff_compares_names_types_and_shapes(run, manager, store_url, object_server):
    other = {"model": {"w": torch.zeros(2, 4), "b": torch.zeros(4), "new": torch.ones(1)}}
    penstock.save(other, f"{store_url}/other.pt", config=object_server.config)
    code, lines = run("diff", f"{store_url}/step-1", f"{store_url}/other.pt")
    assert code == 1
    assert lines == [
        "+ model.new  float32 [1]",
        "~ model.w  float32 [2, 3] -> float32 [2, 4]",
    ]
    _, lines = run("diff", f"{store_url}/other.pt", f"{store_url}/step-1", "--json")
    assert json.loads(lines[0]) == {
        "change": "removed",
        "name": "model.new",
        "before": "float32 [1]",
        "after": None,
    }
    assert run("diff", f"{store_url}/step-1", store_url)[0] == 0


@pytest.mark.parametrize("extension", ["pt", "safetensors"])
def test_diff_compares_values(run, store_url, object_server, extension):
    urls = [f"{store_url}/{name}.{extension}" for name in "abc"]
    shared = torch.arange(6.0)
    for url, last in zip(urls, (0.0, 0.0, 1.0), strict=True):
        state = {"same": shared, "part": shared[:2].clone(), "other": torch.full((3,), last)}
        if extension == "pt":
            state |= {"view": shared[2:4], "turned": shared.view(2, 3).t()}
        penstock.save(state, url, config=object_server.config)
    assert run("diff", *urls[:2], "--values") == (0, ["No difference."])
    assert run("diff", *urls[1:], "--values") == (1, ["~ other  float32 [3]  values differ"])


def test_rm_deletes_all_the_steps_or_none(run, manager, store_url):
    code, lines = run("rm", store_url, "--step", "1", "--step", "9")
    assert code == 1
    assert "step-0000000009" in lines[0]
    assert run("rm", store_url, "--step", "1", "--dry-run")[0] == 0
    assert manager.steps() == [1, 2, 3]
    assert run("rm", store_url, "--step", "1", "--step", "4")[0] == 0
    assert manager.steps() == [2, 3]
    assert len(run("ls", store_url, "--json")[1]) == 2


def test_prune_keeps_what_it_is_told(run, manager, store_url):
    code, lines = run("prune", store_url, "--keep-last", "2", "--dry-run")
    assert (code, lines[-1]) == (0, "Would delete 1.")
    assert manager.steps() == [1, 2, 3]
    run("prune", store_url, "--keep-best", "loss:1:max")
    assert manager.steps() == [1, 3]
    _, lines = run("prune", store_url, "--keep-last", "1", "--json")
    assert json.loads(lines[0])["deleted"] is True
    assert manager.steps() == [3]
    assert run("prune", store_url, "--keep-best", "loss:0")[0] == 1


@pytest.mark.parametrize("command", ["ls", "show", "verify"])
def test_a_url_with_nothing_there_is_an_error(run, store_url, command):
    code, lines = run(command, store_url)
    assert (code, len(lines)) == (1, 1)
    assert store_url in lines[0]


def test_an_error_is_one_line_and_exit_1(object_server, store_url):
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli", "ckpt", "ls", store_url],
        env=object_server.env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("penstock: s3://")
    assert done.stderr.count("\n") == 1
