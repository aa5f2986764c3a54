"""The micro-benchmarks at tiny sizes: every subject moves the right bytes, and the harness measures what it says.

Nothing here says how fast anything is.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("psutil", reason="the benchmarks need penstock[bench]")

from penstock_bench.micro import servers, table
from penstock_bench.micro.expectations import expectations
from penstock_bench.micro.measure import SampleFailed, Taken, interleave, sample
from penstock_bench.micro.objects import Objects, Sizes, write_objects
from penstock_bench.micro.probe import Job, Reading
from penstock_bench.micro.report import Environment, Report, Row, RowResult, SectionResult
from penstock_bench.micro.rows import read_rows, small_rows, upload_rows
from penstock_bench.micro.sections import LargeReads, SmallReads, Uploads
from penstock_bench.micro.transfer import notes_on, sample_rows

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
# The large one is two parts of 16 MiB for those who cut it so.
TINY = Sizes(
    objects=20,
    object_bytes=10 << 10,
    large_bytes=18 * MIB,
    warm_objects=4,
    warm_bytes=5 * MIB,
)


def one_per_adapter(rows: list[Row]) -> list[Any]:
    """Thread counts aside, rows of one adapter run the same code."""
    params = []
    for row in {row.adapter: row for row in reversed(rows)}.values():
        absent = [name for name in row.requires if not is_installed(name)]
        reason = f"{', '.join(absent)} not installed: pip install 'penstock[rivals]'"
        params.append(
            pytest.param(row, id=row.name, marks=pytest.mark.skipif(bool(absent), reason=reason))
        )
    return params


def is_installed(module: str) -> bool:
    from importlib.util import find_spec

    return find_spec(module) is not None


@pytest.fixture(scope="module")
def objects(tmp_path_factory) -> Objects:
    return write_objects(tmp_path_factory.mktemp("micro") / "objects", "bench", TINY)


@pytest.fixture(scope="module")
def served(objects):
    with servers.serving(objects.root, objects.bucket) as served:
        yield served


@pytest.mark.parametrize("row", one_per_adapter(small_rows(latency=False, object_bytes=10 << 10)))
def test_a_subject_reads_every_small_object_right(row, objects, served):
    section = SmallReads(objects, served, served, TINY.warm_objects)
    requests = section.count(row)
    assert requests["GET"] >= TINY.objects


@pytest.mark.parametrize("row", one_per_adapter(read_rows()))
def test_a_subject_reads_a_large_object_right(row, objects, served):
    assert LargeReads(objects, served).count(row)["GET"] >= 1


@pytest.mark.parametrize("row", one_per_adapter(upload_rows()))
def test_a_subject_uploads_a_large_object_right(row, objects, tmp_path):
    assert Uploads(objects, tmp_path).count(row)["PUT"] >= 1


def test_bytes_that_differ_from_the_stored_ones_are_a_failed_sample(objects, served):
    first, *others = objects.small
    lie = replace(objects, small=[replace(first, checksum=first.checksum ^ 1), *others])
    row = small_rows(latency=False, object_bytes=TINY.object_bytes)[1]
    with pytest.raises(SampleFailed, match="WrongBytes: small-00000"):
        SmallReads(lie, served, served, TINY.warm_objects).count(row)


def test_without_nginx_the_embedded_server_serves_the_same_objects(objects, monkeypatch, tmp_path):
    monkeypatch.setattr(servers, "find_nginx", lambda: None)
    row = small_rows(latency=False, object_bytes=TINY.object_bytes)[1]
    with servers.serving(objects.root, objects.bucket) as served:
        assert "SeaweedFS" in served.description
        section = SmallReads(objects, served, served, TINY.warm_objects)
        assert section.count(row) == {"GET": TINY.objects}


def test_a_row_whose_package_is_missing_is_reported_and_not_run(objects, served, capsys):
    row = Row("x", "x", "rival", "x:X", "never", requires=("no_such_package",))
    section = SmallReads(objects, served, served, TINY.warm_objects)
    (result,) = sample_rows(section, [row], 2, lambda _: None)
    reason = "no_such_package is not installed; pip install 'penstock[rivals]'"
    assert (result.skipped, result.taken) == (reason, ())
    table.show(report_of(section_of(result)))
    assert f"x skipped: {reason}" in capsys.readouterr().out


def test_a_row_that_fails_is_reported_and_the_others_go_on(objects, served):
    section = SmallReads(objects, served, served, TINY.warm_objects)
    good = small_rows(latency=False, object_bytes=TINY.object_bytes)[1]
    bad = replace(good, name="bad", options={"no_such_option": 1})
    failed, passed = sample_rows(section, [bad, good], 2, lambda _: None)
    assert "no_such_option" in (failed.failed or "")
    assert len(passed.taken) == 2
    assert report_of(section_of(failed, passed)).failed


def test_the_command_prints_tables_and_writes_every_sample(tmp_path):
    path = tmp_path / "samples.json"
    options = ["--quick", "--repeats", "2", "--json", str(path)]
    for name in ("small-20ms", "upload", "penstock", "obstore"):
        options += ["--only", name]
    done = subprocess.run(
        [sys.executable, "-m", "penstock_bench.micro", "transfer", *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    assert "× best rival" in done.stdout
    assert "Expected of this package" in done.stdout
    report = json.loads(path.read_text())
    assert report["format_version"] == 1
    assert report["environment"]["versions"]["obstore"]
    assert [section["name"] for section in report["sections"]] == ["small-20ms", "upload"]
    for section in report["sections"]:
        assert [row["row"]["package"] for row in section["rows"]] == ["penstock", "obstore"]
        for row in section["rows"]:
            assert [taken["repetition"] for taken in row["taken"]] == [0, 1]
            assert all(taken["reading"]["wall_s"] > 0 for taken in row["taken"])


def test_an_unknown_name_is_refused_with_the_known_ones():
    done = subprocess.run(
        [sys.executable, "-m", "penstock_bench.micro", "transfer", "--only", "s4fs"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "small-20ms" in done.stderr


def test_samples_are_taken_in_turn_and_each_round_begins_one_row_later():
    order = [taken.row for taken in interleave(["a", "b", "c"], lambda *_: READING, repeats=3)]
    assert order == ["a", "b", "c", "b", "c", "a", "c", "a", "b"]


def test_a_failed_row_takes_no_further_part():
    def take(row: str, repetition: int) -> Reading:
        if row == "b" and repetition == 1:
            raise SampleFailed("broken")
        return READING

    taken = list(interleave(["a", "b"], take, repeats=3))
    assert [item.failure for item in taken if item.row == "b"] == [None, "broken"]
    assert sum(item.row == "a" for item in taken) == 3


class Hungry:
    """Takes 64 MiB and gives them back, and burns some CPU time, under the clock only."""

    def warm_up(self) -> None:
        """Nothing to warm."""

    def run(self) -> None:
        data = bytearray(b"x") * (64 * MIB)
        for _ in range(20):
            data.count(b"y")

    def check(self) -> None:
        """Nothing to check."""

    def close(self) -> None:
        """Nothing to close."""


def hungry(_: Any) -> Hungry:
    return Hungry()


def test_a_sample_is_charged_with_its_own_memory_and_cpu_time():
    job = Job("tests.bench.test_micro:hungry", {}, watch={"parent": [os.getpid()]})
    reading = sample(job, {"PYTHONPATH": str(ROOT)})
    assert reading.peak_rss_over_baseline_bytes is not None
    assert 60 * MIB < reading.peak_rss_over_baseline_bytes < 80 * MIB
    assert 0 < reading.cpu_s <= reading.wall_s * 1.5
    assert reading.watched_cpu_s["parent"] < reading.wall_s
    assert reading.others_cpu_s >= 0


READING = Reading(1.0, 0.5, 10 * MIB, {}, 0.0)


def result_of(name: str, role: Any, walls_s: list[float], *, cpu_s: float = 1.0) -> RowResult:
    row = Row(name, name, role, "x:X", "how")
    taken = [
        Taken(name, index, 0, replace(READING, wall_s=wall_s, cpu_s=cpu_s))
        for index, wall_s in enumerate(walls_s)
    ]
    return RowResult(row, taken, {"GET": 100})


def section_of(*rows: RowResult, name: str = "small") -> SectionResult:
    return SectionResult(name, "100 reads", "object", 100, "a server", rows)


def report_of(*sections: SectionResult) -> Report:
    return Report("transfer", {"repeats": 3}, Environment.observe(["obstore"]), sections)


def test_figures_are_medians_and_the_limit_is_no_rival():
    section = section_of(
        result_of("penstock", "ours", [1.0, 2.0, 9.0]),
        result_of("slow", "rival", [8.0]),
        result_of("fast", "rival", [4.0]),
        result_of("socket", "limit", [1.0]),
    )
    figures = section.figures_of("penstock")
    assert figures is not None
    assert (figures.throughput, figures.throughput_low) == (50.0, pytest.approx(100 / 9))
    assert (figures.cpu_us_per_unit, figures.peak_mib, figures.requests) == (10_000.0, 10.0, 100)
    best = section.best("rival")
    assert best is not None
    assert best[0] == "fast"


def test_the_table_has_the_ratio_to_the_best_rival_and_to_the_limit(capsys):
    table.show(
        report_of(
            section_of(
                result_of("penstock", "ours", [2.0]),
                result_of("fast", "rival", [5.0]),
                result_of("socket", "limit", [1.6]),
            )
        )
    )
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "| penstock" in line]
    cells = [cell.strip() for cell in line.strip("| ").split("|")]
    assert cells == ["penstock", "how", "50", "50–50", "2.50", "0.80", "10,000", "1.00", "10"]


def test_a_table_says_when_others_were_at_work_and_when_the_limit_is_none():
    quiet = result_of("socket", "limit", [2.0])
    fast = result_of("fast", "rival", [1.0])
    (taken,) = fast.taken
    assert taken.reading is not None
    busy = replace(fast, taken=[replace(taken, reading=replace(taken.reading, others_cpu_s=1.5))])
    assert notes_on(section_of(quiet)) == []
    noise, limit = notes_on(section_of(quiet, busy))
    assert noise.startswith(
        "NOISY: other programs used up to 1.5 cores during samples of 1 of 2 rows"
    )
    assert limit.startswith("Faster than the bare socket")
    assert ": fast." in limit


def test_an_expectation_is_held_against_the_measured_ratio():
    fast = section_of(
        result_of("penstock", "ours", [1.0], cpu_s=0.5),
        result_of("s3torchconnector", "rival", [2.0], cpu_s=1.0),
    )
    slow = section_of(*fast.rows, name="small-20ms")
    found = [(item.measured, item.holds) for item in expectations(report_of(slow, fast))]
    assert found == [("2.00", False), ("2.00", True), ("0.50", True)]
