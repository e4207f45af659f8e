"""A loop with short epochs, a function that writes checkpoints, and one that writes log records. Both do more than the call that shows them."""

import os
import sys
import tempfile
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __len__(self):
        return 320

    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.full((32,), index / 320), index % 10


def save(model, folder):
    path = os.path.join(folder, "model.pt")
    with open(path + ".part", "wb") as file:
        torch.save(model.state_dict(), file)
        os.fsync(file.fileno())
    time.sleep(0.02)
    os.replace(path + ".part", path)


class Log:
    def __init__(self, folder):
        self.file = open(os.path.join(folder, "log.txt"), "w")  # noqa: SIM115

    def write(self, model, loss):
        time.sleep(0.02)
        self.file.write(f"{loss} {sum(p.grad.norm().item() for p in model.parameters())}\n")
        self.file.flush()
        os.fsync(self.file.fileno())


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Slow(), batch_size=8, shuffle=True, num_workers=1)
    steps = 0
    with tempfile.TemporaryDirectory() as folder:
        log = Log(folder)
        for _ in range(int(sys.argv[1])):
            for x, y in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                steps += 1
                if steps % 3 == 0:
                    save(model, folder)
                if steps % 2 == 0:
                    log.write(model, loss.item())
    print(loss.item().hex(), os.fsync.__name__)


main()
