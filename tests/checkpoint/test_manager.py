"""CheckpointManager over a real server: staging, commit, failures, retention, tiers."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
import torch
from tests.checkpoint.test_load import Wrapped

from penstock import CheckpointManager, open_store
from penstock.checkpoint import Best, DamagedCheckpoint, SlowLoadWarning
from penstock.checkpoint.manifest import MANIFEST, folder_of
from penstock.config import RetryConfig
from penstock.errors import (
    AlreadyExists,
    IntegrityError,
    InvalidCheckpoint,
    NotFound,
    SaveFailed,
    SaveInProgress,
    StoreUnavailable,
    Unsupported,
)
from penstock.testing import Fault

NO_WAIT = timedelta(0)
MIB = 1 << 20


@pytest.fixture
def config(object_server):
    return replace(object_server.config, retry=RetryConfig(max_attempts=2, backoff_initial_s=0.01))


@pytest.fixture
def through_proxy(config, fault_proxy):
    return replace(config, endpoint=fault_proxy.endpoint)


@pytest.fixture
def manager(store_url, config):
    with CheckpointManager(store_url, config=config) as manager:
        yield manager


def keys(store_url, config):
    return sorted(meta.key for meta in open_store(store_url, config).list())


def test_what_was_saved_is_loaded_with_its_details(manager):
    state = {"w": torch.randn(300, 300), "epoch": 3}
    manifest = manager.save(
        7, state, metrics={"loss": torch.tensor(0.5)}, metadata={"git": "abc"}
    ).result()
    assert manager.steps() == [7]
    step, found = manager.load_latest()
    assert step == 7
    assert found["w"].equal(state["w"])
    assert manager.manifest(7) == manifest == manager.verify(7)
    assert (manifest.metrics, manifest.metadata) == ({"loss": 0.5}, {"git": "abc"})


def test_the_state_is_a_plain_torch_file(manager, store_url, config):
    (state,) = manager.save(1, {"w": torch.ones(3)}).result().objects
    from penstock import open_reader

    with open_reader(f"{store_url}/{folder_of(1)}/{state.name}", config=config) as file:
        assert torch.load(file)["w"].equal(torch.ones(3))


@pytest.mark.parametrize("background", ["thread", "process"])
def test_a_change_after_save_returned_does_not_reach_the_checkpoint(
    store_url, config, fault_proxy, background
):
    slow = replace(config, endpoint=fault_proxy.endpoint)
    fault_proxy.set(bandwidth_mibs=40)
    weights, plain = torch.ones(3 * MIB), {"epoch": 1}
    with CheckpointManager(store_url, config=slow, background=background) as manager:
        for value in (1.0, 2.0):
            weights.fill_(value)
            pending = manager.save(int(value), {"w": weights, "half": weights[:10], "plain": plain})
            assert pending.staged.done()
            assert not pending.durable.done()
            weights.fill_(-1)
            plain["epoch"] += 1
            pending.result()
        assert [manager.load(s)["w"].unique().tolist() for s in (1, 2)] == [[1.0], [2.0]]
        assert [manager.load(s)["plain"]["epoch"] for s in (1, 2)] == [1, 2]


def test_blocking_copies_nothing_and_is_durable_when_it_returns(manager):
    pending = manager.save(1, {"w": torch.ones(100)}, block=True)
    assert pending.durable.done()
    assert manager._arena.size == 0
    assert manager.latest() == 1


def test_a_failure_is_raised_by_its_future(store_url, through_proxy, fault_proxy):
    fault_proxy.add(Fault.status(500, method="PUT"))
    manager = CheckpointManager(store_url, config=through_proxy)
    pending = manager.save(1, {"w": torch.ones(3)})
    with pytest.raises(StoreUnavailable):
        pending.result(timeout_s=30)
    manager.close()  # it was told


@pytest.mark.parametrize("background", ["thread", "process"])
def test_a_failure_nobody_asked_for_is_raised_by_the_next_save_and_by_close(
    store_url, through_proxy, fault_proxy, background
):
    fault_proxy.add(Fault.status(500, method="PUT"))
    manager = CheckpointManager(store_url, config=through_proxy, background=background)
    manager.save(1, {"w": torch.ones(3)})
    with pytest.raises(SaveFailed, match="step 1") as failed:
        manager.save(2, {"w": torch.ones(3)})
    assert isinstance(failed.value.__cause__, StoreUnavailable)
    manager.save(3, {"w": torch.ones(3)})
    with pytest.raises(SaveFailed, match="step 3"):
        manager.close()
    manager.close()


def test_a_failure_does_not_hide_the_error_that_ended_the_training(
    store_url, through_proxy, fault_proxy
):
    fault_proxy.add(Fault.status(500, method="PUT"))
    manager = CheckpointManager(store_url, config=through_proxy)
    with pytest.raises(ZeroDivisionError) as raised, manager:  # noqa: PT012 - the save is part of the claim
        manager.save(1, {"w": torch.ones(3)})
        raise ZeroDivisionError
    assert "step 1 was not saved" in raised.value.__notes__[0]


def test_a_second_save_is_refused_or_waits(store_url, through_proxy, fault_proxy):
    fault_proxy.set(latency_ms=300)
    with CheckpointManager(store_url, config=through_proxy, on_busy="refuse") as manager:
        first = manager.save(1, {"w": torch.ones(3)})
        with pytest.raises(SaveInProgress, match="step 1"):
            manager.save(2, {"w": torch.ones(3)})
        first.result()
    with CheckpointManager(store_url, config=through_proxy) as manager:
        second = manager.save(2, {"w": torch.ones(3)})
        third = manager.save(3, {"w": torch.ones(3)})
        assert second.durable.done()
        third.result()
        assert manager.steps() == [1, 2, 3]


def test_a_committed_step_is_not_overwritten(manager):
    manager.save(1, {"w": torch.ones(3)}).result()
    with pytest.raises(AlreadyExists, match="delete it first"):
        manager.save(1, {"w": torch.zeros(3)}).result()
    assert manager.load(1)["w"].equal(torch.ones(3))


def test_of_two_savers_of_one_step_one_wins_whole(store_url, through_proxy, fault_proxy):
    """Both find no manifest, both upload; the loser's bytes must not end up under the winner's manifest."""
    fault_proxy.set(latency_ms=200)
    managers = [CheckpointManager(store_url, config=through_proxy) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        pending = [
            *pool.map(lambda i: managers[i].save(1, {"w": torch.full((3,), float(i))}), (0, 1))
        ]
    outcomes = [p.durable.exception() for p in pending]
    assert sorted(type(o).__name__ for o in outcomes) == ["AlreadyExists", "NoneType"]
    winner = outcomes.index(None)
    assert managers[0].load(1)["w"][0] == winner
    managers[0].verify(1)
    managers[0].prune(older_than=NO_WAIT)
    assert len([k for k in keys(store_url, through_proxy) if "state-" in k]) == 1


def test_a_lost_answer_to_the_commit_is_found_out(store_url, through_proxy, fault_proxy):
    """The manifest was written, and the connection died before anybody heard."""
    fault_proxy.add(Fault.reset_after(method="PUT", key=f"*{MANIFEST}", times=1))
    with CheckpointManager(store_url, config=through_proxy) as manager:
        manager.save(1, {"w": torch.ones(3)}).result()
        assert manager.steps() == [1]
        fault_proxy.clear_faults()
        fault_proxy.add(Fault.reset_before(method="PUT", key=f"*{MANIFEST}"))
        with pytest.raises(Exception, match=MANIFEST):
            manager.save(2, {"w": torch.ones(3)}).result()
        assert manager.steps() == [1]


def test_details_that_cannot_be_kept_are_refused_at_once(manager):
    with pytest.raises(TypeError):
        manager.save(1, {}, metadata={"x": torch.ones(1)})
    with pytest.raises(ValueError, match="negative"):
        manager.save(-1, {})


def test_a_metric_that_is_no_number_is_kept(manager):
    manager.save(1, {}, metrics={"loss": float("nan")}).result()
    assert str(manager.manifest(1).metrics["loss"]) == "nan"


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"version": 2}, Unsupported),
        ({"format": "other"}, Unsupported),
        ({"step": "x"}, InvalidCheckpoint),
        ({"step": 2}, InvalidCheckpoint),
        ({"objects": [{"name": "../../x", "size": 1, "crc32c": "0"}]}, InvalidCheckpoint),
        ({"objects": []}, InvalidCheckpoint),
        ({"metrics": {"a": "b"}}, InvalidCheckpoint),
    ],
)
def test_a_manifest_that_is_not_understood_is_refused(manager, store_url, config, change, error):
    manager.save(1, {"w": torch.ones(3)}).result()
    store, key = open_store(store_url, config), f"{folder_of(1)}/{MANIFEST}"
    store.put(key, json.dumps(json.loads(bytes(store.get(key))) | change).encode())
    with pytest.raises(error, match=MANIFEST):
        manager.load_latest()


def test_nothing_there(manager):
    assert manager.latest() is None
    with pytest.raises(NotFound, match="no committed checkpoint"):
        manager.load_latest()
    with pytest.raises(NotFound):
        manager.load(5)
    manager.delete(5)


def test_loading_takes_what_load_takes(manager):
    module = torch.nn.Linear(3, 2)
    manager.save(1, {"model": module.state_dict(), "step": 1}).result()
    other = torch.nn.Linear(3, 2)
    manager.load(1, into={"model": other})
    assert other.weight.equal(module.weight)
    assert manager.load_latest(only="step") == (1, {"step": 1})


def test_what_only_torch_can_load_is_verified_first(manager, store_url, config):
    (state,) = manager.save(1, {"w": Wrapped(torch.ones(3))}).result().objects
    with pytest.warns(SlowLoadWarning):
        manager.load(1, weights_only=False, map_location="cpu")
    flip(open_store(store_url, config), f"{folder_of(1)}/{state.name}", 0.2)
    with pytest.raises(IntegrityError, match=state.name):
        manager.load(1, weights_only=False, map_location="cpu")


class TestRetention:
    def save_all(self, manager, losses):
        for step, loss in enumerate(losses):
            manager.save(step, {"step": step}, metrics={"loss": loss})
        manager.wait()
        return manager.steps()

    def test_the_last_the_regular_and_the_best_stay(self, store_url, config):
        with CheckpointManager(
            store_url, config=config, keep_last=2, keep_every=4, keep_best=("loss", 1, "min")
        ) as manager:
            assert self.save_all(manager, [9, 8, 1, 7, 6, 5, 4]) == [0, 2, 4, 5, 6]
        left = keys(store_url, config)
        assert len(left) == 2 * 5
        assert Best("loss") == Best("loss", 1, "min")

    def test_what_was_loaded_stays(self, store_url, config):
        with CheckpointManager(store_url, config=config, keep_last=1) as manager:
            manager.save(0, {}).result()
            manager.load_latest()
            assert self.save_all(manager_from(manager, 1), [1, 1, 1]) == [0, 3]

    def test_a_dry_run_says_what_would_go_and_leaves_it(self, store_url, config, manager):
        self.save_all(manager, [1, 2, 3])
        with CheckpointManager(store_url, config=config, keep_last=1) as strict:
            assert [url[-16:] for url in strict.prune(dry_run=True)] == [
                "step-0000000000/",
                "step-0000000001/",
            ]
            assert strict.steps() == [0, 1, 2]
            strict.prune()
            assert strict.steps() == [2]

    def test_what_is_not_ours_is_never_touched(self, store_url, config, manager):
        store = open_store(store_url, config)
        foreign = ["notes.txt", f"{folder_of(0)}/notes.txt", "step-1/manifest.json", "stepping/x"]
        for key in foreign:
            store.put(key, b"mine")
        self.save_all(manager, [1, 2])
        manager.delete(0)
        manager.prune(older_than=NO_WAIT)
        assert set(foreign) <= set(keys(store_url, config))
        assert manager.steps() == [1]

    def test_an_unfinished_newer_step_is_left_alone(self, store_url, config, manager):
        """It may be another process's, on its way."""
        self.save_all(manager, [1])
        coming = f"{folder_of(9)}/state-{'a' * 16}.pt"
        open_store(store_url, config).put(coming, b"...")
        assert manager.prune(older_than=NO_WAIT) == []
        manager.save(10, {}).result()
        assert manager.prune(older_than=timedelta(hours=1)) == []
        assert len(manager.prune(older_than=NO_WAIT)) == 1
        assert coming not in keys(store_url, config)

    def test_a_deletion_that_fails_is_told_and_the_checkpoint_is_safe(
        self, store_url, through_proxy, fault_proxy
    ):
        manager = CheckpointManager(store_url, config=through_proxy, keep_last=1)
        manager.save(0, {}).result()
        manager.wait()
        fault_proxy.add(Fault.status(403, method="DELETE"))
        fault_proxy.add(Fault.status(403, method="POST", key=""))
        manager.save(1, {}).result()
        with pytest.raises(SaveFailed, match="was saved, but"):
            manager.close()
        assert manager.steps() == [0, 1]


