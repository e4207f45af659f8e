"""A training job as users write it: a DataLoader with workers, epochs, and a validation after each epoch with a loader of its own.

It measures itself with CUDA events of its own in one step of five. The shares of forward, loss, backward and optimizer go to the file $STAMPS. Losses are
printed for the first two epochs, however long it runs.
"""

import argparse
import json
import os
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda:0")
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--steps", type=int, default=1500, help="in an epoch")
parser.add_argument("--width", type=int, default=8192)
parser.add_argument("--seconds", type=float, default=0.0, help="epochs are made for so long, and at least two")
args = parser.parse_args()

EPOCHS, BATCH, INPUTS, CLASSES, VALIDATED, STAMPED_EVERY, WARM_STEPS = 2, 256, 512, 10, 50, 5, 100


class Batches(Dataset):
    """Each item is a batch: what a worker does for it is light, and depends on the index alone."""

    def __init__(self, count):
        self.count = count
        self.inputs = torch.randn(BATCH, INPUTS, generator=torch.Generator().manual_seed(1))
        self.targets = torch.arange(BATCH) % CLASSES

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.inputs.roll(int(index), 0), self.targets.roll(int(index), 0)


def batches(count, seed):
    generator = torch.Generator().manual_seed(seed)
    return DataLoader(Batches(count), batch_size=None, shuffle=True, num_workers=args.workers, generator=generator, pin_memory=True)


torch.manual_seed(0)
device = torch.device(args.device)  # the current device stays the first one, as in many programs
model = nn.Sequential(
    nn.Linear(INPUTS, args.width), nn.ReLU(), nn.Linear(args.width, args.width), nn.ReLU(), nn.Linear(args.width, CLASSES)
).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
training, validation = batches(args.steps, 2), batches(VALIDATED, 3)
stream = torch.cuda.current_stream(device)
stamped, begun, epoch, steps = [], time.monotonic(), 0, 0
while epoch < EPOCHS or time.monotonic() - begun < args.seconds:
    for x, y in training:
        events = [torch.cuda.Event(enable_timing=True) for _ in range(5)] if steps % STAMPED_EVERY == 0 and steps >= WARM_STEPS else None
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        if events:
            events[0].record(stream)
        out = model(x)
        if events:
            events[1].record(stream)
        loss = nn.functional.cross_entropy(out, y)
        if events:
            events[2].record(stream)
        loss.backward()
        if events:
            events[3].record(stream)
        optimizer.step()
        optimizer.zero_grad()
        if events:
            events[4].record(stream)
            stamped.append(events)
        steps += 1
    with torch.no_grad():
        total = sum(nn.functional.cross_entropy(model(x.to(device)), y.to(device)) for x, y in validation)
    if epoch < EPOCHS:
        print(f"epoch {epoch}: loss {loss.item():.9g}, validation {total.item() / VALIDATED:.9g}", flush=True)
    epoch += 1
torch.cuda.synchronize(device)
if "STAMPS" in os.environ:
    seconds = [sum(events[i].elapsed_time(events[i + 1]) for events in stamped) for i in range(4)]
    with open(os.environ["STAMPS"], "w") as file:
        json.dump(
            dict(zip(("forward", "loss", "backward", "optimizer"), (of_part / sum(seconds) for of_part in seconds), strict=True)), file
        )
