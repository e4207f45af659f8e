# Loaders by hand: next() with StopIteration, two loaders in turn, an early break, a subclass, a fresh iterator each step, and len().
import hashlib

import torch
from torch.utils.data import DataLoader, TensorDataset


class Mine(DataLoader):
    started = 0

    def __iter__(self):
        Mine.started += 1
        for batch in super().__iter__():
            yield [part * 2 for part in batch]


def step(inputs):
    optimizer.zero_grad()
    loss = model(inputs).square().mean()
    loss.backward()
    optimizer.step()
    order.append(round(inputs.sum().item(), 4))
    return loss.item()


torch.manual_seed(0)
order = []
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
labelled = DataLoader(TensorDataset(torch.randn(100, 8)), batch_size=4, shuffle=True)
unlabelled = Mine(TensorDataset(torch.randn(300, 8)), batch_size=4, shuffle=True, drop_last=True)
iterator, restarts = iter(labelled), 0
for (other,) in unlabelled:
    try:
        (inputs,) = next(iterator)
    except StopIteration:
        restarts += 1
        iterator = iter(labelled)
        (inputs,) = next(iterator)
    loss = step(torch.cat([inputs, other]))
for epoch in range(3):
    for number, (inputs,) in enumerate(labelled):
        loss = step(inputs)
        if number == 7:
            break
for _ in range(40):
    loss = step(next(iter(unlabelled))[0])
for (first,), (second,) in zip(labelled, unlabelled, strict=False):
    loss = step(first + second)
print(restarts, Mine.started, len(labelled), len(order), hashlib.sha1(str(order).encode()).hexdigest()[:12], round(loss, 6))
print(torch.initial_seed(), torch.rand(3).tolist())
