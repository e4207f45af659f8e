"""A step that is captured whole in a CUDA graph, as in torch's documentation (torch.cuda.graph, "Whole-network capture"), and replayed."""

import sys
import time

import torch
from torch import nn

WARM_STEPS, REPLAYS, EVERY, SECONDS = 11, 400, 100, float(sys.argv[1])
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 16)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
inputs, targets = torch.randn(256, 1024, device="cuda"), torch.randn(256, 16, device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(WARM_STEPS):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step()
begun, number = time.monotonic(), 0
while number < REPLAYS or time.monotonic() - begun < SECONDS:
    number += 1
    graph.replay()
    if number % EVERY == 0:  # the host waits, or it would issue replays for minutes
        value = loss.item()
        if number <= REPLAYS:
            print(f"replay {number}: loss {value:.9g}", flush=True)
