"""`copy_objects` against a real server: what arrives, what is left alone, what fails alone."""

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

import penstock
from penstock import TransferConfig
from penstock.errors import InvalidUrl, NotFound, Unsupported
from penstock.testing import Fault
from penstock.transfer import Compare, CopyProgress, Upload, copy_objects

MIB = 1 << 20


def make_tree(root, files):
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def read_tree(root):
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file()
    }


def bodies(proxy):
    """Requests that carry an object's bytes, either way."""
    return [
        (r.method, r.key) for r in proxy.requests if r.key and r.method in ("GET", "PUT", "POST")
    ]


@pytest.fixture
def config(object_server, fault_proxy):
    """Through the proxy, so that requests can be counted."""
    return replace(object_server.config, endpoint=fault_proxy.endpoint)


@pytest.fixture
def tree(tmp_path):
    files = {f"small/{i:03d}.bin": os.urandom(1 + 37 * i) for i in range(60)}
    files |= {
        "large.bin": os.urandom(40 * MIB),
        ".hidden/.file": b"hidden",
        "empty": b"",
        "with space/naïve 日本 #1+%41?&=.txt": b"odd",
    }
    return make_tree(tmp_path / "tree", files)


def test_a_tree_goes_up_and_comes_down_the_same(tree, tmp_path, store_url, object_server):
    config = object_server.config
    up = copy_objects(tree, store_url, recursive=True, dst_config=config)
    down = copy_objects(store_url, tmp_path / "back", recursive=True, src_config=config)
    assert read_tree(tmp_path / "back") == read_tree(tree)
    assert len(up.copied) == len(down.copied) == 64
    assert up.copied_bytes == sum(len(data) for data in read_tree(tree).values())
    assert (up.identical, up.failures, up.not_tried, up.warnings) == (0, [], 0, [])


def test_nothing_travels_when_all_is_identical(tree, tmp_path, store_url, config, fault_proxy):
    back = tmp_path / "back"
    copy_objects(tree, store_url, recursive=True, dst_config=config)
    copy_objects(store_url, back, recursive=True, src_config=config)
    fault_proxy.clear_log()
    up = copy_objects(tree, store_url, recursive=True, dst_config=config)
    down = copy_objects(store_url, back, recursive=True, src_config=config)
    assert (up.identical, down.identical, up.copied, down.copied) == (64, 64, [], [])
    assert bodies(fault_proxy) == []
    # A listing tells of small objects what they contain; the large one is asked, once each way.
    assert fault_proxy.count("HEAD") == 2


def test_a_file_changed_in_place_is_copied_again_and_nothing_else(
    tree, tmp_path, store_url, config, fault_proxy
):
    copy_objects(tree, store_url, recursive=True, dst_config=config)
    for name in ("small/050.bin", "large.bin"):
        path = tree / name
        before = path.stat()
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    by_size = copy_objects(tree, store_url, recursive=True, dst_config=config, compare=Compare.SIZE)
    assert by_size.copied == []
    report = copy_objects(tree, store_url, recursive=True, dst_config=config)
    assert sorted(Path(c.source).name for c in report.copied) == ["050.bin", "large.bin"]
    copy_objects(store_url, tmp_path / "back", recursive=True, src_config=config)
    assert read_tree(tmp_path / "back") == read_tree(tree)


def test_force_copies_what_is_identical(tmp_path, store_url, config):
    make_tree(tmp_path / "a", {"x": b"1", "y": b"2"})
    for _ in range(2):
        report = copy_objects(
            tmp_path / "a", store_url, recursive=True, dst_config=config, compare=Compare.NOTHING
        )
        assert len(report.copied) == 2


def test_content_is_compared_where_the_etag_is_no_digest(tmp_path, store_url, config, fault_proxy):
    """An object of several parts, cut elsewhere than we would: its checksum decides."""
    data = os.urandom(12 * MIB)
    (tmp_path / "f").write_bytes(data)
    small_parts = replace(config, transfer=TransferConfig(part_bytes=5 * MIB))
    store = penstock.open_store(store_url, small_parts)
    with_parts = Upload(store, "f")
    with_parts.write(data)
    with_parts.close()
    fault_proxy.clear_log()
    assert copy_objects(tmp_path / "f", f"{store_url}/f", dst_config=config).identical == 1
    assert bodies(fault_proxy) == []


