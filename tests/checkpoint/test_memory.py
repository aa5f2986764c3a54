"""What saving and loading hold beyond the state, measured in a process of its own."""

import os
import subprocess
import sys

import pytest

MIB = 1 << 20
STATE_MIB = 300

COMMON = """
import sys, torch, penstock
from dataclasses import replace
url, config = sys.argv[1], None
def status(field):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(field)) * 1024
def peak_of(call):
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the high-water mark begins anew
    before = status("VmRSS")
    result = call()
    print(status("VmHWM") - before)
    return result
def state(mib):
    # As a transformer has them: one large, many middling, many tiny.
    sizes = [mib // 4] + [4] * (mib // 2 // 4) + [1] * (mib // 4)
    return {f"{i}": torch.full((size << 18,), float(i)) for i, size in enumerate(sizes)} | {
        f"tiny{i}": torch.full((100,), float(i)) for i in range(500)}
penstock.save(state(8), url + "/warm.pt")
penstock.load(url + "/warm.pt")
"""
SAVE = "held = state(300); peak_of(lambda: penstock.save(held, url + '/s.pt'))"
LOAD = """
found = peak_of(lambda: penstock.load(url + '/s.pt'))
assert all(bool((t == float(name.removeprefix("tiny"))).all()) for name, t in found.items())
"""


@pytest.fixture(scope="module")
def url(object_server):
    return object_server.url("train", "memory")


def run(code, url, object_server):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
    done = subprocess.run(
        [sys.executable, "-c", COMMON + code, url],
        env=environment | object_server.env,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_saving_and_loading_stay_within_their_bounds(url, object_server, record_testsuite_property):
    saved = run(SAVE, url, object_server) / MIB
    record_testsuite_property("save_above_state_mib", saved)
    assert saved <= 160
    loaded = run(LOAD, url, object_server) / MIB
    record_testsuite_property("load_peak_mib", loaded)
    assert loaded <= 1.15 * STATE_MIB + 64


def test_a_program_that_ends_without_closing_finishes_its_save(url, object_server):
    code = """
manager = penstock.CheckpointManager(url + "/run")
manager.save(1, state(8))
print(0)
"""
    run(code, url, object_server)
    from penstock import CheckpointManager

    manager = CheckpointManager(f"{url}/run", config=object_server.config)
    assert manager.latest() == 1
    manager.verify(1)
