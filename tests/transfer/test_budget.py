"""The byte budget: never exceeded, never starving, never a deadlock."""

import random
import signal
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import TransferConfig, open_store
from penstock.transfer import ByteBudget, Upload, open_writer
from penstock.transfer import budget as budget_module
from penstock.transfer.budget import Share, shared_budget

MIB = 1 << 20


class Watched(ByteBudget):
    """Notes the most that was ever in use, and whether it was more than a lone item may be."""

    def __init__(self, limit_bytes):
        super().__init__(limit_bytes)
        self.holders = []
        self.peak = 0
        self.violations = 0

    def note(self, size, sign):
        with self._lock:
            (self.holders.append if sign > 0 else self.holders.remove)(size)
            held = sum(self.holders)
            self.peak = max(self.peak, held)
            if held > self.limit_bytes and len(self.holders) > 1:
                self.violations += 1


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.integers(1, 150), max_size=12), min_size=1, max_size=8), st.integers())
def test_random_use_by_threads_never_exceeds_the_limit_and_everyone_gets_a_turn(plans, seed):
    budget = Watched(100)
    turns = random.Random(seed)
    pauses = [turns.random() / 5000 for _ in range(50)]

    def use(sizes):
        for number, size in enumerate(sizes):
            assert budget.acquire(size, timeout_s=20)
            budget.note(size, +1)
            time.sleep(pauses[(number + size) % 50])  # others get to run, or not
            budget.note(size, -1)
            budget.release(size)

    threads = [threading.Thread(target=use, args=(sizes,)) for sizes in plans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert budget.violations == 0
    assert budget.in_use_bytes == 0


def test_a_large_item_is_not_starved_by_small_ones_that_would_fit():
    budget = ByteBudget(100)
    assert budget.try_acquire(60)
    granted = threading.Event()
    large = threading.Thread(target=lambda: (budget.acquire(80), granted.set()), daemon=True)
    large.start()
    _until(lambda: budget._waiting)
    assert not budget.try_acquire(10), "it would fit, but has come later"
    assert not budget.acquire(10, timeout_s=0.01)
    budget.release(60)
    assert granted.wait(10)
    large.join()
    assert budget.in_use_bytes == 80


def test_an_item_larger_than_the_limit_passes_alone():
    budget = ByteBudget(100)
    assert budget.try_acquire(1000)
    assert not budget.try_acquire(1)
    budget.release(1000)
    assert budget.try_acquire(1)
    assert not budget.try_acquire(1000)


def test_one_who_gives_up_waiting_lets_the_next_one_in():
    budget = ByteBudget(100)
    budget.acquire(50)
    granted = threading.Event()
    impatient = threading.Thread(target=lambda: budget.acquire(100, timeout_s=0.2), daemon=True)
    impatient.start()
    _until(lambda: budget._waiting)
    patient = threading.Thread(target=lambda: (budget.acquire(50), granted.set()), daemon=True)
    patient.start()
    assert granted.wait(10)
    impatient.join()
    patient.join()
    assert budget.in_use_bytes == 100


def test_one_who_is_interrupted_while_waiting_holds_nothing_afterwards():
    budget = ByteBudget(100)
    budget.acquire(100)

    def interrupt():
        _until(lambda: budget._waiting)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        budget.acquire(100, timeout_s=30)
    thread.join()
    budget.release(100)
    assert budget.in_use_bytes == 0
    assert budget.try_acquire(100)


def test_many_idle_writers_of_one_thread_do_not_stop_each_other(monkeypatch):
    """Each holds a part that only more writing would send; together they are four times the budget."""
    monkeypatch.setattr(budget_module, "_PATIENCE_S", 0.01)
    transfer = TransferConfig(budget_bytes=5 * MIB + 1, part_bytes=5 * MIB)
    store = open_store("memory://idle-writers", _config(transfer))
    uploads = [Upload(store, f"{i}") for i in range(20)]
    for _ in range(4):
        for upload in uploads:
            upload.write(bytes(256 << 10))
    assert shared_budget(transfer).in_use_bytes > transfer.budget_bytes
    for upload in uploads:
        assert upload.close().size == MIB
    assert shared_budget(transfer).in_use_bytes == 0


def test_a_writer_whose_parts_are_gone_does_not_wait_for_an_idle_one(monkeypatch):
    """It began to wait with a part on its way; that part comes back, and is not enough."""
    monkeypatch.setattr(budget_module, "_PATIENCE_S", 0.01)
    budget = ByteBudget(100)
    idle, busy = Share(budget), Share(budget)
    idle.acquire(60)
    busy.acquire(40)
    waiter = threading.Thread(target=busy.acquire, args=(50,), daemon=True)
    waiter.start()
    _until(lambda: budget._waiting)
    busy.release(40)
    waiter.join(10)
    assert not waiter.is_alive()
    assert budget.in_use_bytes == 110


def test_a_writer_with_parts_on_their_way_waits_for_them(monkeypatch):
    """It must not run over the budget: what it waits for comes back without its doing."""
    monkeypatch.setattr(budget_module, "_PATIENCE_S", 0.0)
    budget = ByteBudget(100)
    share = Share(budget)
    share.acquire(100)
    began = threading.Event()
    waiter = threading.Thread(
        target=lambda: (began.set(), share.acquire(10, idle_bytes=40)), daemon=True
    )
    waiter.start()
    began.wait()
    _until(lambda: budget._waiting)
    assert budget.in_use_bytes == 100
    share.release(60)
    waiter.join(10)
    assert budget.in_use_bytes == 50
    share.close()
    assert budget.in_use_bytes == 0


def test_all_stores_with_the_same_limit_share_one_budget():
    one = TransferConfig(budget_bytes=77 * MIB)
    other = TransferConfig(budget_bytes=77 * MIB, max_concurrency=3)
    assert shared_budget(one) is shared_budget(other)
    with open_writer("memory://shared/a", config=_config(one)) as writer:
        writer.write(b"1")
        assert shared_budget(other).in_use_bytes > 0
    assert shared_budget(other).in_use_bytes == 0


def _config(transfer):
    from penstock import StoreConfig

    return StoreConfig(transfer=transfer)


def _until(condition):
    """A short poll with a bound: these states have no event of their own."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)
