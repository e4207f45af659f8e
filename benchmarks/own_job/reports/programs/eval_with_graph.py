"""Each tenth step validates, and records gradients for it. Fixed: no_grad, each hundredth step."""

import pace
import torch
from torch import nn

torch.manual_seed(0)


def validate(model, held, labels):
    model.eval()
    total = 0.0
    for part, wanted in zip(held.split(16), labels.split(16), strict=True):
        total += nn.functional.cross_entropy(model(part), wanted).item() * len(part)  # slow
    model.train()
    return total / len(held)


model = nn.Sequential(nn.Conv2d(3, 24, 3, 2, 1), nn.ReLU(), nn.Conv2d(24, 48, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(3072, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data, labels = torch.randn(1024, 3, 32, 32), torch.randint(0, 10, (1024,))
held, wanted = torch.randn(256, 3, 32, 32), torch.randint(0, 10, (256,))
step = 0
while pace.goes_on():
    at = torch.randint(1024, (16,))
    loss = nn.functional.cross_entropy(model(data[at]), labels[at])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with pace.part():
        if step % (100 if pace.FIXED else 10) == 9:
            with torch.set_grad_enabled(not pace.FIXED):
                validate(model, held, wanted)  # slow
    step += 1