@pytest.mark.parametrize("size", [100, 40 * MIB])
def test_from_store_to_store_the_bytes_pass_through_or_the_store_copies(
    size, store_url, bucket_url, config, fault_proxy
):
    store = penstock.open_store(store_url, config)
    data = os.urandom(size)
    upload = Upload(store, "deep/a")
    upload.write(data)
    upload.close()
    fault_proxy.clear_log()
    copy_objects(
        f"{store_url}/deep",
        f"{store_url}/twin",
        recursive=True,
        src_config=config,
        dst_config=config,
    )
    assert fault_proxy.count("GET", "?*") == 0
    copy_objects(
        f"{store_url}/deep", bucket_url, recursive=True, src_config=config, dst_config=config
    )
    assert bytes(penstock.open_store(bucket_url, config).get("a")) == data
    assert bytes(store.get("twin/a")) == data
    fault_proxy.clear_log()
    again = copy_objects(
        f"{store_url}/deep", bucket_url, recursive=True, src_config=config, dst_config=config
    )
    assert again.identical == 1
    assert bodies(fault_proxy) == []


def test_one_failing_object_does_not_stop_the_others(tree, store_url, config, fault_proxy):
    fault_proxy.add(Fault.status(403, key="*small/007.bin", method="PUT"))
    report = copy_objects(tree, store_url, recursive=True, dst_config=config)
    assert len(report.copied) == 63
    [failure] = report.failures
    assert failure.url == str(tree / "small/007.bin")
    assert "small/007.bin" in failure.reason
    assert "denied" in failure.reason.lower()
    fault_proxy.clear_faults()
    assert len(copy_objects(tree, store_url, recursive=True, dst_config=config).copied) == 1


def test_a_failed_download_leaves_neither_file_nor_staged_file(
    tmp_path, store_url, config, fault_proxy
):
    store = penstock.open_store(store_url, config)
    upload = Upload(store, "large")
    upload.write(os.urandom(40 * MIB))
    upload.close()
    fault_proxy.add(Fault.status(403, key="*large", method="GET", skip=1))
    report = copy_objects(f"{store_url}/large", tmp_path, src_config=config)
    assert len(report.failures) == 1
    assert list(tmp_path.iterdir()) == []


def test_what_arrives_damaged_is_not_kept(tmp_path, store_url, config, fault_proxy):
    store = penstock.open_store(store_url, config)
    upload = Upload(store, "large")
    upload.write(os.urandom(40 * MIB))
    upload.close()
    fault_proxy.add(Fault.flip(key="*large", method="GET", times=1))
    report = copy_objects(f"{store_url}/large", tmp_path, src_config=config)
    assert "CRC32C" in report.failures[0].reason
    assert list(tmp_path.iterdir()) == []


def test_a_reason_for_all_objects_ends_the_copy(tree, object_server):
    report = copy_objects(
        tree,
        "s3://no-such-bucket/x",
        recursive=True,
        dst_config=object_server.config,
        compare=Compare.NOTHING,
    )
    assert report.copied == []
    assert report.not_tried > 0
    assert len(report.failures) + report.not_tried == 64


def test_keys_that_a_disk_cannot_hold_fail_alone(tmp_path):
    store = penstock.open_store("memory://disk")
    for key in ("a", "a/b", f"long/{'x' * 256}", "fine"):
        store.put(key, b"data")
    (tmp_path / "out" / "fine").mkdir(parents=True)
    report = copy_objects("memory://disk", tmp_path / "out", recursive=True)
    reasons = {failure.url.rpartition("/")[2][:8]: failure.reason for failure in report.failures}
    assert set(reasons) == {"a", "fine", "xxxxxxxx"}
    assert "a disk cannot hold both" in reasons["a"]
    assert "there is a folder of that name" in reasons["fine"]
    assert "too long" in reasons["xxxxxxxx"]
    assert read_tree(tmp_path / "out") == {"a/b": b"data"}


def test_nothing_is_written_through_a_link_out_of_the_destination(tmp_path):
    penstock.open_store("memory://links").put("way/out/f", b"data")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out/way").symlink_to(tmp_path / "elsewhere")
    report = copy_objects("memory://links", tmp_path / "out", recursive=True)
    assert "outside of" in report.failures[0].reason
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_link_in_place_of_a_file_is_replaced_not_followed(tmp_path):
    penstock.open_store("memory://link").put("f", b"new")
    (tmp_path / "precious").write_bytes(b"old")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/f").symlink_to(tmp_path / "precious")
    copy_objects("memory://link", tmp_path / "out", recursive=True)
    assert (tmp_path / "precious").read_bytes() == b"old"
    assert (tmp_path / "out/f").read_bytes() == b"new"


