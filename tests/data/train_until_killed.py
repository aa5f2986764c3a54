"""Trains a tiny network for one epoch of JPEGs, with a checkpoint every few steps; goes on from one that is there."""

import io
import os
import sys

import numpy as np
import torch
from PIL import Image
from torch import nn

import penstock

SAVE_EVERY = 3


def decode(sample):
    """(name, pixels, class); the class is in the name."""
    pixels = np.asarray(Image.open(io.BytesIO(sample.data)), dtype=np.float32) / 255
    name = sample.key.rpartition("/")[2]
    return name, torch.from_numpy(pixels)[None], int(name[0])


def say(line):
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(url, checkpoint):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset = penstock.IterableDataset.from_prefix(url, transform=decode, shuffle=True, seed=1)
    loader = penstock.DataLoader(dataset, 8, num_workers=2)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 2),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    log = []  # (keys, loss) of every step
    if os.path.exists(checkpoint):
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
        log = state["log"]
        say(f"resumed {len(log)}")
    for keys, pixels, labels in loader:
        loss = nn.functional.cross_entropy(model(pixels), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.append((list(keys), loss.item()))
        if len(log) % SAVE_EVERY == 0:
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "loader": loader.state_dict(),
                "log": log,
            }
            torch.save(state, f"{checkpoint}.part")
            os.replace(f"{checkpoint}.part", checkpoint)
        say(f"step {len(log)}")
        sys.stdin.readline()  # goes on when told, or when nobody tells
    steps = {int(state["step"]) for state in optimizer.state_dict()["state"].values()}
    torch.save({"log": log, "steps": steps, "epoch": loader.epoch}, f"{checkpoint}.done")


if __name__ == "__main__":
    main(*sys.argv[1:])
