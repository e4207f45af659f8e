"""A loop with a mode that slows each step: `debugged.py MODE SECONDS`."""

import contextlib
import sys
import time

import torch
from torch import nn

mode, seconds = sys.argv[1], float(sys.argv[2])
torch.manual_seed(0)
if mode == "deterministic":
    torch.use_deterministic_algorithms(True)
if mode == "anomaly":
    torch.autograd.set_detect_anomaly(True)
model = nn.Sequential(*(layer for _ in range(12) for layer in (nn.Linear(64, 64), nn.ReLU())))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
profiler = contextlib.nullcontext()
if mode == "profiler":
    profiler = torch.profiler.profile()
if mode == "scheduled":
    profiler = torch.profiler.profile(schedule=torch.profiler.schedule(wait=1, warmup=1, active=3, repeat=1))
begun, steps = time.perf_counter(), 0
with profiler as running:
    while time.perf_counter() - begun < seconds:
        optimizer.zero_grad()
        around = torch.autograd.detect_anomaly() if mode == "passes" else contextlib.nullcontext()
        with around:
            model(torch.ones(32, 64)).square().mean().backward()
        optimizer.step()
        time.sleep(0.004)
        if mode == "scheduled":
            running.step()
        steps += 1
print("on", torch.is_anomaly_enabled(), torch.are_deterministic_algorithms_enabled())
