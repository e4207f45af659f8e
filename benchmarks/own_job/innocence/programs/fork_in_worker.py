# Workers of a DataLoader that fork by themselves: Python 3.12 and newer warn where a process with several threads forks.
import os
import sys
import warnings

import torch
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


class Samples(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        if index % 16 == 0:
            if (child := os.fork()) == 0:
                os._exit(0)
            os.waitpid(child, 0)
        return torch.full((8,), index / 64)


def begin(worker):
    warnings.simplefilter("always")


torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in DataLoader(Samples(), batch_size=4, num_workers=2, worker_init_fn=begin):
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
print(loss.item().hex(), file=sys.stderr)
