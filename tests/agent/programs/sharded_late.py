"""Two processes with FSDP2 over gloo: `sharded_late.py KIND SECONDS`. With `late`, process 1 sleeps in each step, before the first collective of the step; with
`even`, none does. Process 0 prints its first losses at the end."""

import sys
from time import perf_counter, sleep

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

LATE_S = 0.04
kind, seconds = sys.argv[1], float(sys.argv[2])
torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)])
mesh = init_device_mesh("cpu", (2,))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randn(64, 256)
over = torch.zeros(1)
begun = perf_counter()
index, losses = 0, []
while True:
    if kind == "late" and dist.get_rank() == 1:
        sleep(LATE_S)
    loss = model(x).square().mean()
    loss.backward()
    if index < 100:
        losses.append(loss.item().hex())
    optimizer.step()
    optimizer.zero_grad()
    index += 1
    if index % 20 == 0:
        over[0] = float(perf_counter() - begun > seconds)
        dist.broadcast(over, 0)
        if over.item():
            break
if dist.get_rank() == 0:
    print(*losses)
dist.barrier()  # a process that ends first takes the connections of the other one with it
dist.destroy_process_group()
