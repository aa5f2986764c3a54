"""`penstock cp`, `cat`, `rm` and `sweep`, as a person runs them: real processes, real signals, a real server."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time

import pytest

import penstock
from penstock.cli.terminal import Rate, describe, printable
from penstock.testing import Fault
from penstock.transfer import CopyCounts

PENSTOCK = [sys.executable, "-m", "penstock.cli"]
MIB = 1 << 20


@pytest.fixture
def environment(object_server):
    return os.environ | object_server.env


@pytest.fixture
def slow_environment(environment, fault_proxy):
    """Through the proxy, which the test may make slow or broken."""
    return environment | {"AWS_ENDPOINT_URL": fault_proxy.endpoint}


@pytest.fixture
def store(object_server, store_url):
    return penstock.open_store(store_url, object_server.config)


def run(environment, *arguments, code=0, stdin=None):
    done = subprocess.run(
        [*PENSTOCK, *map(str, arguments)],
        env=environment,
        capture_output=True,
        timeout=60,
        check=False,
        input=stdin,
    )
    assert done.returncode == code, done.stderr.decode()
    return done.stdout, done.stderr.decode()


def in_terminal(environment, *arguments, keys=b""):
    """Everything that was shown, without the control codes, and the exit code."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(
            sys.executable, [*PENSTOCK, *map(str, arguments)], environment | {"COLUMNS": "160"}
        )
    os.write(terminal, keys)
    shown = b""
    try:
        while piece := os.read(terminal, 65536):
            shown += piece
    except OSError:
        pass  # How Linux says that the other side of a terminal is closed.
    os.close(terminal)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode()), code


@pytest.fixture
def tree(tmp_path):
    """300 small files and a large one."""
    root = tmp_path / "tree"
    for i in range(300):
        path = root / f"class {i % 7}" / f"é{i:03d}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(100 + i))
    (root / "large.bin").write_bytes(os.urandom(40 * MIB))
    return root


def read_tree(root):
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file()
    }


