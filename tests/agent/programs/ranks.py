"""Two processes of DistributedDataParallel, each with a DataLoader: `ranks.py FOLDER`. Ends when the file `FOLDER/end` exists.

SAMPLES: the size of the dataset. FAILS: the rank whose workers end as they begin.
Each process writes to `FOLDER/rankN`, a line for each step, who made its first sample: 0 the process itself, else a worker of its loader.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, get_worker_info

SAMPLES = int(os.environ.get("SAMPLES", "20000"))


class Samples(Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        worker = get_worker_info()
        return torch.full((32,), float(index % 7)), 0 if worker is None else worker.id + 1


def begin(number):
    if os.environ["RANK"] == os.environ.get("FAILS"):
        os._exit(3)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    dataset = Samples()
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler, worker_init_fn=begin)
    over = torch.zeros(1)
    with open(folder / f"rank{dist.get_rank()}", "w", buffering=1) as made:
        epoch = 0
        while not over:
            sampler.set_epoch(epoch := epoch + 1)
            for x, makers in loader:
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
                made.write(f"{int(makers[0] > 0)}\n")
                over += dist.get_rank() == 0 and (folder / "end").exists()
                dist.broadcast(over, 0)
                if over:
                    break
    dist.destroy_process_group()