def manager_from(manager, first):
    """The same manager, with steps counted from `first`."""

    class Shifted:
        def save(self, step, state, *, metrics):
            return manager.save(first + step, state, metrics=metrics)

        wait, steps = manager.wait, manager.steps

    return Shifted()


def flip(store, key, where):
    data = bytearray(store.get(key))
    data[round(where * len(data))] ^= 1
    store.put(key, data)


class TestCorruption:
    @pytest.fixture
    def saved(self, manager, store_url, config):
        names = {}
        for step in (1, 2):
            state = {"w": torch.full((MIB,), float(step)), "tiny": torch.ones(3)}
            names[step] = f"{folder_of(step)}/{manager.save(step, state).result().objects[0].name}"
        return open_store(store_url, config), names

    @pytest.mark.parametrize("where", [100, 500_000, 4_000_000])
    def test_a_flipped_bit_is_found_by_verify_and_by_load_which_name_the_object(
        self, manager, saved, where
    ):
        store, names = saved
        flip(store, names[2], where / store.head(names[2]).size)
        with pytest.raises(IntegrityError, match=names[2]):
            manager.verify(2)
        with pytest.raises((IntegrityError, InvalidCheckpoint), match=names[2]):
            manager.load(2)
        with pytest.raises((IntegrityError, InvalidCheckpoint)):
            manager.load_latest()
        with pytest.warns(DamagedCheckpoint, match=names[2]):
            step, state = manager.load_latest(fallback=True)
        assert step == 1
        assert state["w"].unique() == 1
        manager.verify(1)

    def test_every_byte_that_reaches_the_state_is_checked(self, store_url, config, manager):
        """Small states, every single byte flipped: each is found, or makes no difference to what is loaded."""
        state = {"a": torch.arange(5), "b": [torch.ones(2), "text"]}
        from penstock.checkpoint.loading import Wanted, load_object

        (expected,) = manager.save(1, state).result().objects
        data = bytes(open_store(store_url, config).get(f"{folder_of(1)}/{expected.name}"))
        memory = open_store(f"memory://{store_url.rpartition('/')[2]}")
        for at in range(0, len(data), 3):
            damaged = bytearray(data)
            damaged[at] ^= 0x10
            memory.put("x.pt", damaged)
            try:
                found = load_object(memory, "x.pt", Wanted(), expected=expected)
            except (IntegrityError, InvalidCheckpoint):
                continue
            assert found["a"].equal(state["a"]), at
            assert found["b"][0].equal(state["b"][0]), at
            assert found["b"][1] == "text", at

    @pytest.mark.parametrize("size", [0, 100, 4 * MIB])
    def test_an_object_of_another_size_is_found(self, manager, saved, size):
        store, names = saved
        store.put(names[2], bytes(store.get(names[2]))[:size])
        for look in (manager.verify, manager.load):
            with pytest.raises(IntegrityError, match=names[2]):
                look(2)

    def test_a_dropped_object_is_found(self, manager, saved):
        store, names = saved
        store.delete(names[2])
        for look in (manager.verify, manager.load):
            with pytest.raises(NotFound, match=names[2]):
                look(2)
        with pytest.warns(DamagedCheckpoint):
            assert manager.load_latest(fallback=True)[0] == 1

    def test_when_nothing_verifies_that_is_said(self, manager, saved):
        store, names = saved
        for name in names.values():
            flip(store, name, 0.5)
        with pytest.warns(DamagedCheckpoint), pytest.raises(IntegrityError, match="none of its 2"):
            manager.load_latest(fallback=True)


