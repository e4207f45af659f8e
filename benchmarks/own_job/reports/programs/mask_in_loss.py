"""A contrastive loss fills its mask of weights element by element. Fixed: one comparison of tensors."""

import pace
import torch
from torch import nn

torch.manual_seed(0)


def same(labels):
    if pace.FIXED:
        return (labels[:, None] == labels[None, :]).float()
    mask = torch.zeros(len(labels), len(labels))
    for i in range(len(labels)):
        for j in range(len(labels)):
            if labels[i] == labels[j]:  # slow
                mask[i, j] = 1  # slow
    return mask


def contrast(features, labels):
    with pace.part():
        mask = same(labels)
    features = nn.functional.normalize(features, dim=1)
    return -(mask * (features @ features.T / 0.1).log_softmax(1)).mean()


model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 64))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data, labels = torch.randn(4096, 64), torch.randint(0, 4, (4096,))
while pace.goes_on():
    at = torch.randint(4096, (64,))
    loss = contrast(model(data[at]), labels[at])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
