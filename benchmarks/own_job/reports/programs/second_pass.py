"""Two losses each send the same batch through the network. Fixed: one pass gives the answers of both."""

import pace
import torch
from torch import nn

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 24, 3, 2, 1), nn.ReLU(), nn.Conv2d(24, 32, 3, 2, 1), nn.ReLU()
        )
        self.digit, self.colour = nn.Linear(32, 10), nn.Linear(32, 8)

    def forward(self, x):
        features = self.body(x).mean((2, 3))
        return self.digit(features), self.colour(features)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
data, digits, colours = torch.randn(1024, 3, 28, 28), torch.randint(10, (1024,)), torch.randint(8, (1024,))
while pace.goes_on():
    at = torch.randint(1024, (32,))
    x = data[at]
    digit, colour = model(x)
    if not pace.FIXED:
        with pace.part():
            _, colour = model(x)  # slow
    loss = nn.functional.cross_entropy(digit, digits[at])
    loss = loss + 0.1 * nn.functional.cross_entropy(colour, colours[at])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
