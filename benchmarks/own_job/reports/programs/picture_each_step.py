"""A picture of the losses is drawn and saved in each step. Fixed: each hundredth."""

import pace
import torch
from PIL import Image, ImageDraw
from torch import nn

torch.manual_seed(0)
losses = []


def plot(losses):
    image = Image.new("RGB", (800, 400), "white")
    points = [(800 * n / max(1, len(losses) - 1), 400 - 200 * value) for n, value in enumerate(losses[-500:])]
    ImageDraw.Draw(image).line(points, fill="black", width=2)  # slow
    image.save("losses.png")  # slow


model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data, labels = torch.randn(4096, 64), torch.randint(0, 4, (4096,))
while pace.goes_on():
    at = torch.randint(4096, (128,))
    loss = nn.functional.cross_entropy(model(data[at]), labels[at])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    with pace.part():
        if len(losses) % (100 if pace.FIXED else 1) == 0:
            plot(losses)
