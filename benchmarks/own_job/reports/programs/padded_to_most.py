"""Each batch of short texts is padded to the length that the model supports. Fixed: to its own longest text."""

import pace
import torch
from torch import nn

torch.manual_seed(0)
MOST = 96


class Judge(nn.Module):
    def __init__(self, wide=64):
        super().__init__()
        self.words = nn.Embedding(2000, wide, padding_idx=0)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(wide, 4, 3 * wide, dropout=0.0, batch_first=True) for _ in range(2))
        self.out = nn.Linear(wide, 3)

    def forward(self, ids):
        x, empty = self.words(ids), ids == 0  # slow
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=empty)
        return self.out(x.masked_fill(empty[..., None], 0).sum(1))


def batch(texts):
    longest = max(map(len, texts)) if pace.FIXED else MOST  # slow
    ids = torch.zeros(len(texts), longest, dtype=torch.long)
    for row, text in zip(ids, texts, strict=True):
        row[: len(text)] = text
    return ids


model = Judge()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
texts = [torch.randint(1, 2000, (int(n),)) for n in torch.randint(8, 25, (2048,))]
while pace.goes_on():
    at = torch.randint(2048, (16,)).tolist()
    ids = batch([texts[n] for n in at])
    loss = nn.functional.cross_entropy(model(ids), torch.tensor([n % 3 for n in at]))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
