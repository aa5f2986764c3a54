"""`penstock ls` and `penstock index`, as a person runs them."""

import json
import os
import re
import subprocess
import sys

import pytest

from penstock import Index, open_store

PENSTOCK = [sys.executable, "-m", "penstock.cli"]


@pytest.fixture(scope="module")
def place(object_server):
    """A prefix with two folders and two objects."""
    url = object_server.url("train", "cli-ls-tests")
    store = open_store(url, object_server.config)
    for key, size in {
        "cats/1.jpg": 10,
        "cats/2.jpg": 20,
        "cars/x/y": 1,
        "car": 2048,
        "z é": 0,
    }.items():
        store.put(key, bytes(size))
    return url


@pytest.fixture
def run(object_server, tmp_path):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "COLUMNS"))}

    def _run(*arguments):
        return subprocess.run(
            [*PENSTOCK, *arguments],
            env=clean | object_server.env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return _run


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (["/"], ["cars/", "cats/", "car", "z é"]),
        (["/ca"], ["cars/", "cats/", "car"]),
        (["/cats"], ["cats/"]),
        (["/cats/"], ["1.jpg", "2.jpg"]),
        (["/ca", "--recursive"], ["car", "cars/x/y", "cats/1.jpg", "cats/2.jpg"]),
        (["/cars/", "-r"], ["x/y"]),
    ],
)
def test_folders_come_first_then_objects_by_name(run, place, arguments, lines):
    done = run("ls", place + arguments[0], *arguments[1:])
    assert (sorted(done.stdout.splitlines()), done.stderr) == (sorted(lines), "")
    if "r" not in "".join(arguments[1:]):
        assert done.stdout.splitlines() == lines


def test_long_shows_sizes_and_times(run, place):
    lines = run("ls", "-l", f"{place}/car").stdout.splitlines()
    assert re.fullmatch(r" +-  - +cars/", lines[0])
    assert re.fullmatch(r" +2\.0 KiB  20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ  car", lines[1])


def test_json_has_a_line_for_each(run, place):
    done = run("ls", "--json", f"{place}/ca")
    folders, rows = [], []
    for row in map(json.loads, done.stdout.splitlines()):
        (folders if row["type"] == "folder" else rows).append(row)
    assert [row["url"] for row in folders] == [f"{place}/cars/", f"{place}/cats/"]
    assert [(row["key"], row["size"]) for row in rows] == [("cli-ls-tests/car", 2048)]
    assert rows[0]["url"] == f"{place}/car"
    assert rows[0]["etag"]
    assert rows[0]["last_modified"].endswith("Z")


def test_a_folder_on_disk_is_listed(run, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "one").write_bytes(b"1")
    assert run("ls", ".").stdout == "sub/\n"
    assert run("ls", "sub").stdout == "one\n"
    assert run("ls", "-r", ".").stdout == "sub/one\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ls", "s3://train/no-such"], "nothing starts with this"),
        (["ls", "s3://no-such-bucket"], "no such bucket"),
        (["ls", "ftp://x"], "no store speaks 'ftp'"),
        (["index", "s3://train", "-o", "x.csv"], "named .parquet or .arrow"),
        (["index", "s3://no-such-bucket", "-o", "x.parquet"], "no such bucket"),
    ],
)
def test_a_mistake_is_one_line_on_standard_error(run, arguments, message):
    pytest.importorskip("pyarrow", reason="needs penstock[parquet]")
    done = run(*arguments)
    assert done.returncode == 1
    assert done.stdout == ""
    assert message in done.stderr
    assert done.stderr.startswith("penstock: ")
    assert done.stderr.count("\n") == 1


def test_index_writes_a_file_and_says_what_is_in_it(run, place, tmp_path):
    pytest.importorskip("pyarrow", reason="needs penstock[parquet]")
    done = run("index", f"{place}/ca", "-o", "index.parquet", "--threads", "4")
    assert done.stderr == ""
    assert re.fullmatch(
        r"4 objects, 2\.0 KiB, \d+\.\d s, 1 requests: index\.parquet\n", done.stdout
    )
    keys = list(Index.load(tmp_path / "index.parquet").keys)
    assert keys == [
        f"cli-ls-tests/{name}" for name in ("car", "cars/x/y", "cats/1.jpg", "cats/2.jpg")
    ]
