"""Two loops: a model with batch norm and dropout, then one that counts its calls. Prints what probes must not change."""

import hashlib
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

LOSSES = []


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 10)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.linear(x) * (1 + 1e-3 * (self.calls % 7))


def train(model, optimizer, steps):
    data = TensorDataset(torch.randn(512, 32), torch.randint(0, 10, (512,)))
    while True:
        for x, y in DataLoader(data, batch_size=16, shuffle=True):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            LOSSES.append(loss.item())
            time.sleep(0.003)
            steps -= 1
            if not steps:
                return


torch.manual_seed(0)
torch.set_num_threads(1)
models = [nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(), nn.Linear(64, 10)), Counting()]
optimizer = torch.optim.AdamW([parameter for model in models for parameter in model.parameters()], lr=1e-3)
for model, steps in zip(models, map(int, sys.argv[1:]), strict=True):
    train(model, optimizer, steps)
state = [tensor for model in models for tensor in model.state_dict().values()]
digest = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in [*state, torch.get_rng_state()]))
print([loss.hex() for loss in LOSSES], digest.hexdigest(), models[1].calls)
