"""A loop on a GPU: pageable copies, one of them into a static buffer, a loss that is read every 20 steps, a checkpoint, and CUDA events of the program's own every step."""

import itertools
import json
import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS = int(sys.argv[1])
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10)).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
data = TensorDataset(torch.randn(8, 4096, 512), torch.randint(0, 10, (8, 4096)))
PHASES = ("data_wait", "h2d", "forward", "loss", "backward", "optimizer")
static = torch.zeros(4096, dtype=torch.long, device="cuda")
sums, pending = dict.fromkeys(PHASES, 0.0), []
n, done = 0, False
while not done:
    for x, y in DataLoader(data, batch_size=None, shuffle=True):
        events = [torch.cuda.Event(enable_timing=True) for _ in PHASES]
        x, y = x.to("cuda"), static.copy_(y)
        events[1].record()
        out = model(x)
        events[2].record()
        loss = nn.functional.cross_entropy(out, y)
        events[3].record()
        optimizer.zero_grad()
        loss.backward()
        events[4].record()
        optimizer.step()
        events[5].record()
        pending.append(events)
        n += 1
        if n % 20 == 0:
            print(n, round(loss.item(), 4), flush=True)
        if n == STEPS:
            done = True
            break
torch.cuda.synchronize()
for before, after in itertools.pairwise(pending[8:]):
    for i, name in enumerate(PHASES):
        if i > 1:
            sums[name] += after[i - 1].elapsed_time(after[i])
    sums["h2d"] += before[5].elapsed_time(after[1])
total = sum(sums.values())
with open(os.environ["STAMPS"], "w") as file:
    json.dump({name: value / total for name, value in sums.items()}, file)
