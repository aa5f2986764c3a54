"""Two ranks over gloo, an uneven number of samples: every dataset gives them equal batches, and one lists."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.data.made import parquet_of, tar_of

from penstock.testing import FaultProxy

SAMPLES = 7
RANK = Path(__file__).with_name("ddp_all_four.py")


@pytest.fixture(scope="module")
def run(object_server, put):
    """What both ranks have seen, and the requests they made."""
    names = [f"{i}" for i in range(SAMPLES)]
    url = put(
        {f"objects/{name}": name.encode() for name in names}
        | {"shards/a.tar": tar_of([(f"{name}.txt", b"x") for name in names])}
        | {"tables/a.parquet": parquet_of({"id": [*range(SAMPLES)]}, group_rows=3)}
    )
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    with FaultProxy(object_server.endpoint) as proxy:
        done = subprocess.run(
            [*launcher, "--standalone", "--local-addr", "127.0.0.1", str(RANK), url],
            env=os.environ
            | object_server.env
            | {"AWS_ENDPOINT_URL": proxy.endpoint, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        requests = proxy.requests
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    ranks = [row["seen"] for row in sorted(lines, key=lambda row: row["rank"])]
    assert len(ranks) == 2
    return ranks, requests


@pytest.mark.parametrize("name", ["map", "iterable", "tar", "parquet"])
def test_ddp_over_an_uneven_number_of_samples_finishes_with_equal_batches(run, name):
    ranks, _ = run
    for epoch in range(2):
        one, other = (rank[name][epoch] for rank in ranks)
        assert [len(batch) for batch in one] == [len(batch) for batch in other] == [2, 2]
        found = [key for batch in one + other for key in batch]
        assert {*found} == {f"{i}" for i in range(SAMPLES)}, "seven samples, one of them twice"


def test_only_one_rank_lists(run):
    _, requests = run
    listings = [request for request in requests if "list-type" in request.query]
    assert len(listings) == 4, "one for each dataset"