def interrupt(command, until, environment):
    """Sends Ctrl-C, twice as `timeout` does, once `until` says that the copy is under way."""
    process = subprocess.Popen(
        [*PENSTOCK, *map(str, command)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 30
    while not until():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert (out, "Traceback" in err) == ("", False)
    return err


def test_an_interrupted_copy_leaves_nothing_half_done_and_the_next_finishes_it(
    tree, store, store_url, slow_environment, fault_proxy
):
    def is_under_way():
        done = {r.key for r in fault_proxy.requests if r.status == 200 and r.key}
        return len(done) > 50 and any(key.endswith("large.bin") for key in done)

    back = tree.with_name("back")
    up, down = ("cp", "-r", tree, store_url), ("cp", "-r", store_url, back)
    for command in (up, down):
        fault_proxy.clear_log()
        fault_proxy.set(latency_ms=50)
        fault_proxy.add(Fault.throttle(16.0, key="*large.bin"))
        err = interrupt(command, is_under_way, slow_environment)
        done = int(re.search(r"interrupted with ([0-9]+) of 301 objects copied", err)[1])
        assert 50 <= done < 301
        if command is up:
            assert len([*store.list()]) == done
            assert [*store.pending_uploads()] == []
        else:
            there = read_tree(back)
            assert len(there) == done
            assert there.items() <= read_tree(tree).items()
        fault_proxy.set(latency_ms=0)
        fault_proxy.clear_faults()
        out, _ = run(slow_environment, *command)
        assert f"Copied {301 - done} objects" in out.decode()
        assert f"{done} were there already" in out.decode()
    assert read_tree(back) == read_tree(tree)


def test_a_bar_in_a_terminal_shows_what_has_arrived_and_no_more(tree, store_url, slow_environment):
    shown, code = in_terminal(slow_environment, "cp", "-r", tree, store_url)
    assert code == 0
    bars = re.findall(r"([0-9]+)% +([0-9.]+) (\w+) of 40\.\d MiB +([0-9]+) of 301 objects", shown)
    assert bars[-1][0] == "100"
    assert bars[-1][3] == "301"
    objects = [int(bar[3]) for bar in bars]
    assert objects == sorted(objects)
    assert "Copied 301 objects" in shown


def test_no_bar_where_there_is_no_terminal(tmp_path, store_url, environment):
    (tmp_path / "f").write_bytes(b"data")
    out, err = run(environment, "cp", tmp_path / "f", f"{store_url}/")
    assert err == ""
    assert out.startswith(b"Copied 1 object (4 B) in ")
    assert run(environment, "cp", "-q", tmp_path / "f", f"{store_url}/") == (b"", "")


def test_failures_are_listed_and_the_exit_code_is_1(
    tree, store, store_url, slow_environment, fault_proxy
):
    fault_proxy.add(Fault.status(403, key="*é0[0-2]?.bin", method="PUT"))
    out, err = run(slow_environment, "cp", "-r", tree, store_url, code=1)
    lines = err.splitlines()
    assert lines[0] == "penstock: 30 of 301 objects failed:"
    assert len(lines) == 22
    assert all(line.startswith(f"  {tree}/class ") for line in lines[1:21])
    assert lines[21] == "  and 10 more; --json lists all"
    assert b"Copied 271 objects" in out
    out, _ = run(slow_environment, "cp", "-r", "--json", tree, store_url, code=1)
    report = json.loads(out)
    assert (report["copied"], report["identical"], len(report["failures"])) == (0, 271, 30)


def test_a_dry_run_tells_and_changes_nothing(tmp_path, store, store_url, environment):
    (tmp_path / "f").write_bytes(b"data")
    out, _ = run(environment, "cp", "--dry-run", tmp_path / "f", f"{store_url}/")
    assert out.decode().splitlines() == [
        f"{tmp_path}/f -> {store_url}/f",
        "Would copy 1 object (4 B); 0 were there already.",
    ]
    out, _ = run(environment, "cp", "--dry-run", "--json", tmp_path / "f", f"{store_url}/")
    assert json.loads(out)["objects"][0]["size"] == 4
    store.put("g", b"data")
    run(environment, "rm", "--dry-run", f"{store_url}/g")
    assert [meta.key for meta in store.list()] == ["g"]


def test_an_empty_source_is_an_error_that_names_it(tmp_path, store_url, environment):
    _, err = run(environment, "cp", "-r", f"{store_url}/none/", tmp_path, code=1)
    assert err.startswith(f"penstock: {store_url}/none/: nothing to copy")
    assert err.count("\n") == 1


def test_endpoints_can_differ_between_the_two_sides(
    tmp_path, object_server, store_url, fault_proxy
):
    (tmp_path / "f").write_bytes(b"data")
    elsewhere = os.environ | object_server.env | {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}
    here = ("--dst-endpoint", object_server.endpoint)
    run(elsewhere, "cp", tmp_path / "f", f"{store_url}/f", *here)
    there = ("--src-endpoint", fault_proxy.endpoint)
    run(elsewhere, "cp", f"{store_url}/f", f"{store_url}/g", *here, *there)
    assert fault_proxy.count("GET", "*/f") == 1


def test_cat_writes_exactly_the_bytes_or_some_of_them(tmp_path, store, store_url, environment):
    data = os.urandom(3 * MIB) + b"\r\n\x00end"
    store.put("k", data)
    assert run(environment, "cat", f"{store_url}/k")[0] == data
    assert run(environment, "cat", f"{store_url}/k", "--start", 5, "--stop", 9)[0] == data[5:9]
    assert run(environment, "cat", f"{store_url}/k", "--start", len(data) - 3)[0] == b"end"
    assert run(environment, "cat", f"{store_url}/k", "--start", 10**9)[0] == b""
    _, err = run(environment, "cat", f"{store_url}/none", code=1)
    assert "no such object" in err


def test_cat_is_quiet_when_its_reader_has_seen_enough(store, store_url, environment):
    store.put("k", bytes(4 * MIB))
    cat = subprocess.Popen(
        [*PENSTOCK, "cat", f"{store_url}/k"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with cat:
        assert cat.stdout.read(10) == bytes(10)
        cat.stdout.close()
        assert cat.stderr.read() == b""
    assert cat.returncode == 141


def test_rm_deletes_what_is_named_or_nothing(store, store_url, environment):
    for key in ("a", "b", "run1/x", "run1/y/z", "run10/x"):
        store.put(key, b"1")

    def keys():
        return [meta.key for meta in store.list()]

    _, err = run(environment, "rm", f"{store_url}/a", f"{store_url}/none", code=1)
    assert "no such object" in err
    _, err = run(environment, "rm", f"{store_url}/run1", code=1)
    assert "--recursive" in err
    _, err = run(environment, "rm", "-r", f"{store_url}/run1", code=1)
    assert "add --yes" in err
    assert len(keys()) == 5
    out, _ = run(environment, "rm", f"{store_url}/a", f"{store_url}/b")
    assert out == b"Deleted 2 objects.\n"
    run(environment, "rm", "-r", "--yes", f"{store_url}/run1")
    assert keys() == ["run10/x"]


@pytest.mark.parametrize(("answer", "left"), [(b"n\n", 1), (b"y\n", 0)])
def test_rm_asks_in_a_terminal(answer, left, store, store_url, environment):
    store.put("run/x", b"1")
    shown, code = in_terminal(environment, "rm", "-r", f"{store_url}/run", keys=answer)
    assert f"Delete 1 objects (1 B) in {store_url}/run?" in shown
    assert len([*store.list()]) == left
    assert code == left


def test_sweep_shows_orphans_and_removes_them_only_when_told(store, store_url, environment):
    upload = store.open_upload("orphan")
    upload.put_part(0, memoryview(bytes(5 * MIB)), offset=0)
    out, _ = run(environment, "sweep", store_url)
    assert out == b"No unfinished upload is older than 24h.\n"
    for options, fate in (((), "found; --delete removes them"), (("--delete",), "removed")):
        out, _ = run(environment, "sweep", store_url, "--older-than", "0s", *options)
        head, row, tail = out.decode().splitlines()
        assert head.split() == ["AGE", "STARTED", "KEY"]
        assert row.endswith("  orphan")
        assert tail == f"1 unfinished upload {fate}."
    assert [*store.pending_uploads()] == []
    _, err = run(environment, "sweep", store_url, "--older-than", "soon", code=1)
    assert "must look like 90s" in err


def test_the_rate_is_that_of_the_last_seconds_and_falls_to_zero():
    now = 0.0
    rate = Rate(lambda: now)
    for now in (1.0, 2.0, 3.0, 4.0, 5.0):
        shown = rate.now(int(now) * 100)
    assert shown == pytest.approx(100)
    for now in range(6, 12):  # noqa: B007 - the clock reads it
        shown = rate.now(500)
    assert shown == 0


@pytest.mark.parametrize(
    ("counts", "rates", "expected"),
    [
        (
            CopyCounts(2, 1, 100 * MIB, 50 * MIB),
            (10.0 * MIB, 0.2),
            "50.0 MiB of 100.0 MiB  1 of 2 objects  10.0 MiB/s  0:00:05 left",
        ),
        (
            CopyCounts(5001, 1, 100 * MIB, 50 * MIB, identical=3, failed=1),
            (10.0 * MIB, 50.0),
            "50.0 MiB of 100.0 MiB  1 of 5,001 objects  10.0 MiB/s  0:01:40 left  3 identical  1 failed",
        ),
        (
            CopyCounts(1, 0, 10, 0),
            (0.0, 0.0),
            "0 B of 10 B  0 of 1 objects  0 B/s  -:--:-- left",
        ),
    ],
)
def test_the_line_beside_the_bar(counts, rates, expected):
    assert describe(counts, *rates) == expected


def test_a_name_cannot_speak_to_the_terminal():
    assert printable("é \x1b[31m\n\udcff") == "é \\x1b[31m\\n\\udcff"
