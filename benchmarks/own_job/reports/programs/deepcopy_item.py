"""Each item is a deep copy of its description. Fixed: only the top level is copied."""

import copy

import pace
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Annotated(Dataset):
    def __init__(self):
        self.items = [{"id": n, "boxes": [[k, k + 1, k + 2, k + 3] for k in range(60)], "label": n % 5} for n in range(4000)]

    def __len__(self):
        return 4000

    def __getitem__(self, index):
        item = copy.copy(self.items[index]) if pace.FIXED else copy.deepcopy(self.items[index])  # slow
        boxes = torch.tensor(item.pop("boxes"), dtype=torch.float32)
        return boxes.flatten(), item["label"]


torch.manual_seed(0)
loader = DataLoader(Annotated(), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(240, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 5))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
going = pace.goes_on()
while going:
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not (going := pace.goes_on()):
            break
