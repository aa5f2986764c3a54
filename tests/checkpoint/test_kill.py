"""SIGKILL at every request of a save: the newest checkpoint is the old one or the new one, whole."""

import multiprocessing
import os
import signal
from dataclasses import replace
from datetime import timedelta

import pytest
import torch

from penstock import CheckpointManager, open_store
from penstock.checkpoint.manifest import split_key
from penstock.config import TransferConfig
from penstock.testing import Fault

STATE_BYTES = 11 << 20


def state_of(step):
    return {"w": torch.full((STATE_BYTES // 4,), float(step)), "step": step}


def saver(url, config):
    """In a forked child: one save, in parts, and the retention after it."""
    torch.set_num_threads(1)  # the parent's compute threads do not exist here
    with CheckpointManager(url, config=config, keep_last=1) as manager:
        manager.save(2, state_of(2))


@pytest.mark.parametrize("moment", ["before the store sees it", "after the store did it"])
def test_a_saver_killed_at_any_request_leaves_the_old_step_or_the_new(
    object_server, fault_proxy, store_url, moment
):
    config = replace(
        object_server.config, transfer=TransferConfig(part_bytes=5 << 20, budget_bytes=64 << 20)
    )
    watched = replace(config, endpoint=fault_proxy.endpoint)
    seen, n = [], 0
    while True:
        url = f"{store_url}/{n}"
        manager = CheckpointManager(url, config=config)
        manager.save(1, state_of(1), block=True)
        fault_proxy.clear_log()
        fault_proxy.clear_faults()
        # The request is not answered: the saver stands there, and is killed.
        fault_proxy.add(
            Fault.stall(after_bytes=None if moment.startswith("before") else 0, skip=n, times=1)
        )
        child = multiprocessing.get_context("fork").Process(target=saver, args=(url, watched))
        child.start()
        while child.is_alive() and not any(r.fault == "stall" for r in fault_proxy.requests):
            child.join(0.01)
        if not child.is_alive():
            assert child.exitcode == 0
            break
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        newest = manager.latest()
        seen.append(newest)
        assert newest in (1, 2)
        manager.verify(newest)
        step, state = manager.load_latest()
        assert (step, state["step"]) == (newest, newest)
        assert state["w"].unique().tolist() == [float(newest)]

        manager.save(3, state_of(3), block=True)
        manager.prune(older_than=timedelta(0))
        assert not [*open_store(url, config).pending_uploads()]
        owned = {
            name for s in manager.steps() for name in (o.name for o in manager.manifest(s).objects)
        }
        left = {split_key(meta.key)[1] for meta in open_store(url, config).list()}
        assert left - {"manifest.json"} == owned
        n += 1
    assert manager.latest() == 2
    assert seen == sorted(seen), "a commit was undone"
    assert {*seen} == {1, 2}, "no request before the commit, or none after it"
    assert n >= 8
