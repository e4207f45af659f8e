"""An LSTM is a loop of 100 cells in forward. Fixed: nn.LSTM."""

import pace
import torch
from torch import nn

torch.manual_seed(0)


class ByHand(nn.Module):
    def __init__(self, wide=64):
        super().__init__()
        self.gates, self.wide = nn.Linear(16 + wide, 4 * wide), wide

    def forward(self, x):
        h, c, out = x.new_zeros(len(x), self.wide), x.new_zeros(len(x), self.wide), []
        for t in range(x.shape[1]):  # slow
            i, f, g, o = self.gates(torch.cat([x[:, t], h], 1)).chunk(4, 1)  # slow
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)  # slow
            h = torch.sigmoid(o) * torch.tanh(c)  # slow
            out.append(h)  # slow
        return torch.stack(out, 1), None


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.LSTM(16, 64, batch_first=True) if pace.FIXED else ByHand()
        self.head = nn.Linear(64, 5)

    def forward(self, x):
        return self.head(self.body(x)[0])


model = Tagger()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
while pace.goes_on():
    x, y = torch.randn(16, 100, 16), torch.randint(0, 5, (16, 100))
    loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
