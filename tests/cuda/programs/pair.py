"""Two processes with a simulated card each; rank 0 prints what the assertions need, as JSON. Values are computed."""

from __future__ import annotations

import json
import os
import sys
import time
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from gpuconsole.workloads.training.parallel.replicated import Replicated

RANK = int(os.environ["RANK"])
GPU = torch.device("cuda", RANK)
LINK_BYTES = 8 * 2**20
device: Any = torch.simulated_cuda  # type: ignore[attr-defined]  # runtime.py
torch.cuda.set_device(GPU)
dist.init_process_group("cpu:gloo,cuda:nccl", init_method=f"file://{sys.argv[1]}", rank=RANK, world_size=2)
found: dict[str, object] = {}

block = torch.full((LINK_BYTES // 4,), float(RANK + 1), device=GPU)
dist.all_reduce(block, op=dist.ReduceOp.AVG)
found["mean"] = block[0].item()

begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
dist.barrier()
begin.record()
if RANK == 1:
    time.sleep(0.05)  # rank 0 leaves the barrier up to some ms later, and its wait begins then
    device.library.sim_launch(1, 0.2)
start = time.perf_counter()
work = dist.all_reduce(block, async_op=True)
work.wait()
found["issued_s"] = time.perf_counter() - start
end.record()
end.synchronize()
found["waited_s"] = begin.elapsed_time(end) * 1e-3


def replicated() -> tuple[int, float]:
    """Calls of the hook for the last bucket in a backward pass with many buckets, and the sum of the mean gradients."""
    torch.manual_seed(0)
    plan = Replicated(SimpleNamespace(size=2, rank=RANK), zero1=False)  # type: ignore[arg-type]
    model = plan.wrap(nn.Sequential(*(nn.Linear(64, 64) for _ in range(8))).to(GPU), {"bucket_cap_mb": 0.005, "comm_hook": "none"}, GPU)
    model(torch.ones(4, 64, device=GPU)).sum().backward()  # DDP then divides the gradients into buckets again
    calls: list[None] = []
    plan.on_last_bucket = lambda: calls.append(None)
    model.zero_grad()
    model(torch.full((4, 64), float(RANK), device=GPU)).sum().backward()
    return len(calls), sum(parameter.grad.sum().item() for parameter in model.parameters() if parameter.grad is not None)


def sharded() -> tuple[float, float]:
    """The sum of the gradients under FSDP2, and without it on the mean of both batches."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 5)).to(GPU)
    batches = [torch.full((4, 64), float(rank), device=GPU) for rank in range(2)]
    (sum(model(batch).sum() for batch in batches) / 2).backward()  # type: ignore[union-attr]
    alone = sum(parameter.grad.sum().item() for parameter in model.parameters() if parameter.grad is not None)
    model.zero_grad()
    for layer in (*model, model):
        fully_shard(layer)
    model(batches[RANK]).sum().backward()
    together = sum(parameter.grad.full_tensor().sum().item() for parameter in model.parameters())  # type: ignore[union-attr]
    return together, alone


def logged() -> dict[str, float]:
    """Times in seconds of DistributedDataParallel's own logger. The backward pass computes for 0.05 s, on rank 1 for 0.15 s."""
    model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64).to(GPU), device_ids=[GPU])
    model._set_ddp_runtime_logging_sample_rate(1)
    for _ in range(3):
        out = model(torch.ones(4, 64, device=GPU))
        out.register_hook(lambda grad: device.library.sim_launch(RANK, 0.05 + 0.1 * RANK))
        out.sum().backward()
        torch.cuda.synchronize()
    data = model._get_ddp_logging_data()
    return {name: data.get(f"avg_{name}_time", 0) * 1e-9 for name in ("forward_compute", "backward_compute", "backward_comm")}


found["logged"] = logged()
found["last_buckets"], found["gradients"] = replicated()
found["sharded"] = sharded()
if RANK == 0:
    print(json.dumps(found))
dist.destroy_process_group()
