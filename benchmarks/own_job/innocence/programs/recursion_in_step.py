# Recursion limits met in an optimizer's closure, a collate function and a scheduler: the depth that is left there.
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
depths = {"collate": set(), "closure": set(), "forward": set(), "scheduler": set()}


def left(depth=0):
    try:
        return left(depth + 1)
    except RecursionError:
        return depth


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def forward(self, inputs):
        depths["forward"].add(left())
        return self.layer(inputs)


def collate(items):
    depths["collate"].add(left())
    return torch.stack([item[0] for item in items])


def decay(epoch):
    depths["scheduler"].add(left())
    return 0.9**epoch


sys.setrecursionlimit(300)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, decay)
loader = DataLoader(TensorDataset(torch.randn(320, 8)), batch_size=8, collate_fn=collate)
for _ in range(4):
    for batch in loader:

        def closure(batch=batch):
            depths["closure"].add(left())
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            return loss

        loss = optimizer.step(closure)
    scheduler.step()
print({name: sorted(found) for name, found in depths.items()}, round(loss.item(), 6))
