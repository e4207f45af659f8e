# Warnings with stacklevel out of forward, an optimizer and a scheduler: the file, the line and the count that are blamed.
import collections
import warnings

import torch

shown = collections.Counter()


def show(message, category, filename, lineno, file=None, line=None):
    shown[filename.rsplit("/", 1)[-1], lineno, category.__name__, str(message)[:50]] += 1


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def forward(self, inputs):
        for level in range(1, 6):
            warnings.warn(f"forward {level}", stacklevel=level)
        return self.layer(inputs)


class Own(torch.optim.SGD):
    def step(self, closure=None):
        for level in range(1, 5):
            warnings.warn(f"step {level}", DeprecationWarning, stacklevel=level)
        return super().step(closure)


torch.manual_seed(0)
model = Net()
optimizer = Own(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
warnings.showwarning = show
scheduler.step()
for mode in ("always", "default"):
    warnings.simplefilter(mode)
    for _ in range(60):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
for key, count in sorted(shown.items()):
    print(*key, count)
print(len(warnings.filters), round(loss.item(), 6))