class TestLocalTier:
    @pytest.fixture
    def both(self, store_url, config, tmp_path):
        with CheckpointManager(
            store_url, config=config, local=tmp_path / "fast", keep_last=2
        ) as manager:
            yield manager, CheckpointManager(tmp_path / "fast")

    def test_a_save_is_in_both_and_load_reads_the_local_one(
        self, both, store_url, config, fault_proxy, tmp_path
    ):
        manager, local = both
        for step in range(3):
            manager.save(step, {"step": torch.tensor(step)}).result()
        manager.wait()
        assert manager.steps() == local.steps() == [1, 2]
        seen = replace(config, endpoint=fault_proxy.endpoint)
        resumed = CheckpointManager(store_url, config=seen, local=tmp_path / "fast")
        assert resumed.load(2)["step"] == 2
        assert fault_proxy.count(key="*.pt") == 0

    def test_a_damaged_or_missing_local_copy_is_passed_over(self, both, tmp_path):
        manager, local = both
        (state,) = manager.save(1, {"w": torch.ones(1000)}).result().objects
        flip(open_store(tmp_path / "fast"), f"{folder_of(1)}/{state.name}", 0.6)
        with pytest.warns(DamagedCheckpoint, match="loaded the durable copy"):
            assert manager.load(1)["w"].all()
        with pytest.raises(IntegrityError):
            manager.verify(1)
        local.delete(1)
        assert manager.load(1)["w"].all()
        manager.verify(1)

    def test_what_only_the_local_tier_has_is_a_checkpoint(self, both):
        manager, local = both
        local.save(5, {"w": torch.ones(3)}, block=True)
        assert manager.latest() == 5
        assert manager.load_latest()[1]["w"].all()

    def test_another_save_of_the_step_is_not_taken_for_this_one(self, both, store_url, config):
        manager, local = both
        local.save(5, {"w": torch.zeros(3)}, block=True)
        CheckpointManager(store_url, config=config).save(5, {"w": torch.ones(3)}, block=True)
        assert manager.load(5)["w"].all()

    def test_a_full_disk_does_not_keep_the_durable_copy_from_being_written(
        self, store_url, config, tmp_path
    ):
        (tmp_path / "file").write_text("in the way")
        manager = CheckpointManager(store_url, config=config, local=tmp_path / "file")
        manager.save(1, {"w": torch.ones(3)}).result()
        with pytest.raises(SaveFailed, match="was saved, but"):
            manager.close()
        assert CheckpointManager(store_url, config=config).load(1)["w"].all()


def test_the_stall_of_an_asynchronous_save_is_shown(store_url, config, record_testsuite_property):
    """Reported, not asserted: it is the machine's as much as ours."""
    state = {f"{i}": torch.randn(MIB) for i in range(10)}
    with CheckpointManager(store_url, config=config) as manager:
        manager.save(0, state).result()
        began = time.perf_counter()
        pending = manager.save(1, state)
        stalled = time.perf_counter() - began
        pending.result()
        whole = time.perf_counter() - began
    record_testsuite_property("stall_fraction", stalled / whole)


def test_no_thread_and_no_memory_is_left_when_it_is_closed(store_url, config):
    manager = CheckpointManager(store_url, config=config)
    manager.save(1, {"w": torch.ones(1000)})
    manager.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("penstock-save")]
    assert manager._arena.size == 0
    with pytest.raises(ValueError, match="closed"):
        manager.save(2, {})


def test_bad_options_are_refused():
    for options in ({"on_busy": "queue"}, {"background": "fork"}, {"keep_last": 0}):
        with pytest.raises(ValueError, match="must be"):
            CheckpointManager("memory://x", **options)
