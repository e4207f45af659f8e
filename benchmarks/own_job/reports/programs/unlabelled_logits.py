"""A masked language model computes the scores of all tokens, and 85 % of them have no label. Fixed:
it computes the scores of the masked tokens only."""

import pace
import torch
from torch import nn

torch.manual_seed(0)
WORDS = 3000


class Masked(nn.Module):
    def __init__(self, wide=96):
        super().__init__()
        self.words = nn.Embedding(WORDS, wide)
        layer = nn.TransformerEncoderLayer(wide, 4, 2 * wide, dropout=0.0, batch_first=True)
        self.body, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(wide, WORDS)

    def forward(self, ids, labels):
        hidden = self.body(self.words(ids))
        if pace.FIXED:
            known = labels != -100
            return self.head(hidden[known]), labels[known]
        return self.head(hidden).flatten(0, 1), labels.flatten()  # slow


model = Masked()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
text = torch.randint(1, WORDS, (512, 64))
while pace.goes_on():
    ids = text[torch.randint(512, (16,))]
    masked = torch.rand(ids.shape) < 0.15
    scores, labels = model(ids.masked_fill(masked, 0), ids.masked_fill(~masked, -100))
    loss = nn.functional.cross_entropy(scores, labels)  # slow
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
