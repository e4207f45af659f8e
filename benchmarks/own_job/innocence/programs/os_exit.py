# Ends by os._exit in the middle of an epoch with workers, without a flush but that of its own.
# exit: 9
import os
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step, (inputs,) in enumerate(DataLoader(TensorDataset(torch.randn(800, 8)), batch_size=4)):
    optimizer.zero_grad()
    loss = model(inputs).square().mean()
    loss.backward()
    optimizer.step()
    if step == 150:
        print(step, round(loss.item(), 6))
        print("no room left", file=sys.stderr)
        sys.stdout.flush()
        os._exit(9)
