"""FSDP2 in one process, with mixed precision: `python sharded.py mixed|offload SECONDS`. With `offload` the parameters are on the host."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

STEPS, EVERY, SECONDS = 200, 50, float(sys.argv[2])
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
torch.manual_seed(0)
torch.cuda.set_device(0)
dist.init_process_group("cpu:gloo,cuda:nccl" if torch.version.cuda is not None else "gloo", store=dist.HashStore(), rank=0, world_size=1)
model = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(4)], nn.Linear(1024, 16)).cuda()
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
offload = CPUOffloadPolicy(pin_memory=torch.version.cuda is not None) if sys.argv[1] == "offload" else OffloadPolicy()
for part in (*model, model):
    fully_shard(part, mp_policy=policy, offload_policy=offload)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
inputs, targets = torch.randn(512, 1024, device="cuda"), torch.randn(512, 16, device="cuda")
begun, number = time.monotonic(), 0
while number < STEPS or time.monotonic() - begun < SECONDS:
    number += 1
    loss = nn.functional.mse_loss(model(inputs).float(), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if number % EVERY == 0 and number <= STEPS:
        print(f"step {number}: loss {loss.item():.6g}", flush=True)
dist.destroy_process_group()
