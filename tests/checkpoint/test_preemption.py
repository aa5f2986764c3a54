"""SIGTERM becomes a flag, once; the training loop saves and leaves."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from penstock import CheckpointManager
from penstock.checkpoint import preemption_guard


def test_the_first_signal_sets_the_flag_and_the_handler_is_given_back():
    came = []
    before = signal.signal(signal.SIGTERM, lambda *_: came.append("theirs"))
    try:
        with preemption_guard() as guard:
            assert not guard.should_stop
            os.kill(os.getpid(), signal.SIGTERM)
            assert guard.should_stop
            assert came == []
            os.kill(os.getpid(), signal.SIGTERM)
            assert came == ["theirs"]
        os.kill(os.getpid(), signal.SIGTERM)
        assert came == ["theirs", "theirs"]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_without_a_signal_nothing_changes():
    before = signal.getsignal(signal.SIGTERM)
    with preemption_guard() as guard:
        pass
    assert not guard.should_stop
    assert signal.getsignal(signal.SIGTERM) is before


def test_another_thread_is_told_where_to_enter():
    failures = []

    def enter():
        try:
            with preemption_guard():
                pass
        except RuntimeError as exc:
            failures.append(str(exc))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert "main thread" in failures[0]


def test_a_preempted_run_saves_at_the_next_step_and_exits(tmp_path):
    code = """
import sys, torch
from penstock import CheckpointManager
from penstock.checkpoint import preemption_guard
weights = torch.zeros(10)
with CheckpointManager(sys.argv[1]) as manager, preemption_guard() as guard:
    for step in range(10**9):
        weights += 1
        if step == 3:
            print("training", flush=True)
        if guard.should_stop:
            manager.save_and_exit(step, {"weights": weights, "step": step}, code=3)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE
    ) as run:
        assert run.stdout.readline() == b"training\n"
        run.send_signal(signal.SIGTERM)
        assert run.wait(60) == 3
    manager = CheckpointManager(tmp_path)
    step, state = manager.load_latest()
    assert state["step"] == step >= 3
    assert state["weights"].unique() == step + 1
    with pytest.raises(SystemExit):
        manager.save_and_exit(step + 1, {})
