"""Jobs of the kind that users bring, on a GPU: `python jobs.py KIND`. Each prints its losses and a digest of its weights."""

import hashlib
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

KIND = sys.argv[1]
STEPS = 60


class Samples(Dataset):
    """Vectors that are made on the CPU of the worker."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(64, generator=generator), index % 10


def network(device):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)


def train_step(model, optimizer, x, y, passes=1):
    optimizer.zero_grad()
    for _ in range(passes):
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
    optimizer.step()
    return loss


def epochs(device, workers=2):
    """Four epochs with workers that are started anew for each, and a validation with workers after each."""
    model = network(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    training = DataLoader(Samples(160), 8, shuffle=True, num_workers=workers, pin_memory=True)
    validation = DataLoader(Samples(32), 8, num_workers=workers)
    for epoch in range(4):
        for x, y in training:
            loss = train_step(model, optimizer, x.to(device, non_blocking=True), y.to(device, non_blocking=True))
        with torch.no_grad():
            right = sum((model(x.to(device)).argmax(1) == y.to(device)).sum().item() for x, y in validation)
        print(epoch, f"{loss.item():.6f}", right, flush=True)
    return model


def long_epochs(device):
    """One long epoch with a worker: a change of num_workers forks while steps are under way."""
    model = network(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for x, y in DataLoader(Samples(8 * 600), 8, num_workers=1):
        loss = train_step(model, optimizer, x.to(device), y.to(device))
        losses.append(loss.detach())
    print(f"{torch.stack(losses).sum().item():.6f}", flush=True)
    return model


def plain(device, passes=1, steps=STEPS):
    model = network(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        x, y = torch.randn(32, 64, generator=generator), torch.randint(0, 10, (32,), generator=generator)
        loss = train_step(model, optimizer, x.to(device), y.to(device), passes)
        if step % 20 == 19:
            print(step, f"{loss.item():.6f}", flush=True)
    return model


def second_device():
    """A model on the second GPU, while the first one is the current device."""
    return plain("cuda:1")


def tf32():
    """The interface of torch 2.9 for TF32: with it, the older one raises."""
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    return plain("cuda")


def graph():
    """Some steps as ever, then a whole step as a CUDA graph."""
    model = network("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)
    x, y = torch.randn(32, 64, device="cuda"), torch.randint(0, 10, (32,), device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(5):
            train_step(model, optimizer, x, y)
    torch.cuda.current_stream().wait_stream(side)
    time.sleep(1.5)  # a message of the agent is due at the end of the next step
    captured = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(captured):
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    for step in range(STEPS):
        captured.replay()
        if step in (20, 40):
            time.sleep(1.0)  # a message is due, and then the command has come
    print(f"{loss.item():.6f}", flush=True)
    return model


def in_backward():
    """An optimizer for each parameter that steps as soon as its gradient is there: on a GPU in a thread of torch's."""
    model = network("cuda")
    optimizers = {parameter: torch.optim.SGD([parameter], lr=1e-3) for parameter in model.parameters()}

    def update(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    generator = torch.Generator().manual_seed(1)
    for step in range(STEPS):
        x, y = torch.randn(32, 64, generator=generator), torch.randint(0, 10, (32,), generator=generator)
        loss = nn.functional.cross_entropy(model(x.to("cuda")), y.to("cuda"))
        loss.backward()
        if step % 20 == 19:
            print(step, f"{loss.item():.6f}", flush=True)
    return model


class Annotated(torch.Tensor):
    """A subclass that finds what to do by the function of torch.Tensor that it has seen at its definition, as torchvision and torchao do."""

    handled = {torch.Tensor.to, torch.Tensor.item}

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result if func in cls.handled else result.as_subclass(torch.Tensor) if isinstance(result, cls) else result


def annotated():
    """Batches of a subclass, whose `to` keeps the class."""
    model = network("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(1)
    kinds = set()
    for _ in range(STEPS):
        x, y = torch.randn(32, 64, generator=generator).as_subclass(Annotated), torch.randint(0, 10, (32,), generator=generator)
        x = x.to("cuda")
        kinds.add(type(x).__name__)
        loss = train_step(model, optimizer, x.as_subclass(torch.Tensor), y.to("cuda"))
        time.sleep(0.005)
    print(sorted(kinds), f"{loss.item():.6f}", flush=True)
    return model


JOBS = {
    "in_backward": in_backward,
    "annotated": annotated,
    "epochs": lambda: epochs("cuda"),
    "long_epochs": lambda: long_epochs("cuda"),
    "second_device": second_device,
    "tf32": tf32,
    "graph": graph,
}
trained = JOBS[KIND]()
torch.cuda.synchronize(next(trained.parameters()).device)
weights = b"".join(parameter.detach().cpu().numpy().tobytes() for parameter in trained.parameters())
print(hashlib.sha256(weights).hexdigest()[:16], "memory", torch.cuda.max_memory_allocated(next(trained.parameters()).device), flush=True)
