"""Jobs that run out of GPU memory. `python out_of_memory.py KIND BATCH NUMBER`; each kind is one function. The last line is the peak.
FUSED: the optimizer updates without temporary tensors."""

import os
import sys

import torch
from torch import nn

WIDTH = 2048


def make(layers):
    model = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(layers)]).cuda()
    return model, torch.optim.AdamW(model.parameters(), fused="FUSED" in os.environ or None)


def step(model, optimizer, size):
    x = torch.randn(size, WIDTH, device="cuda")
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def forward(batch, then):
    """The batch grows, and a forward pass does not fit."""
    model, optimizer = make(16)
    for size in [batch] * 12 + [then] * 3:
        step(model, optimizer, size)


def update(batch, layers):
    """The first step of the optimizer makes its states: they do not fit."""
    model, optimizer = make(layers)
    for _ in range(3):
        step(model, optimizer, batch)


def fragments(batch, pieces):
    """Between the tensors that the program keeps lie free pieces: none of them is large enough."""
    model, optimizer = make(4)
    kept = []
    for _ in range(pieces):
        kept.append(torch.empty(9 * 2**20, dtype=torch.uint8, device="cuda"))
        kept.append(torch.empty(7 * 2**20, dtype=torch.uint8, device="cuda"))
    del kept[::2]
    for _ in range(12):
        step(model, optimizer, batch)


def evaluation(batch, passes):
    """A validation without torch.no_grad() keeps the tensors of all its passes."""
    model, optimizer = make(8)
    for _ in range(12):
        step(model, optimizer, batch)
    model.eval()
    losses = []
    for _ in range(passes):
        losses.append(model(torch.randn(batch, WIDTH, device="cuda")).square().mean())
    print(sum(loss.item() for loss in losses))


def searched(batch, least):
    """The program looks for the largest batch itself, as accelerate does: it catches the error and tries half of the batch."""
    model, optimizer = make(16)
    while batch >= least:
        try:
            for _ in range(12):
                step(model, optimizer, batch)
            break
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            print("too large", batch)
            batch //= 2


def another(batch, least):
    """The program catches the error, and ends with another one before its next step."""
    try:
        searched(batch, batch)
        step(*make(16), batch)
    except torch.OutOfMemoryError:
        print("too large", batch)
    raise ValueError("no batch fits")


def hold(megabytes, _):
    """Another program holds memory of the card until its input ends."""
    kept = torch.empty(megabytes * 2**20, dtype=torch.uint8, device="cuda")
    print("holds", kept.numel(), flush=True)
    sys.stdin.read()


kinds = {function.__name__: function for function in (forward, update, fragments, evaluation, searched, another, hold)}
kinds[sys.argv[1]](int(sys.argv[2]), int(sys.argv[3]))
print("peak", torch.cuda.max_memory_allocated())
