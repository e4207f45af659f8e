# The order in which objects are deleted: batches, a model that a function drops, an iterator, and what is left at exit.
import atexit

import torch
from torch.utils.data import DataLoader, Dataset

order = []


class Noted:
    def __init__(self, name):
        self.name = name

    def __del__(self):
        order.append(self.name)
        if self.name.startswith("last"):
            print("deleted", self.name)


class Data(Dataset):
    def __init__(self, name):
        self.note = Noted(name)

    def __len__(self):
        return 40

    def __getitem__(self, number):
        return torch.full((8,), number / 40)


class Net(torch.nn.Module):
    def __init__(self, name):
        super().__init__()
        self.layer, self.note = torch.nn.Linear(8, 1), Noted(name)

    def forward(self, inputs):
        return self.layer(inputs)


def trial(number):
    torch.manual_seed(number)
    model = Net(f"model {number}")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Data(f"data {number}"), batch_size=2)
    for epoch in range(2):
        for inputs in loader:
            optimizer.zero_grad()
            loss = model(inputs).square().mean()
            loss.backward()
            optimizer.step()
        order.append(f"epoch {epoch}")
    return loss.item()


for number in range(4):
    value = trial(number)
    order.append(f"trial {number}")
print(order)
last_model, last_data = Net("last model"), Noted("last data")
optimizer = torch.optim.SGD(last_model.parameters(), lr=0.01)
last_model(torch.ones(1, 8)).sum().backward()
optimizer.step()
atexit.register(print, "first registered")
atexit.register(print, "second registered")
print(round(value, 6))
