"""One rank lists and all have the index: two real processes over gloo."""

import subprocess
import sys

import pytest

from penstock import Index, ObjectMeta

RANK = """
import sys
import torch.distributed as dist
import penstock
from penstock import Index, ObjectMeta

rank, rendezvous, what = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)

def make():
    assert rank == 0, "only rank 0 lists"
    if what == "missing":
        return penstock.list_objects("/no/such/folder")
    if what == "odd":
        class Odd(Exception):
            def __init__(self, one, two): super().__init__("odd")
        raise Odd(1, 2)
    return Index.of("s3://bucket", [ObjectMeta(f"{i:05d}", i, None) for i in range(5000)])

group = dist.new_group([0, 1]) if what == "group" else None
try:
    index = Index.from_rank_zero(make, group=group)
    print(len(index), index.total_bytes, index.keys[-1])
except Exception as exc:
    print(type(exc).__name__, exc)
dist.barrier()
dist.destroy_process_group()
"""


def both_ranks(folder, what):
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(folder / "rendezvous"), what],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    answers = []
    for process in ranks:
        out, err = process.communicate(timeout=90)
        assert process.returncode == 0, err
        answers.append(out.strip())
    return answers


@pytest.mark.parametrize("what", ["index", "group"])
def test_both_ranks_have_what_rank_zero_listed(tmp_path, what):
    assert both_ranks(tmp_path, what) == ["5000 12497500 04999"] * 2


def test_an_error_on_rank_zero_is_raised_on_both(tmp_path):
    one, other = both_ranks(tmp_path, "missing")
    assert one == other
    assert one.startswith("BucketNotFound")


def test_an_error_that_does_not_pickle_still_ends_the_other_rank(tmp_path):
    one, other = both_ranks(tmp_path, "odd")
    assert one == "Odd odd"
    assert other.startswith("PenstockError rank 0: Odd(")


def test_without_a_process_group_it_simply_lists():
    index = Index.of("s3://bucket", [ObjectMeta("a", 1)])
    assert Index.from_rank_zero(lambda: index) is index
