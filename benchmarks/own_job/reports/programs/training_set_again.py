"""After each epoch the whole training set goes through the model again, for its accuracy. Fixed: the accuracy is summed up while training."""

import pace
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    right = 0
    for x, y in loader:  # slow
        right += (model(x).argmax(1) == y).sum().item()  # slow
    model.train()
    return right


model = nn.Sequential(nn.Linear(128, 384), nn.ReLU(), nn.Linear(384, 384), nn.ReLU(), nn.Linear(384, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
data = TensorDataset(torch.randn(6400, 128), torch.randint(0, 10, (6400,)))
loader, again = DataLoader(data, batch_size=64, shuffle=True), DataLoader(data, batch_size=64)
going = True
while going:
    right = 0
    for x, y in loader:
        going = pace.goes_on()
        if not going:
            break
        out = model(x)
        loss = nn.functional.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if pace.FIXED:
            right += (out.argmax(1) == y).sum().item()
    if going and not pace.FIXED:
        with pace.part():
            right = accuracy(model, again)  # slow
