"""Lightning trains, saves to a store, crashes and resumes; what fails behind its back is told."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import lightning
import pytest
import torch
from lightning.pytorch.plugins.io import AsyncCheckpointIO as LightningAsyncCheckpointIO

import penstock
from penstock import CheckpointManager, StoreConfig, open_store
from penstock.checkpoint import DamagedCheckpoint
from penstock.config import RetryConfig
from penstock.errors import ConfigError, NotFound, PenstockError
from penstock.integrations.lightning import (
    AsyncCheckpointIO,
    Checkpoints,
    ModelCheckpoint,
    ObjectStoreCheckpointIO,
)
from penstock.testing import Fault, FaultProxy, ObjectServer

pytestmark = [
    # What Lightning does with torch's trees will have to change.
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec:FutureWarning"),
    # Advice for larger machines.
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
]

NO_RETRY = RetryConfig(max_attempts=2, backoff_initial_s=0.01)


class Crash(Exception):
    """The machine has gone."""


class Model(lightning.LightningModule):
    """Its loss falls with every step, so that the newest checkpoints are the best."""

    def __init__(self, crash_at=None, before_step=None):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(64))
        self.seen = []
        self._crash_at = crash_at
        self._before_step = before_step

    def training_step(self, batch, batch_idx):
        if self._before_step is not None:
            self._before_step(self.global_step)
        if self.global_step == self._crash_at:
            raise Crash
        self.seen += batch
        loss = (self.weight - 1).pow(2).sum()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def trainer_of(tmp_path, *, plugins=(), callbacks=(), steps=10):
    return lightning.Trainer(
        max_steps=steps,
        max_epochs=-1,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        plugins=[*plugins],
        callbacks=[*callbacks],
    )


def number_of(sample):
    return float(sample.key.rpartition("/")[2])


@pytest.fixture(scope="module")
def numbers(object_server):
    """The URL of twenty objects, named by number."""
    url = object_server.url("train", "lightning-checkpoint-tests")
    store = open_store(url, object_server.config)
    for number in range(20):
        store.put(f"{number:02}", b"x")
    return url


@pytest.fixture
def batches(numbers, object_server):
    """A loader that says where it is, as a run that resumes needs."""

    def build():
        dataset = penstock.MapDataset.from_prefix(
            numbers, config=object_server.config, transform=number_of
        )
        return penstock.DataLoader(dataset, 1, num_workers=0, collate_fn=list)

    return build


@pytest.fixture
def config(object_server):
    return replace(object_server.config, retry=NO_RETRY)


@pytest.fixture
def names(store_url, config):
    return lambda: sorted(meta.key for meta in open_store(store_url, config).list())


def best_two(url, **more):
    return ModelCheckpoint(
        url, filename="{step}", monitor="loss", save_top_k=2, every_n_train_steps=2, **more
    )


WAYS = {
    "blocking": ObjectStoreCheckpointIO,
    "asynchronous": lambda config: AsyncCheckpointIO(ObjectStoreCheckpointIO(config)),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_crashed_resumes_from_the_store(  # noqa: PLR0917 - fixtures
    way, store_url, config, names, tmp_path, batches
):
    plain = Model()
    trainer_of(tmp_path).fit(plain, batches())

    with pytest.raises(Crash):
        trainer_of(tmp_path, plugins=[WAYS[way](config)], callbacks=[best_two(store_url)]).fit(
            Model(crash_at=7), batches()
        )
    assert names() == ["step=4.ckpt", "step=6.ckpt"]

    resumed = Model()
    checkpoint = best_two(store_url, save_last=True)
    trainer = trainer_of(tmp_path, plugins=[WAYS[way](config)], callbacks=[checkpoint])
    trainer.fit(resumed, batches(), ckpt_path=f"{store_url}/step=6.ckpt")
    assert resumed.seen == [6.0, 7.0, 8.0, 9.0]
    assert resumed.weight.equal(plain.weight)
    assert names() == ["last.ckpt", "step=10.ckpt", "step=8.ckpt"]
    assert checkpoint.best_model_path == f"{store_url}/step=10.ckpt"
    assert checkpoint.find_last(trainer) == f"{store_url}/last.ckpt"
    checkpoint.to_yaml()
    assert "best_k_models.yaml" in names()


def test_lightnings_own_asynchronous_plugin_works(store_url, config, names, tmp_path, batches):
    plugin = LightningAsyncCheckpointIO(ObjectStoreCheckpointIO(config))
    everything = ModelCheckpoint(store_url, filename="{step}", save_top_k=-1, every_n_train_steps=2)
    trainer_of(tmp_path, plugins=[plugin], callbacks=[everything], steps=4).fit(Model(), batches())
    assert names() == ["step=2.ckpt", "step=4.ckpt"]


@pytest.mark.parametrize("wrapper", [AsyncCheckpointIO, LightningAsyncCheckpointIO])
def test_a_server_that_dies_during_an_asynchronous_save_ends_the_run_with_an_error(
    wrapper, tmp_path, batches
):
    with ObjectServer(["train"]) as server, FaultProxy(server.endpoint) as proxy:
        proxy.set(latency_ms=300)  # the save is still on its way when the next step begins
        config = replace(server.config, endpoint=proxy.endpoint, retry=NO_RETRY)

        def die(step):
            if step == 2:
                server.kill()

        checkpoint = ModelCheckpoint(
            server.url("train", "run"),
            save_top_k=-1,
            every_n_train_steps=2,
            enable_version_counter=False,
        )
        trainer = trainer_of(
            tmp_path,
            plugins=[wrapper(ObjectStoreCheckpointIO(config))],
            callbacks=[checkpoint],
            steps=3,
        )
        model = Model(before_step=die)
        with pytest.raises(PenstockError):
            trainer.fit(model, batches())
        assert model.global_step == 3  # the training itself went well


def test_nothing_is_removed_after_a_save_that_failed(
    store_url, config, names, fault_proxy, tmp_path
):
    through = replace(config, endpoint=fault_proxy.endpoint)
    plugin = AsyncCheckpointIO(ObjectStoreCheckpointIO(through))
    plugin.save_checkpoint({"w": torch.ones(3)}, f"{store_url}/old.ckpt")
    plugin.teardown()
    fault_proxy.add(Fault.status(500, method="PUT"))
    plugin.save_checkpoint({"w": torch.ones(3)}, f"{store_url}/new.ckpt")
    plugin.remove_checkpoint(f"{store_url}/old.ckpt")
    with pytest.raises(PenstockError):
        plugin.teardown()
    assert names() == ["old.ckpt"]
    plugin.teardown()  # it was told


def test_an_asynchronous_save_is_of_the_moment_it_was_asked_for(store_url, config, fault_proxy):
    fault_proxy.set(latency_ms=100)
    through = replace(config, endpoint=fault_proxy.endpoint)
    plugin = AsyncCheckpointIO(ObjectStoreCheckpointIO(through))
    weight = torch.zeros(4)
    plugin.save_checkpoint({"a": weight, "b": weight}, f"{store_url}/x.ckpt")
    weight.fill_(1)
    found = plugin.load_checkpoint(f"{store_url}/x.ckpt")
    plugin.teardown()
    assert found["a"].equal(torch.zeros(4))
    assert found["a"].data_ptr() == found["b"].data_ptr()


def test_a_path_that_lost_a_slash_is_repaired(store_url, config, names):
    plugin = ObjectStoreCheckpointIO(config)
    mangled = Path(f"{store_url}/x.ckpt")
    assert "//" not in str(mangled)
    plugin.save_checkpoint({"epoch": 1}, mangled)
    assert names() == ["x.ckpt"]
    assert plugin.load_checkpoint(mangled) == {"epoch": 1}
    plugin.remove_checkpoint(mangled)
    plugin.remove_checkpoint(mangled)
    assert names() == []
    with pytest.raises(NotFound):
        plugin.load_checkpoint(mangled)
    assert str(ModelCheckpoint(Path("gs://b/run")).dirpath) == "gs://b/run"


def test_storage_options_are_understood_or_refused(store_url, config, names):
    plugin = ObjectStoreCheckpointIO(StoreConfig(endpoint="http://127.0.0.1:9"))
    plugin.save_checkpoint({}, f"{store_url}/x.ckpt", storage_options={"config": config})
    assert names() == ["x.ckpt"]
    for options in ({"acl": "private"}, {"config": 3}, 7):
        with pytest.raises(TypeError, match="StoreConfig"):
            plugin.save_checkpoint({}, f"{store_url}/y.ckpt", storage_options=options)


def test_weights_only_is_lightnings_choice_or_the_plugins(store_url, config):
    url = f"{store_url}/x.ckpt"
    plugin = ObjectStoreCheckpointIO(config)
    plugin.save_checkpoint({"where": Path("a")}, url)
    for asked in (None, True):
        with pytest.raises(Exception, match="weights_only"):
            plugin.load_checkpoint(url, weights_only=asked)
    assert plugin.load_checkpoint(url, weights_only=False) == {"where": Path("a")}
    trusting = ObjectStoreCheckpointIO(config, weights_only=False)
    assert trusting.load_checkpoint(url) == {"where": Path("a")}


def test_a_url_without_the_plugin_is_refused(store_url, tmp_path, batches):
    with pytest.raises(ConfigError, match="ObjectStoreCheckpointIO"):
        trainer_of(tmp_path, callbacks=[ModelCheckpoint(store_url)]).fit(Model(), batches())
    with pytest.raises(ValueError, match="links"):
        ModelCheckpoint(store_url, save_last="link")


def test_last_is_never_mistaken_for_nothing(store_url, config, tmp_path, batches):
    checkpoint = ModelCheckpoint(store_url, save_last=True)
    trainer = trainer_of(
        tmp_path, plugins=[ObjectStoreCheckpointIO(config)], callbacks=[checkpoint]
    )
    assert checkpoint.find_last(trainer) is None
    with pytest.raises(ConfigError, match="find_last"):
        trainer.fit(Model(), batches(), ckpt_path="last")


def test_a_folder_on_disk_is_lightnings_business(tmp_path, batches):
    checkpoint = ModelCheckpoint(tmp_path / "run", filename="{step}", every_n_train_steps=2)
    trainer = trainer_of(
        tmp_path, plugins=[ObjectStoreCheckpointIO()], callbacks=[checkpoint], steps=4
    )
    trainer.fit(Model(), batches())
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["step=4.ckpt"]


def test_the_callback_commits_and_resumes_through_a_manager(store_url, config, tmp_path, batches):
    plain = Model()
    trainer_of(tmp_path).fit(plain, batches())

    def fit(model, *, fallback=False):
        with CheckpointManager(store_url, config=config, keep_last=2) as manager:
            checkpoints = Checkpoints(manager, every_n_steps=3)
            trainer = trainer_of(
                tmp_path, plugins=[ObjectStoreCheckpointIO(config)], callbacks=[checkpoints]
            )
            trainer.fit(model, batches(), ckpt_path=checkpoints.resume_from(fallback=fallback))

    with pytest.raises(Crash):
        fit(Model(crash_at=7))
    manager = CheckpointManager(store_url, config=config)
    assert manager.steps() == [3, 6]
    assert manager.verify(6).metrics.keys() == {"loss"}

    resumed = Model()
    fit(resumed)
    assert resumed.seen == [6.0, 7.0, 8.0, 9.0]
    assert resumed.weight.equal(plain.weight)
    assert manager.steps() == [9, 10]

    # The newest is damaged: the run goes on from the one before it, and replaces it.
    (damaged,) = manager.manifest(10).objects
    penstock.open_store(store_url, config).put(f"step-0000000010/{damaged.name}", b"x")
    again = Model()
    with pytest.warns(DamagedCheckpoint, match="step 10"):
        fit(again, fallback=True)
    assert again.seen == [9.0]
    manager.verify(10)

    trainer = trainer_of(tmp_path, callbacks=[Checkpoints(manager, every_n_steps=3)])
    with pytest.raises(ConfigError, match="step 10 is committed"):
        trainer.fit(Model(), batches())


def test_a_save_that_fails_is_raised_in_the_training_loop(
    store_url, config, fault_proxy, tmp_path, batches
):
    fault_proxy.add(Fault.status(500, method="PUT"))
    manager = CheckpointManager(store_url, config=replace(config, endpoint=fault_proxy.endpoint))
    model = Model(before_step=lambda step: manager.wait())
    trainer = trainer_of(tmp_path, callbacks=[Checkpoints(manager, every_n_steps=2)])
    with pytest.raises(PenstockError):
        trainer.fit(model, batches())
    assert model.seen == [0.0, 1.0, 2.0]
    manager.close()


def test_the_same_works_under_lightnings_other_name(store_url, object_server, names, tmp_path):
    code = f"""
import sys, torch, pytorch_lightning
from pytorch_lightning.demos.boring_classes import BoringModel
from penstock.integrations.lightning import AsyncCheckpointIO, ModelCheckpoint, ObjectStoreCheckpointIO
assert issubclass(ModelCheckpoint, pytorch_lightning.callbacks.ModelCheckpoint)
assert "lightning" not in sys.modules
pytorch_lightning.Trainer(
    max_steps=2, accelerator="cpu", logger=False, enable_progress_bar=False, limit_val_batches=0,
    plugins=[AsyncCheckpointIO(ObjectStoreCheckpointIO())],
    callbacks=[ModelCheckpoint("{store_url}", filename="x", every_n_train_steps=2)],
).fit(BoringModel())
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=object_server.env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert names() == ["x.ckpt"]
