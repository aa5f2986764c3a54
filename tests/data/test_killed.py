"""A training run that is killed in the middle of an epoch goes on where its checkpoint was."""

import io
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

TRAINING = Path(__file__).with_name("train_until_killed.py")
IMAGES = 96
KILLED_AT = 7


@pytest.fixture(scope="module")
def images(put):
    """Dark and bright JPEGs, `0-000.jpg` and `1-001.jpg`."""
    rng = np.random.default_rng(0)
    objects = {}
    for i in range(IMAGES):
        bright = i % 2
        pixels = rng.normal(90 + 60 * bright, 20, (16, 16)).clip(0, 255).astype(np.uint8)
        out = io.BytesIO()
        Image.fromarray(pixels).save(out, "JPEG")
        objects[f"{bright}-{i:03}.jpg"] = out.getvalue()
    return put(objects)


def start(object_server, url, checkpoint, told):
    return subprocess.Popen(
        [sys.executable, str(TRAINING), f"{url}/", str(checkpoint)],
        env=os.environ | object_server.env,
        stdin=told,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_killed_and_resumed_every_sample_of_the_epoch_is_trained_on_once(
    object_server, images, tmp_path
):
    checkpoint = tmp_path / "checkpoint.pt"
    with start(object_server, images, checkpoint, subprocess.PIPE) as killed:
        for line in killed.stdout:
            if line == f"step {KILLED_AT}\n":
                # Its workers are of its group, and are killed with it.
                os.killpg(killed.pid, signal.SIGKILL)
                break
            print("go on", file=killed.stdin, flush=True)
    assert killed.wait(60) == -signal.SIGKILL
    kept = torch.load(checkpoint)["log"]
    assert len(kept) == KILLED_AT // 3 * 3, "the last checkpoint before the end"

    with start(object_server, images, checkpoint, subprocess.DEVNULL) as resumed:
        said = resumed.stdout.read().splitlines()
    assert resumed.returncode == 0
    assert said[0] == f"resumed {len(kept)}"
    done = torch.load(f"{checkpoint}.done")
    log = done["log"]

    keys = Counter(key for batch, _ in log for key in batch)
    assert keys == Counter(f"{i % 2}-{i:03}.jpg" for i in range(IMAGES))
    assert log[: len(kept)] == kept
    assert done["steps"] == {len(log)} == {IMAGES // 8}, "the optimizer's count goes on"
    assert done["epoch"] == 1
    losses = [loss for _, loss in log]
    before, after = losses[: len(kept)], losses[len(kept) :]
    assert max(after) <= max(before), "the loss does not jump back"
    assert sum(after) / len(after) < sum(before) / len(before)
