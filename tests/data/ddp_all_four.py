"""One rank of a DDP run over each of the four datasets; run by torchrun, prints what it saw as JSON."""

import json
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import penstock


def keys_of(batch):
    return [f"{row}" for row in batch.data["id"]] if hasattr(batch, "data") else batch


def last_of(sample):
    return sample.key.rpartition("/")[2]


def main(prefix):
    dist.init_process_group("gloo")
    streams = {"transform": last_of, "shuffle": True}
    datasets = {
        "map": penstock.MapDataset.from_prefix(f"{prefix}/objects/", transform=last_of),
        "iterable": penstock.IterableDataset.from_prefix(f"{prefix}/objects/", **streams),
        "tar": penstock.TarDataset.from_prefix(f"{prefix}/shards/", **streams),
        "parquet": penstock.ParquetDataset.from_prefix(
            f"{prefix}/tables/", batch_rows=2, shuffle=True
        ),
    }
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    seen = {}
    for name, dataset in datasets.items():
        loader = penstock.DataLoader(
            dataset, 2, num_workers=1, collate_fn=list if name != "parquet" else None
        )
        seen[name] = []
        for _ in range(2):
            batches = []
            for batch in loader:
                # The gradients of all ranks meet here: one batch too many on one of them, and it hangs.
                model(torch.ones(1, 1)).sum().backward()
                batches.append(keys_of(batch))
            seen[name].append(batches)
    sys.stdout.write(json.dumps({"rank": dist.get_rank(), "seen": seen}) + "\n")
    sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
