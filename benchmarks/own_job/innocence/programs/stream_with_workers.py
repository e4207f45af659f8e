# design: stdout: a thread of the agent in each worker reads the stack of the loading
# An IterableDataset that is split over workers, persistent workers, a worker_init_fn, and what each worker sees of itself.
import os
import threading

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        tasks = len([t for t in os.listdir("/proc/self/task")]) if info else 0
        for number in range(info.id, 200, info.num_workers):
            yield torch.full((8,), number / 200), info.id, info.seed % 1000, threading.active_count(), tasks, torch.rand(1).item()


def begin(worker):
    torch.manual_seed(100 + worker)


torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(
    Stream(),
    batch_size=5,
    num_workers=2,
    persistent_workers=True,
    prefetch_factor=3,
    worker_init_fn=begin,
    generator=torch.Generator().manual_seed(1),
)
seen = set()
for epoch in range(3):
    draws = 0.0
    for inputs, worker, seed, threads, tasks, draw in loader:
        seen |= set(zip(worker.tolist(), seed.tolist(), threads.tolist(), tasks.tolist(), strict=True))
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        draws += draw.sum().item()
    print(epoch, round(draws, 5), round(loss.item(), 6))
print(sorted(seen), loader._iterator is not None)
del loader
