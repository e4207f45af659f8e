"""A small training: model, optimizer with a scheduler, and DataLoader are made when this module is imported, as in an earlier cell of a notebook."""

import hashlib
import sys
import time
import warnings
from types import FunctionType

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")  # a look at old names in torch warns
torch.set_num_threads(1)
torch.manual_seed(3)


class Samples(Dataset):
    def __len__(self):
        return 1 << 16

    def __getitem__(self, index):
        time.sleep(0.001)
        return torch.full((16,), index / (1 << 16))


model = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.2), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 50)
loader = DataLoader(Samples(), batch_size=4, shuffle=True)
losses = []


def step(batch):
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    scheduler.step()
    losses.append(loss.item())


def train(steps, each=lambda n: None):
    """`each` is called after each step, and ends the training where it returns something."""
    for n, batch in enumerate(loader, 1):
        step(batch)
        if each(n) or n == steps:
            break


def digest():
    """Of all weights and losses so far, and of the state of the random generator."""
    parts = [
        *(weight.detach().numpy().tobytes() for weight in model.parameters()),
        repr(losses).encode(),
        torch.get_rng_state().numpy().tobytes(),
    ]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def attributes():
    """What each module of torch and of Python, and each class in one, holds under each name."""
    holders = {}
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").partition(".")[0] in ("torch", "builtins", "os", "logging"):
            holders[id(module)] = module
            holders |= {id(value): value for value in list(vars(module).values()) if isinstance(value, type)}
    holders[id(optimizer)] = optimizer
    return {
        (id(holder), getattr(holder, "__name__", "optimizer"), name): value
        for holder in holders.values()
        for name, value in list(vars(holder).items())
    }


def of_gpuconsole():
    """The functions of torch and of Python that are hooks: those whose code belongs to the agent."""
    return sorted(
        f"{holder}.{name}"
        for (_, holder, name), value in attributes().items()
        if isinstance(value, FunctionType) and "gpuconsole" in value.__code__.co_filename
    )


def changed(before):
    """The names of attributes that differ from `before`. Modules that were imported since then do not count."""
    counts = ("step", "__call__", "_step_count")
    after = attributes()
    known = {key[0] for key in before}
    return sorted(
        f"{holder}.{name}"
        for (number, holder, name), value in {**before, **after}.items()
        if number in known
        and before.get((number, holder, name)) is not after.get((number, holder, name))
        and (callable(value) or name in counts)
    )
