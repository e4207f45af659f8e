"""The program draws items for a user until enough of them are new, and looks each item up in a
list. Fixed: random.sample."""

import random

import pace
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
random.seed(0)


class Histories(Dataset):
    def __init__(self):
        self.consumed = [random.sample(range(5000), random.randint(41, 46)) for _ in range(2000)]

    def __len__(self):
        return len(self.consumed)

    def __getitem__(self, i):
        items = self.drawn(self.consumed[i], 40)  # slow
        return torch.tensor(items[:-1]), items[-1]

    def drawn(self, items, count):
        if pace.FIXED:
            return random.sample(items, count)
        sampled = []
        while len(sampled) < count:  # slow
            item = items[int(random.random() * len(items))]  # slow
            if item not in sampled:  # slow
                sampled.append(item)  # slow
        return sampled


class Watched(nn.Module):
    def __init__(self, wide=32):
        super().__init__()
        self.items, self.body = nn.EmbeddingBag(5000, wide, sparse=True), nn.Linear(wide, wide)

    def forward(self, items, wanted):
        return torch.relu(self.body(self.items(items))) @ self.items(wanted[:, None]).T


model = Watched()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = DataLoader(Histories(), batch_size=64, shuffle=True)
going = True
while going:
    for items, wanted in loader:
        going = pace.goes_on()
        if not going:
            break
        loss = nn.functional.cross_entropy(model(items, wanted), torch.arange(len(items)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
