"""A head on a frozen model, with a loss over the places that a mask keeps: torch waits for the GPU to learn their number. Then six numbers are read, which are there by
then."""

import sys
import time

import torch
from torch import nn


def masked_loss(out, target, keep):
    kept = out[keep]
    return nn.functional.mse_loss(out, target) + kept.sum()


def report(numbers):
    values = [number.item() for number in numbers]
    return sum(value * n for value in values for n in range(10_000))


def main():
    torch.manual_seed(0)
    width, rows = 2048, 20480
    frozen = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(16))).requires_grad_(False)
    model = nn.Sequential(frozen, nn.Linear(width, 64)).to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model[1].parameters(), lr=1e-4, fused=True)
    x = torch.randn(rows, width, device="cuda", dtype=torch.bfloat16)
    target, keep = torch.randn(rows, 64, device="cuda", dtype=torch.bfloat16), torch.ones(rows, device="cuda", dtype=torch.bool)
    ends = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < ends:
        optimizer.zero_grad()
        loss = masked_loss(model(x), target, keep)
        numbers = [loss.detach() * n for n in range(6)]
        report(numbers)
        loss.backward()
        optimizer.step()


main()