def test_links_to_files_are_followed_and_others_are_told(tmp_path):
    root = make_tree(tmp_path / "src", {"real": b"data"})
    (root / "to-file").symlink_to("real")
    (root / "to-nothing").symlink_to("gone")
    (root / "to-folder").symlink_to(root)
    os.mkfifo(root / "pipe")
    report = copy_objects(root, "memory://followed", recursive=True)
    assert sorted(Path(c.source).name for c in report.copied) == ["real", "to-file"]
    assert [Path(w.partition(":")[0]).name for w in report.warnings] == [
        "pipe",
        "to-folder",
        "to-nothing",
    ]


def test_a_name_that_is_no_unicode_fails_alone(tmp_path):
    root = make_tree(tmp_path / "src", {"good": b"data"})
    (root / os.fsdecode(b"bad\xff")).write_bytes(b"data")
    report = copy_objects(root, "memory://unicode", recursive=True)
    assert len(report.copied) == len(report.failures) == 1
    assert "not valid unicode" in report.failures[0].reason


def test_the_placeholder_of_a_folder_is_passed_over(tmp_path, bucket_url, object_server):
    boto3 = pytest.importorskip("boto3")
    key = object_server.config.credentials
    client = boto3.client(
        "s3",
        endpoint_url=object_server.endpoint,
        aws_access_key_id=key.id,
        aws_secret_access_key=key.secret,
        region_name="us-east-1",
    )
    bucket = bucket_url.removeprefix("s3://")
    for name, body in (("alone/", b""), ("full/", b""), ("full/x", b"1"), ("empty", b"")):
        client.put_object(Bucket=bucket, Key=name, Body=body)
    report = copy_objects(
        bucket_url, tmp_path / "out", recursive=True, src_config=object_server.config
    )
    assert report.failures == []
    assert read_tree(tmp_path / "out") == {"full/x": b"1", "empty": b""}


@pytest.mark.parametrize(
    ("target", "expected"),
    [("new.txt", "new.txt"), ("folder/", "folder/a.txt"), ("there", "there/a.txt")],
)
def test_one_object_goes_into_a_folder_or_becomes_the_file(target, expected, tmp_path):
    penstock.open_store("memory://one").put("deep/a.txt", b"data")
    (tmp_path / "there").mkdir()
    copy_objects("memory://one/deep/a.txt", f"{tmp_path}/{target}")
    assert read_tree(tmp_path) == {expected: b"data"}


@pytest.mark.parametrize(
    ("target", "expected"), [("k/new", "k/new"), ("k/", "k/a.txt"), ("", "a.txt")]
)
def test_one_file_goes_below_a_prefix_or_becomes_the_object(target, expected, tmp_path):
    store = penstock.open_store(f"memory://up{len(target)}")
    (tmp_path / "a.txt").write_bytes(b"data")
    for _ in range(2):
        report = copy_objects(tmp_path / "a.txt", f"memory://up{len(target)}/{target}")
    assert report.identical == 1
    assert [meta.key for meta in store.list()] == [expected]


def test_a_prefix_is_a_folder_not_the_beginning_of_a_name(tmp_path):
    store = penstock.open_store("memory://prefix")
    store.put("run1/x", b"1")
    store.put("run10/x", b"10")
    copy_objects("memory://prefix/run1", tmp_path / "out", recursive=True)
    assert read_tree(tmp_path / "out") == {"x": b"1"}


def test_what_cannot_be_meant_is_refused_before_any_copy(tmp_path):
    penstock.open_store("memory://meant").put("folder/x", b"1")
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "void").mkdir()
    with pytest.raises(InvalidUrl, match="is a folder"):
        copy_objects("memory://meant/folder", tmp_path / "out")
    with pytest.raises(InvalidUrl, match="is a folder"):
        copy_objects(tmp_path, "memory://meant/y")
    with pytest.raises(InvalidUrl, match="is a file"):
        copy_objects("memory://meant", tmp_path / "file", recursive=True)
    with pytest.raises(NotFound, match=r"memory://meant/none/.*nothing to copy"):
        copy_objects("memory://meant/none/", tmp_path / "out", recursive=True)
    with pytest.raises(NotFound, match="void: nothing to copy"):
        copy_objects(tmp_path / "void", "memory://meant", recursive=True)
    with pytest.raises(NotFound, match="no such file"):
        copy_objects(tmp_path / "gone", "memory://meant")
    with pytest.raises(InvalidUrl, match="is what is to be copied"):
        copy_objects("memory://meant/folder/x", "memory://meant/folder/")
    with pytest.raises(Unsupported, match="use cp"):
        copy_objects(tmp_path / "file", tmp_path / "copy")


