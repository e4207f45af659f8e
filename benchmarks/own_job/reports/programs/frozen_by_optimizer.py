"""Only the head is given to the optimizer, and the encoder still records gradients. Fixed: `requires_grad_(False)`."""

import pace
import torch
from torch import nn

torch.manual_seed(0)

encoder = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 256), nn.GELU())
head = nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 12))
if pace.FIXED:
    encoder.requires_grad_(False)
optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3)
features, labels = torch.randn(4096, 256), torch.randint(12, (4096,))
while pace.goes_on():
    at = torch.randint(4096, (128,))
    scores = head(encoder(features[at]))  # slow
    loss = nn.functional.cross_entropy(scores, labels[at])
    optimizer.zero_grad()
    with pace.part():
        loss.backward()  # slow
    optimizer.step()
