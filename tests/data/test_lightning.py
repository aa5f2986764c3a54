"""Lightning trains on every dataset, and a run resumed from a checkpoint sees exactly the rest."""

from collections import Counter

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from tests.data.made import parquet_of, tar_of

import penstock

SAMPLES = 22
BATCH = 4
STEPS = 6  # an epoch

pytestmark = [
    # What Lightning does with torch's trees will have to change.
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec:FutureWarning"),
    # Advice for datasets that do not share themselves, for larger machines, and about a folder used twice.
    pytest.mark.filterwarnings("ignore:Your `IterableDataset` has `__len__` defined"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
]


def last_of(sample):
    return sample.key.rpartition("/")[2]


def rows_of(batch):
    return [f"{row:02}" for row in batch.data["id"]]


@pytest.fixture(scope="module")
def prefixes(put):
    names = [f"{i:02}" for i in range(SAMPLES)]
    objects = put({name: name.encode() for name in names})
    return {
        "map": objects,
        "iterable": objects,
        "tar": put({"a.tar": tar_of([(f"{name}.txt", b"x") for name in names])}),
        "parquet": put({"a.parquet": parquet_of({"id": [*range(SAMPLES)]}, group_rows=5)}),
    }


@pytest.fixture
def make(prefixes, config):
    def build(name, workers=0):
        url = prefixes[name]
        if name == "map":
            dataset = penstock.MapDataset.from_prefix(url, config=config, transform=last_of)
            return penstock.DataLoader(
                dataset, BATCH, shuffle=True, num_workers=workers, collate_fn=list
            )
        if name == "parquet":
            dataset = penstock.ParquetDataset.from_prefix(
                url, config=config, batch_rows=BATCH, transform=rows_of, shuffle=True
            )
            return penstock.DataLoader(dataset, num_workers=workers)
        kind = penstock.IterableDataset if name == "iterable" else penstock.TarDataset
        dataset = kind.from_prefix(url, config=config, transform=last_of, shuffle=True)
        return penstock.DataLoader(dataset, BATCH, num_workers=workers, collate_fn=list)

    return build


class Model(lightning.LightningModule):
    """Notes what it is trained on: (epoch, names)."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen = []

    def training_step(self, batch, batch_idx):
        self.seen.append((self.current_epoch, tuple(batch)))
        return (self.weight - 1).pow(2).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(loader, folder, ckpt=None, **options):
    """Trains two epochs with a checkpoint after every step; returns the model and the trainer."""
    model = Model()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[
            ModelCheckpoint(
                folder,
                "{step}",
                every_n_train_steps=1,
                save_top_k=-1,
                auto_insert_metric_name=False,
            )
        ],
        **options,
    )
    trainer.fit(model, loader, ckpt_path=ckpt)
    return model, trainer


def in_epoch(model, epoch):
    return Counter(name for found, names in model.seen if found == epoch for name in names)


KINDS = pytest.mark.parametrize("name", ["map", "iterable", "tar", "parquet"])
WHOLE = Counter(f"{i:02}" for i in range(SAMPLES))


@KINDS
@pytest.mark.parametrize("stopped_at", [2, STEPS, STEPS + 3])
def test_a_run_resumed_from_a_checkpoint_sees_exactly_the_rest(make, name, stopped_at, tmp_path):
    """In the middle of the first epoch, right at its end, and in the middle of the second."""
    whole, trainer = fit(make(name), tmp_path)
    assert trainer.global_step == 2 * STEPS
    assert in_epoch(whole, 0) == in_epoch(whole, 1) == WHOLE
    assert [names for _, names in whole.seen[:STEPS]] != [names for _, names in whole.seen[STEPS:]]

    resumed, trainer = fit(make(name), tmp_path, tmp_path / f"{stopped_at}.ckpt")
    assert trainer.global_step == 2 * STEPS
    epoch, behind = divmod(stopped_at, STEPS)
    before = Counter(name for _, names in whole.seen[epoch * STEPS : stopped_at] for name in names)
    assert before + in_epoch(resumed, epoch) == WHOLE
    assert [step[0] for step in resumed.seen] == [step[0] for step in whole.seen[stopped_at:]]
    if epoch == 0:
        assert in_epoch(resumed, 1) == WHOLE
    assert resumed.weight.item() == pytest.approx(whole.weight.item())
    assert len(resumed.seen) == 2 * STEPS - stopped_at, behind


def test_with_workers_and_another_number_of_them(make, tmp_path):
    whole, _ = fit(make("iterable", workers=2), tmp_path)
    resumed, trainer = fit(make("iterable", workers=1), tmp_path, tmp_path / "2.ckpt")
    before = Counter(name for _, names in whole.seen[:2] for name in names)
    assert before + in_epoch(resumed, 0) == in_epoch(resumed, 1) == WHOLE
    assert trainer.global_step == 2 * STEPS


@pytest.mark.parametrize("name", ["map", "iterable"])
def test_a_limited_epoch_does_not_take_the_same_batches_each_time(make, name, tmp_path):
    model, _ = fit(make(name), tmp_path, limit_train_batches=2)
    assert model.seen[:2] != [(0, names) for _, names in model.seen[2:]]
    assert len(model.seen) == 4