def test_a_dry_run_changes_nothing_and_tells_what_a_run_would(tmp_path, store_url, config):
    root = make_tree(tmp_path / "src", {"a": b"1", "b": b"22"})
    dry = copy_objects(root, store_url, recursive=True, dst_config=config, dry_run=True)
    assert [*penstock.open_store(store_url, config).list()] == []
    run = copy_objects(root, store_url, recursive=True, dst_config=config)
    key = lambda copied: copied.source  # noqa: E731 - for the two lines below
    assert sorted(dry.copied, key=key) == sorted(run.copied, key=key)


def test_progress_ends_at_exactly_what_was_copied(tree, store_url, config, fault_proxy):
    fault_proxy.add(Fault.status(403, key="*large.bin", method="PUT", skip=1))
    progress = CopyProgress()
    copy_objects(tree, store_url, recursive=True, dst_config=config, progress=progress)
    counts = progress.counts
    small = sum(len(data) for data in read_tree(tree).values()) - 40 * MIB
    assert (counts.objects, counts.objects_copied, counts.failed) == (63, 63, 1)
    assert counts.bytes == counts.bytes_copied == small


def test_bytes_count_only_once_the_store_has_them(tmp_path, store_url, config, fault_proxy):
    """Nothing is answered for a quarter of a second; until then the bar must not move."""
    fault_proxy.set(latency_ms=250)
    (tmp_path / "f").write_bytes(os.urandom(40 * MIB))
    progress, early = CopyProgress(), []
    watch = threading.Timer(0.35, lambda: early.append(progress.counts))
    watch.start()
    copy_objects(
        tmp_path / "f",
        f"{store_url}/f",
        dst_config=config,
        progress=progress,
        compare=Compare.NOTHING,
    )
    watch.join()
    assert (early[0].bytes, early[0].bytes_copied) == (40 * MIB, 0)
    assert progress.counts.bytes_copied == 40 * MIB


HUNGRY = """
import resource, sys
from penstock import StoreConfig, TransferConfig
from penstock.transfer import copy_objects
small = StoreConfig(transfer=TransferConfig(budget_bytes=32 << 20, part_bytes=8 << 20))
copy_objects(sys.argv[1], sys.argv[2], src_config=small, dst_config=small)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
copy_objects(sys.argv[3], sys.argv[4], src_config=small, dst_config=small)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


@pytest.mark.parametrize("way", ["up", "down"])
def test_a_large_object_takes_no_more_memory_than_the_budget(
    way, tmp_path, store_url, object_server
):
    (tmp_path / "small").write_bytes(b"warm")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(144 * MIB)
    copy_objects(tmp_path, store_url, recursive=True, dst_config=object_server.config)
    here, there = (tmp_path, f"{store_url}/new") if way == "up" else (store_url, tmp_path / "new")
    arguments = [f"{here}/small", f"{there}/small", f"{here}/large", f"{there}/large"]
    done = subprocess.run(
        [sys.executable, "-c", HUNGRY, *arguments],
        env=os.environ | object_server.env,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert int(done.stdout) < 32 + 16


def test_what_a_killed_copy_left_is_removed_by_the_next_and_what_another_writes_is_not(
    tmp_path, store_url, config, object_server, fault_proxy
):
    store = penstock.open_store(store_url, config)
    upload = Upload(store, "large")
    upload.write(os.urandom(40 * MIB))
    upload.close()
    fault_proxy.add(Fault.stall(key="*large", method="GET", skip=1))
    out = tmp_path / "out"
    code = "import sys; from penstock.transfer import copy_objects; copy_objects(sys.argv[1], sys.argv[2])"
    victim = subprocess.Popen(
        [sys.executable, "-c", code, f"{store_url}/large", f"{out}/"],
        env=os.environ | object_server.env | {"AWS_ENDPOINT_URL": fault_proxy.endpoint},
    )
    try:
        while not (out.exists() and list(out.iterdir())):
            assert victim.poll() is None
        [staged] = out.iterdir()
        assert staged.name.startswith("large#")
        # Not an object to whoever lists the folder, and not a file to copy.
        assert [*penstock.open_store(out).list()] == []
        store.put("other", b"1")
        direct = object_server.config
        copy_objects(f"{store_url}/other", f"{out}/", src_config=direct)
        assert staged.exists()
    finally:
        victim.send_signal(signal.SIGKILL)
        victim.wait()
    copy_objects(f"{store_url}/large", f"{out}/", src_config=direct)
    assert sorted(path.name for path in out.iterdir()) == ["large", "other"]


def test_names_as_long_as_a_disk_allows_can_be_written(tmp_path):
    name = "é" * 127
    penstock.open_store("memory://longest").put(name, b"data")
    copy_objects("memory://longest", tmp_path / "out", recursive=True)
    assert read_tree(tmp_path / "out") == {name: b"data"}
