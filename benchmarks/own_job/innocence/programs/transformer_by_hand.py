# A small language model by hand with checkpointing of blocks, tied weights, a cosine schedule and generation between epochs.
import hashlib
import math

import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.one, self.two = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(width, 2 * width), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(2 * width, width)
        )

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(self.one(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.two(x))


class GPT(torch.nn.Module):
    def __init__(self, words=32, width=16):
        super().__init__()
        self.words, self.places = torch.nn.Embedding(words, width), torch.nn.Parameter(torch.zeros(24, width))
        self.blocks = torch.nn.ModuleList(Block(width) for _ in range(2))
        self.head = torch.nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens):
        x = self.words(tokens) + self.places[: tokens.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.training else block(x)
        return self.head(x)

    @torch.no_grad()
    def generate(self, count):
        self.eval()
        tokens = torch.zeros(1, 1, dtype=torch.long)
        for _ in range(count):
            tokens = torch.cat([tokens, torch.multinomial(self(tokens)[:, -1].softmax(-1), 1)], 1)
        self.train()
        return tokens[0].tolist()


torch.manual_seed(0)
model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
text = (torch.arange(4000) ** 2 // 7) % 32
for step in range(90):
    for group in optimizer.param_groups:
        group["lr"] = 3e-3 * (1 + math.cos(math.pi * step / 90)) / 2
    starts = torch.randint(0, len(text) - 25, (8,))
    rows = torch.stack([text[start : start + 25] for start in starts])
    loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 30 == 29:
        print(step, round(loss.item(), 5), model.generate(12))
print(sum(p.numel() for p in model.parameters()), hashlib.sha1(model.words.weight.detach().numpy().tobytes()).hexdigest()[:12])
