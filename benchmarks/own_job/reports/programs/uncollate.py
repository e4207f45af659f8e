"""Each batch is split into dictionaries of samples and joined again. Fixed: the batch stays whole."""

import pace
import torch
from torch import nn

torch.manual_seed(0)
KEYS = [f"vector{k}" for k in range(10)]


def uncollate(batch):
    return [{key: batch[key][n] for key in batch} for n in range(len(batch[KEYS[0]]))]  # slow


def collate(samples):
    return {key: torch.stack([sample[key] for sample in samples]) for key in samples[0]}  # slow


def transform(batch):
    with pace.part():
        if pace.FIXED:
            return batch
        return collate(uncollate(batch))


model = nn.Sequential(nn.Linear(160, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data, labels = {key: torch.randn(4096, 16) for key in KEYS}, torch.randint(0, 4, (4096,))
while pace.goes_on():
    at = torch.randint(4096, (128,))
    batch = transform({key: value[at] for key, value in data.items()})
    loss = nn.functional.cross_entropy(model(torch.cat([batch[key] for key in KEYS], 1)), labels[at])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
