# Batches that make their parts when they are asked for, a module of the program with the name of one of Python's, and warnings that are shown once.
import collections.abc
import pathlib
import random
import sys
import warnings

import torch

pathlib.Path("statistics.py").write_text("import random\nprint('the statistics of the program', random.random())\n")
sys.path.insert(0, ".")
random.seed(1)
torch.manual_seed(0)


class LazyBatch(collections.abc.Mapping):
    made = {"image": lambda: torch.rand(4, 8), "mask": lambda: torch.rand(4, 1)}
    asked = collections.Counter()

    def __getitem__(self, name):
        self.asked[name] += 1
        return self.made[name]()

    def __iter__(self):
        return iter(self.made)

    def __len__(self):
        return len(self.made)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.fill = torch.nn.Parameter(torch.tensor(0.3))

    def forward(self, batch):
        mask = batch["mask"]
        return self.layer(mask.masked_fill(mask < 0.5, self.fill))


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(30):
    optimizer.zero_grad()
    loss = model(LazyBatch()).square().mean()
    loss.backward()
    optimizer.step()
    warnings.warn("shown once", stacklevel=1)
print(dict(LazyBatch.asked), loss.item().hex(), model.fill.item().hex(), random.random())
import statistics  # noqa: E402

print(statistics.__file__.endswith("statistics.py"), random.random())
