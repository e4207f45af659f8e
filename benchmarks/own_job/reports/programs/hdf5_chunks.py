"""Random rows are read from a compressed HDF5 file whose chunks hold 256 rows. Fixed: one row for each chunk, not compressed."""

import h5py
import numpy as np
import pace
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FILE = "fixed.h5" if pace.FIXED else "rows.h5"


def write():
    rows = (np.random.default_rng(0).standard_normal((8192, 512)) * 20).astype(np.int16).astype(np.float32)
    with h5py.File(FILE, "w") as file:
        if pace.FIXED:
            file.create_dataset("x", data=rows, chunks=(1, 512))
        else:
            file.create_dataset("x", data=rows, chunks=(256, 512), compression="gzip")


class Rows(Dataset):
    def __init__(self):
        self.file = None

    def __len__(self):
        return 8192

    def __getitem__(self, index):
        if self.file is None:
            self.file = h5py.File(FILE, "r")
        row = self.file["x"][index]  # slow
        return torch.from_numpy(row), index % 10


def main():
    torch.manual_seed(0)
    write()
    loader = DataLoader(Rows(), batch_size=16, shuffle=True, num_workers=1)
    model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
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


if __name__ == "__main__":
    main()
