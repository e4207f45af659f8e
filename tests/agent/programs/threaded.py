"""A loop beside a thread of the program: `threaded.py KIND SECONDS`. The thread computes in Python, in numpy, or sleeps."""

import sys
import threading
import time

import numpy as np
import torch
from torch import nn

kind, seconds = sys.argv[1], float(sys.argv[2])
torch.manual_seed(0)
over = threading.Event()


def in_python():
    total = 0
    while not over.is_set():
        for number in range(100_000):
            total += number % 7


def in_numpy():
    square = np.ones((600, 600))
    while not over.is_set():
        square @ square


model = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(96, 96), nn.ReLU())))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
threading.Thread(target={"python": in_python, "numpy": in_numpy, "sleeps": over.wait}[kind]).start()
begun, steps = time.perf_counter(), 0
while time.perf_counter() - begun < seconds:
    optimizer.zero_grad()
    model(torch.ones(64, 96)).square().mean().backward()
    optimizer.step()
    steps += 1
over.set()
