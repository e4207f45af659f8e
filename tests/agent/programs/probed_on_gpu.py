"""Convolutions on a GPU in fp32, with batch norm, dropout, and a cache that depends on the precision. Prints what probes must not change: losses,
weights, buffers, random state, settings. The file RESERVED gets the memory that the allocator has reserved after each step."""

import hashlib
import os
import random
import sys
import time

import torch
from torch import nn

STEPS, BATCH, WIDTH = map(int, sys.argv[1:])


class Scaled(nn.Module):
    """Keeps its scale in the precision of the last pass, as a cache of rotary embeddings does."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.full((1,), 1.0009765), persistent=False)

    def forward(self, x):
        if self.scale.dtype != x.dtype:
            self.scale = self.scale.to(x.dtype)
        return x * self.scale.to(x.dtype) * (1 + 1e-3 * random.random())


torch.manual_seed(0)
random.seed(0)
torch.set_num_threads(1)
model = nn.Sequential(
    nn.Conv2d(3, WIDTH, 3),
    nn.BatchNorm2d(WIDTH),
    nn.ReLU(),
    Scaled(),
    nn.Conv2d(WIDTH, 8, 3),
    nn.Dropout(),
    nn.Flatten(),
    nn.Linear(128, 5),
).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
inputs, targets = torch.randn(BATCH, 3, 8, 8).to("cuda"), torch.arange(BATCH).remainder(5).to("cuda")
losses = []
with open(os.environ["RESERVED"], "w") as reserved:
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        print(torch.cuda.memory_reserved(), torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated(), file=reserved, flush=True)
        time.sleep(0.004)
state = [
    *model.state_dict().values(),
    *(parameter.grad for parameter in model.parameters()),
    torch.get_rng_state(),
    torch.cuda.get_rng_state(),
]
digest = hashlib.sha256(b"".join(tensor.cpu().numpy().tobytes() for tensor in state)).hexdigest()
layouts = {parameter.is_contiguous() for parameter in model.parameters()}
precisions = torch.get_float32_matmul_precision(), torch._C._get_fp32_precision_getter("cuda", "matmul"), torch.backends.cudnn.benchmark
print(
    [loss.hex() for loss in losses], digest, random.random(), layouts, precisions, model[3].scale.dtype, torch.is_autocast_enabled("cuda")
)
