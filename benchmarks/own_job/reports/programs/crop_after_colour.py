"""The program changes the colours of the whole picture and then crops it. Fixed: it crops first."""

import numpy as np
import pace
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class Pictures(Dataset):
    def __init__(self):
        self.pixels = np.random.default_rng(0).integers(0, 256, (40, 320, 320, 3), dtype=np.uint8)

    def __len__(self):
        return 2000

    def __getitem__(self, i):
        chance = np.random.default_rng(i)
        light, gamma, pale = chance.uniform(0.6, 1.4, 3)
        y, x = chance.integers(0, 320 - 64, 2)
        picture = self.pixels[i % 40]
        if pace.FIXED:
            picture = picture[y : y + 64, x : x + 64]
        picture = self.distorted(picture, light, gamma, pale)  # slow
        if not pace.FIXED:
            picture = picture[y : y + 64, x : x + 64]
        return torch.from_numpy(np.ascontiguousarray(picture.transpose(2, 0, 1))), i % 10

    def distorted(self, picture, light, gamma, pale):
        value = picture.astype(np.float32) / 255  # slow
        value = np.clip(value * np.float32(light), 0, 1)  # slow
        value = value ** np.float32(gamma)  # slow
        grey = value @ np.array([0.3, 0.6, 0.1], np.float32)  # slow
        return np.clip(grey[..., None] + (value - grey[..., None]) * np.float32(pale), 0, 1)  # slow


model = nn.Sequential(nn.Conv2d(3, 16, 5, 3), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(Pictures(), batch_size=8, shuffle=True)
going = True
while going:
    for pictures, labels in loader:
        going = pace.goes_on()
        if not going:
            break
        loss = nn.functional.cross_entropy(model(pictures), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
