"""One of the processes of a job with FSDP 2, a simulated card each; or the same model alone in one process: `sharded.py KIND STEPS`.

Each process prints the seconds of a step after the first ones, as the device takes them.
"""

import os
import sys

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

KIND, STEPS = sys.argv[1], int(sys.argv[2])
WIDTH, ROWS = {"exposed": (4096, 2048), "hidden": (2048, 65536)}[KIND]
rank = int(os.environ.get("LOCAL_RANK", 0))
gpu = torch.device("cuda", rank)
torch.cuda.set_device(gpu)
model = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(8)]).to(gpu)
if "RANK" in os.environ:
    torch.distributed.init_process_group("nccl")
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for block in model:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
else:
    model = model.to(torch.bfloat16)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
x = torch.randn(ROWS, WIDTH, device=gpu, dtype=torch.bfloat16)
begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
for step in range(STEPS):
    if step == 20:
        begin.record()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
end.record()
torch.cuda.synchronize()
if rank == 0:
    print(begin.elapsed_time(end) * 1e-3 / (STEPS - 20))
if "RANK" in os.environ:
    torch.distributed.destroy_process_group()
