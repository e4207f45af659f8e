"""A policy generates 40 tokens in each step from the start of the text. Fixed: it keeps the state of past tokens."""

import pace
import torch
from torch import nn

torch.manual_seed(0)


class Policy(nn.Module):
    def __init__(self, words=128, wide=128):
        super().__init__()
        self.embed, self.cell, self.head = nn.Embedding(words, wide), nn.GRU(wide, wide, 2, batch_first=True), nn.Linear(wide, words)

    def forward(self, ids, state=None):
        h, state = self.cell(self.embed(ids), state)
        return self.head(h), state

    @torch.no_grad()
    def generate(self, prompt, count):
        ids, state, new = prompt, None, prompt
        for _ in range(count):
            logits, after = self(new, state) if pace.FIXED else self(ids)  # slow
            token = torch.multinomial(logits[:, -1].softmax(-1), 1)
            ids = torch.cat([ids, token], 1)
            if pace.FIXED:
                new, state = token, after
        return ids


policy = Policy()
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4)
while pace.goes_on():
    prompt = torch.randint(128, (2, 8)).repeat_interleave(8, 0)
    with pace.part():
        ids = policy.generate(prompt, 40)  # slow
    reward = (ids[:, 8:] % 7 == 0).float().mean(1).view(2, 8)
    gain = ((reward - reward.mean(1, keepdim=True)) / (reward.std(1, keepdim=True) + 1e-4)).view(-1)
    logp = policy(ids[:, :-1])[0].log_softmax(-1).gather(-1, ids[:, 1:, None])[:, 7:, 0]
    loss = -(gain[:, None] * logp).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
