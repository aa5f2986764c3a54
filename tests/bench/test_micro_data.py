"""`micro data` at tiny sizes: every dataset reads the right bytes, every lister the right keys, and the table says so.

Nothing here says how fast anything is.
"""

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("psutil", reason="the benchmarks need penstock[bench]")

from penstock_bench.micro import data, data_table, servers, table
from penstock_bench.micro.data_expectations import data_expectations
from penstock_bench.micro.data_objects import DataSizes, write_samples
from penstock_bench.micro.data_rows import FEW, FLAT, FOLDERS, data_rows, listing_rows, samples_of
from penstock_bench.micro.data_sections import Epochs, Listings
from penstock_bench.micro.list_server import FEW_PREFIX, FLAT_PREFIX, Bucket, keys_of
from penstock_bench.micro.measure import SampleFailed, Taken
from penstock_bench.micro.probe import Reading
from penstock_bench.micro.report import Environment, Report, Row, RowResult, SectionResult

MIB = 1 << 20
SAMPLES = 128
KEYS = 5_000


def one_per_adapter(rows: list[Row]) -> list[Any]:
    from importlib.util import find_spec

    params = []
    for row in {row.adapter: row for row in reversed(rows)}.values():
        absent = [name for name in row.requires if find_spec(name) is None]
        reason = f"{', '.join(absent)} not installed: pip install 'penstock[rivals]'"
        params.append(
            pytest.param(row, id=row.name, marks=pytest.mark.skipif(bool(absent), reason=reason))
        )
    return params


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    root = tmp_path_factory.mktemp("micro") / "objects"
    return write_samples(root, "bench", count=SAMPLES, sample_bytes=10 << 10)


@pytest.fixture(scope="module")
def epochs(samples):
    with servers.serving(samples.root, samples.bucket) as served:
        yield epochs_of(samples, served)


def epochs_of(samples, served):
    return Epochs(samples, served, served, epoch_samples=SAMPLES, count_samples=SAMPLES, counted={})


@pytest.fixture(scope="module")
def listings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("listing")
    with servers.list_server(folder, "bench", keys=KEYS, latency_ms=0) as served:
        yield Listings(served, served, proxy_latency_ms=0, keys=KEYS)


@pytest.mark.skipif(servers.find_nginx() is None, reason="dataflux reads from nginx here")
@pytest.mark.parametrize(
    "row", one_per_adapter(data_rows(workers=(2,), everyone=True, latency=False))
)
def test_a_dataset_reads_every_sample_right(row, epochs):
    requests = epochs.count(row)
    if row.package == "penstock" and not row.group.startswith("tar"):
        assert requests == {"GET": SAMPLES}


def test_a_sample_tells_of_its_workers_and_of_the_first_batch(epochs):
    row = data_rows(workers=(2,), everyone=False, latency=False)[0]
    reading = epochs.sample(row, 0)
    assert reading.facts["first_batch_s"] > 0
    assert reading.cpu_s > 0
    # A worker has read its half of the samples, and the warm-up.
    assert reading.peak_rss_over_baseline_bytes is not None
    assert reading.peak_rss_over_baseline_bytes > MIB


def test_bytes_that_differ_from_the_stored_ones_are_a_failed_sample(samples, epochs):
    first, *others = samples.objects
    lie = replace(samples, objects=[replace(first, checksum=first.checksum ^ 1), *others])
    row = data_rows(workers=(0,), everyone=False, latency=False)[0]
    with pytest.raises(SampleFailed, match="1 of 128 samples are not what is stored"):
        epochs_of(lie, epochs._served).count(row)


