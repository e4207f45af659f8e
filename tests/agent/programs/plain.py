"""A plain loop with a DataLoader. Ends with exit code 3, and prints what the innocence tests compare."""

import subprocess
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __len__(self):
        return 640

    def __getitem__(self, index):
        time.sleep(0.0005)
        return torch.full((32,), index / 640), index % 10


torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
steps = 0
for _ in range(int(sys.argv[1])):
    for x, y in DataLoader(Samples(), batch_size=8, shuffle=True):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
print("steps", steps, "loss", loss.item(), flush=True)
print("path", [entry for entry in sys.path if "scratch" in entry], flush=True)
print(
    "child",
    subprocess.run([sys.executable, "-c", "import sitecustomize; print(sitecustomize.WHOSE)"], capture_output=True, text=True).stdout,
)
print("to stderr", file=sys.stderr)
iter(DataLoader(Samples(), pin_memory=True))  # torch warns, and names the line from which its caller was called
sys.exit(3)
