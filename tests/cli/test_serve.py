"""`penstock serve`, as a person runs it: real processes, real signals."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock._version import __version__

PENSTOCK = [sys.executable, "-m", "penstock.cli"]
LAST_LINE = "Ctrl-C stops the server."


@contextlib.contextmanager
def serving(*options):
    """The process, in a session of its own as in a terminal of its own, and what it printed until ready."""
    process = subprocess.Popen(
        [*PENSTOCK, "serve", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        printed = []
        try:
            for line in process.stdout:
                printed.append(line)
                if LAST_LINE in line:
                    break
            else:
                pytest.fail(f"ended with {process.wait()}: {process.stderr.read()}")
            yield process, "".join(printed)
        finally:
            process.kill()


def processes_about(folder):
    """The servers and watchdogs that have the folder on their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        # A process may end while we look.
        with contextlib.suppress(OSError):
            if str(folder).encode() in path.read_bytes():
                found.append(path)
    return found


def exports_of(printed):
    return [line for line in printed.splitlines() if line.startswith("export ")]


def run_pasted(exports, python):
    clean = {"PATH": os.environ["PATH"]}
    script = "\n".join([*exports, f'"{sys.executable}" -c "$PROGRAM"'])
    return subprocess.run(
        ["sh", "-ec", script],
        env=clean | {"PROGRAM": python},
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_kill_stop_the_server_cleanly(number, tmp_path):
    with serving("--dir", str(tmp_path)) as (process, _):
        # Ctrl-C goes to everything in the terminal's foreground.
        os.killpg(process.pid, number)
        out, err = process.communicate(timeout=30)
        assert process.returncode == 0
    assert out.split("\n")[-3:] == ["Stopping the server.", "Stopped.", ""]
    assert err == ""
    assert (tmp_path / "data").exists()
    assert not processes_about(tmp_path)


def test_ctrl_c_while_starting_leaves_nothing_behind(tmp_path):
    process = subprocess.Popen(
        [*PENSTOCK, "serve", "--dir", str(tmp_path)], start_new_session=True, stderr=subprocess.PIPE
    )
    while not (tmp_path / "weed.log").exists():
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err == b""
    assert not processes_about(tmp_path)


def test_the_printed_exports_lead_boto3_to_the_server_when_pasted():
    with serving("--bucket", "one", "--bucket", "two") as (_, printed):
        done = run_pasted(
            exports_of(printed),
            "import boto3; c = boto3.client('s3'); c.put_object(Bucket='two', Key='k', Body=b'data');"
            "print([b['Name'] for b in c.list_buckets()['Buckets']])",
        )
    assert (done.stdout, done.stderr) == ("['one', 'two']\n", "")


@pytest.mark.parametrize(
    "options", [(), ("--gcs",), ("--latency-ms", "1", "--bandwidth-mibs", "100")]
)
def test_the_printed_example_works_when_pasted(options):
    with serving(*options) as (_, printed):
        _, _, after = printed.partition("in Python:\n")
        example = "\n".join(after.splitlines()[:2])
        done = run_pasted(exports_of(printed), example)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_the_second_run_on_a_folder_has_the_same_credentials(tmp_path):
    exports = []
    for _ in range(2):
        with serving("--dir", str(tmp_path)) as (process, printed):
            exports.append([line for line in exports_of(printed) if "KEY" in line])
            process.terminate()
            process.communicate(timeout=30)
    assert exports[0] == exports[1]


def test_latency_is_felt(tmp_path):
    with serving("--latency-ms", "300") as (_, printed):
        done = run_pasted(
            exports_of(printed),
            "import boto3, time; c = boto3.client('s3'); t = time.monotonic(); c.list_buckets();"
            "print(time.monotonic() - t)",
        )
    assert 0.3 <= float(done.stdout) < 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--bucket", "ab"], "penstock: bucket 'ab': a name has 3 to 63 characters"),
        (["--port", "9000", "--latency-ms", "5"], "penstock: --port: not together with"),
    ],
)
def test_a_mistake_is_one_line_on_standard_error(options, message):
    done = subprocess.run(
        [*PENSTOCK, "serve", *options], capture_output=True, check=False, text=True, timeout=60
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1


def test_the_version_is_shown():
    done = subprocess.run(
        [*PENSTOCK, "--version"], capture_output=True, check=False, text=True, timeout=60
    )
    assert done.stdout == f"penstock {__version__}\n"
