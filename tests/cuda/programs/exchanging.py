"""One of two processes with a simulated card each, under torchrun: DistributedDataParallel over the link between the cards. `exchanging.py KIND STEPS`.

Each process writes the device's own times to `KIND.rankN.json`: for each step the seconds from the end of the backward computation to the end of the
exchange (events of the stream), and those of the whole step.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

kind, steps = sys.argv[1], int(sys.argv[2])
rank = int(os.environ["LOCAL_RANK"])
gpu = torch.device("cuda", rank)
torch.cuda.set_device(gpu)
dist.init_process_group("cpu:gloo,cuda:nccl")
width, rows, layers = {"exposed": (2048, 64, 6), "hidden": (1024, 32768, 6), "straggler": (1024, 16384, 6)}[kind]
model: Any = DistributedDataParallel(nn.Sequential(*(nn.Linear(width, width) for _ in range(layers))).to(gpu), device_ids=[rank])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
x = torch.randn(rows, width, device=gpu)
device: Any = torch.simulated_cuda  # type: ignore[attr-defined]  # runtime.py


def event() -> Any:
    made = torch.cuda.Event(enable_timing=True)
    made.record()
    return made


computed: list[Any] = []
first = next(model.parameters())
first.register_post_accumulate_grad_hook(
    lambda _: torch.autograd.Variable._execution_engine.queue_callback(lambda: computed.append(event()))  # type: ignore[attr-defined]
)
begins, ends = [event()], []
for _ in range(steps):
    if kind == "straggler" and rank == 1:
        device.library.sim_launch(rank, 0.02)
    loss = model(x).square().mean()
    loss.backward()
    ends.append(event())
    optimizer.step()
    optimizer.zero_grad()
    begins.append(event())
torch.cuda.synchronize()
with open(f"{kind}.rank{rank}.json", "w") as file:
    exposed = [before.elapsed_time(after) * 1e-3 for before, after in zip(computed, ends, strict=True)]
    whole = [before.elapsed_time(after) * 1e-3 for before, after in itertools.pairwise(begins)]
    json.dump({"exposed_s": exposed, "step_s": whole}, file)
dist.destroy_process_group()
