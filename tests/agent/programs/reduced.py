"""Two processes under DistributedDataParallel that reduce their metrics over all processes: `reduced.py KIND SECONDS`. KIND: `each` step, every `20` steps, or
`none`."""

import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

kind, seconds = sys.argv[1], float(sys.argv[2])
torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)


def log_all(values):
    dist.barrier()
    for value in values:
        dist.all_reduce(value)
    return [value.item() for value in values]


every = {"each": 1, "20": 20}.get(kind, 10**9)
begun, step = time.perf_counter(), 0
while True:
    loss = model(torch.ones(128, 256)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % every == 0:
        log_all([loss.detach() * part for part in range(10)])
    over = torch.tensor([float(time.perf_counter() - begun > seconds)])
    if step % 40 == 0:  # all processes end with the same step
        dist.broadcast(over, 0)
        if over.item():
            break
print(f"{step} steps")
dist.destroy_process_group()
