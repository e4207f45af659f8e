"""Two processes that exchange gradients over gloo: `exchanging.py KIND SECONDS`. KIND says what the steps are made of.

Each process stamps by hand the end of autograd's own work (by a callback of autograd's engine) and the end of the backward pass. It writes the
seconds between them to `KIND.rankN.json`, for each step, with those of the backward pass and of the whole step, and the first losses.
"""

import contextlib
import json
import sys
from time import perf_counter, sleep

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

kind, seconds = sys.argv[1], float(sys.argv[2])
torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
rank = dist.get_rank()

BUCKETS = {"crumbs": 0.001}
"""Megabytes, by kind."""
PASSES = {"synced": 4, "accumulated": 4}
"""Passes of a step, by kind."""
width, rows = {"computing": (192, 6144), "straggler": (192, 512), "late_data": (192, 512), "crumbs": (64, 4)}.get(kind, (768, 4))
layers = [torch.nn.Linear(width, width) for _ in range(150 if kind == "crumbs" else 8)]
plain = torch.nn.Sequential(*layers)
model = DistributedDataParallel(plain, bucket_cap_mb=BUCKETS.get(kind, 25))
if kind == "by_hand":
    model = plain
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
x = torch.randn(rows, width)
computed = 0.0


def stamp():
    global computed
    computed = perf_counter()


def late(_):
    sleep(0.008)


layers[0].weight.register_post_accumulate_grad_hook(lambda _: torch.autograd.Variable._execution_engine.queue_callback(stamp))
if kind == "straggler" and rank == 1:
    for layer in layers[1:]:
        layer.weight.register_post_accumulate_grad_hook(late)

begun = perf_counter()
accounts = []
losses = []
while True:
    start, spent = perf_counter(), {"backward": 0.0, "exposed": 0.0}
    if kind == "late_data" and rank == 1:
        sleep(0.03)
    passes = PASSES.get(kind, 1)
    for number in range(passes):
        with model.no_sync() if kind == "accumulated" and number < passes - 1 else contextlib.nullcontext():
            loss = model(x).square().mean()
            before = perf_counter()
            loss.backward()
            after = perf_counter()
        backward, exposed = after - before, after - computed
        if kind == "accumulated" and number < passes - 1:
            exposed = 0.0
        if kind == "by_hand":
            exposed = 0.0
        spent["backward"] += backward
        spent["exposed"] += exposed
    if kind == "by_hand":
        before = perf_counter()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        spent["exposed"] += perf_counter() - before
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item().hex())
    accounts.append({**spent, "step": perf_counter() - start})
    over = torch.tensor([float(perf_counter() - begun > seconds)])
    if len(accounts) % 10 == 0:  # all processes end with the same step
        dist.broadcast(over, 0)
        if over.item():
            break
with open(f"{kind}.rank{rank}.json", "w") as file:
    json.dump({"steps": accounts, "losses": losses[:40]}, file)
dist.destroy_process_group()
