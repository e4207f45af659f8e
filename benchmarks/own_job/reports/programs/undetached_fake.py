"""The backward pass of the discriminator's loss also runs through the generator, and nobody uses
these gradients. Fixed: the fake pictures are detached."""

import pace
import torch
from torch import nn

torch.manual_seed(0)

generator = nn.Sequential(
    nn.Linear(64, 64 * 49), nn.Unflatten(1, (64, 7, 7)), nn.ReLU(),
    nn.ConvTranspose2d(64, 48, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(48, 1, 4, 2, 1), nn.Tanh(),
)  # fmt: skip
discriminator = nn.Sequential(nn.Conv2d(1, 8, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(8, 16, 4, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(784, 1))
g_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
d_optimizer = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
score = nn.BCEWithLogitsLoss()
pictures, ones, zeros = torch.rand(1024, 1, 28, 28) * 2 - 1, torch.ones(32, 1), torch.zeros(32, 1)
while pace.goes_on():
    real = pictures[torch.randint(1024, (32,))]
    fake = generator(torch.randn(32, 64))
    if pace.FIXED:
        fake = fake.detach()
    loss = score(discriminator(real), ones) + score(discriminator(fake), zeros)  # slow
    d_optimizer.zero_grad()
    loss.backward()  # slow
    d_optimizer.step()
    loss = score(discriminator(generator(torch.randn(32, 64))), ones)
    g_optimizer.zero_grad()
    loss.backward()
    g_optimizer.step()