@pytest.mark.parametrize("row", one_per_adapter(listing_rows()))
def test_a_lister_finds_every_key_in_order(row, listings):
    assert listings.count(row)["GET"] >= (1 if row.group == FEW else KEYS // 1000)


def test_keys_that_differ_are_a_failed_sample(listings):
    wrong = Listings(listings._served, listings._served, proxy_latency_ms=0, keys=KEYS - 1)
    (row, *_) = listing_rows()
    with pytest.raises(SampleFailed, match="5000 keys, not the 4999 stored"):
        wrong.count(row)


def test_the_list_server_starts_after_a_key_and_goes_on_from_a_token():
    bucket = Bucket([key for keys in keys_of(2500).values() for key in keys])
    page = bucket.page("list-type=2&prefix=flat%2F&start-after=flat%2F00000999.jpg").decode()
    assert page.count("<Key>") == 1000
    assert "<Key>flat/00001000.jpg</Key>" in page
    token = page.partition("<NextContinuationToken>")[2].partition("<")[0]
    page = bucket.page(f"list-type=2&prefix={FLAT_PREFIX}&continuation-token={token}").decode()
    assert page.count("<Key>") == 500
    assert "<IsTruncated>false</IsTruncated>" in page
    assert bucket.page(f"list-type=2&prefix={FEW_PREFIX}").decode().count("<Key>") == 10
    assert "<KeyCount>0</KeyCount>" in bucket.page("list-type=2&prefix=none").decode()


def test_without_nginx_what_needs_gcs_is_skipped_with_the_reason(monkeypatch, capsys):
    monkeypatch.setattr(servers, "find_nginx", lambda: None)
    sizes = DataSizes({100: 64}, {100: 64}, count_samples=64, keys=10)
    plan = data.DataPlan(sizes, 1, sections=["100k"], packages=["gcs-torch-dataflux"])
    report = data.run_data(plan, lambda _: None)
    assert not report.failed
    table.show(report, data_table.DATA)
    assert "skipped: no GCS endpoint here" in capsys.readouterr().out


def test_who_waits_for_each_object_has_short_epochs_under_latency():
    rows = {row.name: row for row in data_rows(workers=(0, 2), everyone=True, latency=True)}
    waits, flies = rows["S3MapDataset, 2 workers"], rows["penstock MapDataset, 2 workers"]
    assert samples_of(waits, 3072, latency=True) == 192
    assert samples_of(rows["S3MapDataset, 0 workers"], 3072, latency=True) == 96
    assert samples_of(waits, 3072, latency=False) == 3072
    assert samples_of(flies, 3072, latency=True) == 3072


def test_the_command_prints_tables_and_writes_every_sample(tmp_path):
    path = tmp_path / "samples.json"
    options = ["--quick", "--json", str(path)]
    for name in ("10k-20ms", "listing", "penstock"):
        options += ["--only", name]
    done = subprocess.run(
        [sys.executable, "-m", "penstock_bench.micro", "data", *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    assert "× best rival" in done.stdout
    assert "Expected of this package" in done.stdout
    report = json.loads(path.read_text())
    assert report["benchmark"] == "data"
    reads, listing = report["sections"]
    assert (reads["name"], listing["name"]) == ("10k-20ms", "listing")
    assert [row["row"]["package"] for row in reads["rows"]] == ["penstock"] * 2
    for row in [*reads["rows"], *listing["rows"]]:
        assert [taken["reading"]["wall_s"] > 0 for taken in row["taken"]] == [True]


def result_of(name: str, role: Any, group: str, wall_s: float, *, requests: int = 100) -> RowResult:
    row = Row(name, name, role, "x", "how", group=group)
    reading = Reading(wall_s, 0.1, 10 * MIB, {}, 0.0, {"first_batch_s": 0.05})
    return RowResult(row, [Taken(name, 0, 0, reading)], {"GET": requests}, units=100)


def report_of(*sections: SectionResult) -> Report:
    return Report("data", {"repeats": 1}, Environment.observe([]), sections)


def test_a_row_is_compared_with_the_best_rival_of_its_group(capsys):
    rows = [
        result_of("penstock MapDataset, 2 workers", "ours", "map, 2 workers", 1.0),
        result_of("S3MapDataset, 2 workers", "rival", "map, 2 workers", 4.0),
        result_of("S3IterableDataset, 2 workers", "rival", "iterable, 2 workers", 0.5),
    ]
    report = report_of(SectionResult("100k", "reads", "sample", 100, "a server", rows))
    table.show(report, data_table.DATA)
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if "| penstock MapDataset" in line]
    cells = [cell.strip() for cell in line.strip("| ").split("|")]
    assert cells[2:] == ["100", "100–100", "4.00", "50", "1,000", "1.00", "10", "100"]
    found = [(item.wanted, item.measured, item.holds) for item in data_expectations(report)]
    assert found == [("≥ 2", "4.00", True), ("1", "1.00", True)]


def test_a_listing_is_held_against_the_plain_one():
    rows = [
        result_of(f"{role} {group}", role, group, wall_s, requests=requests)
        for group, ours_s in ((FOLDERS, 1.0), (FLAT, 0.1), (FEW, 1.1))
        for role, wall_s, requests in (("ours", ours_s, 131), ("baseline", 1.0, 100))
    ]
    section = SectionResult("listing-20ms", "keys", "listing", 1, "a server", rows)
    found = [(item.measured, item.holds) for item in data_expectations(report_of(section))]
    assert found == [
        *[("1.00", False), ("1.31", False)],
        *[("10.00", True), ("1.31", False)],
        ("0.91", False),
    ]
