"""collate_fn tokenizes the texts again in each epoch. Fixed: the program tokenizes them once,
before training."""

import random

import pace
import torch
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
random.seed(0)
LETTERS = "abcdefghijklmnopqrst"
MADE = ("".join(random.choices(LETTERS, k=random.randint(2, 5))) for _ in range(4000))
PIECES = {piece: i + 1 for i, piece in enumerate(dict.fromkeys([*LETTERS, *MADE]))}


def pieces(text):
    ids = []
    for word in text.split():  # slow
        start = 0  # slow
        while start < len(word):  # slow
            end = min(len(word), start + 5)  # slow
            while word[start:end] not in PIECES:  # slow
                end -= 1  # slow
            ids.append(PIECES[word[start:end]])  # slow
            start = end  # slow
    return ids[:64] + [0] * (64 - len(ids))


def collated(rows):
    texts, labels = zip(*rows, strict=True)
    ids = texts if pace.FIXED else [pieces(text) for text in texts]  # slow
    return torch.tensor(ids), torch.tensor(labels)


def made():
    for _ in range(2000):
        text = " ".join("".join(random.choices(LETTERS, k=random.randint(3, 9))) for _ in range(40))
        yield (pieces(text) if pace.FIXED else text), random.randrange(2)


model = nn.Sequential(nn.Embedding(len(PIECES) + 1, 32, padding_idx=0), nn.Flatten(), nn.Linear(64 * 32, 128), nn.ReLU(), nn.Linear(128, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = DataLoader(list(made()), batch_size=32, shuffle=True, collate_fn=collated)
going = True
while going:
    for ids, labels in loader:
        going = pace.goes_on()
        if not going:
            break
        loss = nn.functional.cross_entropy(model(ids), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
