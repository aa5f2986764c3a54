"""What importing penstock costs and brings in. Each claim is measured in a process of its own."""

import subprocess
import sys
from types import ModuleType

import pytest

import penstock

MORE_THAN_TORCH_S = 0.2


def run(code):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_penstock_costs_under_a_fifth_of_a_second_more_than_torch():
    """The best of several: the claim is about the code, not about what else the machine is doing."""
    code = """
import time, torch
start = time.perf_counter()
import penstock
print(time.perf_counter() - start)
"""
    assert min(float(run(code)) for _ in range(5)) < MORE_THAN_TORCH_S


@pytest.mark.parametrize("module", ["penstock.store", "penstock.testing", "penstock.cli"])
def test_torch_is_not_imported_by(module):
    assert run(f"import sys, {module}; print('torch' in sys.modules)") == "False"


def test_a_store_is_used_without_torch():
    code = """
import sys
from penstock.store import open_store
store = open_store("memory://imports")
store.put("key", b"value")
assert bytes(store.get("key")) == b"value" and [m.key for m in store.list()] == ["key"]
print("torch" in sys.modules)
"""
    assert run(code) == "False"


def test_all_is_exactly_the_public_names():
    public = {
        name
        for name in dir(penstock)
        if not name.startswith("_")
        and (name in penstock.__all__ or not isinstance(getattr(penstock, name), ModuleType))
    }
    assert public | {"__version__"} == set(penstock.__all__)
    assert len(penstock.__all__) == len(set(penstock.__all__))
