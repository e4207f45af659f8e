"""A list keeps the outputs of all steps with their graph: host memory grows. Fixed: numbers are kept."""

import pace
import torch
from torch import nn

torch.manual_seed(0)
history = []
model = nn.Sequential(nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 256))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
data = torch.randn(4096, 128)
while pace.goes_on():
    out = model(data[torch.randint(4096, (512,))])
    loss = out.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(loss.item() if pace.FIXED else out)  # slow
