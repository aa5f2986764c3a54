"""The shortest tour: start the embedded server, write images, list them, read them back, and train from them.

The server is reached through a proxy that adds 10 ms to every request, as a store in the same region does.
"""

import io
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

import penstock
from penstock import metrics
from penstock.testing import FaultProxy, ObjectServer

IMAGES = 600
SIDE = 64
BATCH = 32
LATENCY_MS = 10


def main() -> None:
    """Writes 600 JPEGs in two classes, and trains one epoch twice: one object at a time, and with penstock."""
    torch.set_num_threads(1)
    began = time.perf_counter()
    with (
        ObjectServer(buckets=["demo"]) as server,
        FaultProxy(server.endpoint, latency_ms=LATENCY_MS) as proxy,
    ):
        print(f"server    {server.endpoint}, ready after {time.perf_counter() - began:.1f} s")
        config = replace(server.config, endpoint=proxy.endpoint)
        url = server.url("demo", "train/")
        write_and_read_back(penstock.open_store(url, config))

        began = time.perf_counter()
        index = penstock.list_objects(url, config=config)
        print(f"listed    {len(index)} keys in {1e3 * (time.perf_counter() - began):.0f} ms")

        store = penstock.open_store(index.url, config)
        naive = train(one_at_a_time(store, index))
        print(f"naive     {naive:,.0f} samples/s, one object after the other")

        dataset = penstock.IterableDataset.from_index(
            index, config=config, transform=decode, shuffle=True
        )
        ours = train(penstock.DataLoader(dataset, BATCH))
        print(f"penstock  {ours:,.0f} samples/s, {ours / naive:.0f} times as many")


def write_and_read_back(store: penstock.Store) -> None:
    """On 16 threads, every byte compared."""
    rng = random.Random(0)
    images = {f"{i % 2}/{i:05}.jpg": jpeg(bright=i % 2, rng=rng) for i in range(IMAGES)}
    with ThreadPoolExecutor(16) as pool:
        began = time.perf_counter()
        list(pool.map(lambda item: store.put(*item), images.items()))
        print(f"wrote     {IMAGES} images, {IMAGES / (time.perf_counter() - began):,.0f} a second")
        began = time.perf_counter()
        read = dict(zip(images, pool.map(store.get, images), strict=True))
        print(f"read      {IMAGES} images, {IMAGES / (time.perf_counter() - began):,.0f} a second")
    if read != images:
        raise SystemExit("what was read is not what was written")
    counted = metrics.snapshot()
    calls = ", ".join(f"{count} {verb}" for verb, count in sorted(counted.requests.items()))
    print(f"compared  every byte equal; {calls}, {sum(counted.errors.values())} errors")


def jpeg(*, bright: int, rng: random.Random) -> bytes:
    """Noise, a little brighter in the second class."""
    noise = np.frombuffer(rng.randbytes(SIDE * SIDE), np.uint8).reshape(SIDE, SIDE)
    out = io.BytesIO()
    Image.fromarray(noise // 2 + np.uint8(32 * bright)).save(out, "JPEG")
    return out.getvalue()


def decode(sample: penstock.Sample) -> tuple[Tensor, int]:
    """Pixels and class of an image."""
    pixels = np.asarray(Image.open(io.BytesIO(sample.data)), dtype=np.float32) / 255
    return torch.from_numpy(pixels)[None], int(sample.key.split("/")[-2])


def one_at_a_time(store: penstock.Store, index: penstock.Index) -> Iterator[tuple[Tensor, Tensor]]:
    """What people write first."""
    keys = list(index.keys)
    random.Random(0).shuffle(keys)
    for at in range(0, len(keys), BATCH):
        batch = [decode(penstock.Sample(k, bytes(store.get(k)))) for k in keys[at : at + BATCH]]
        yield torch.stack([pixels for pixels, _ in batch]), torch.tensor([c for _, c in batch])


def train(loader: penstock.DataLoader | Iterator[tuple[Tensor, Tensor]]) -> float:
    """One epoch of a tiny CNN; returns samples per second."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 2),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    began, samples, losses = time.perf_counter(), 0, []
    for pixels, classes in loader:
        loss = nn.functional.cross_entropy(model(pixels), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        samples += len(classes)
        losses.append(loss.item())
    seconds = time.perf_counter() - began
    print(
        f"trained   {samples} images in {seconds:.1f} s, loss {losses[0]:.2f} to {losses[-1]:.2f}"
    )
    return samples / seconds


if __name__ == "__main__":
    main()
