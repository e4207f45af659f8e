"""Loops that change what a sample depends on, after it may have been loaded: `ahead.py NAME FOLDER`. Prints the order of the samples, and then what the program
computes. Most come from a reading of the agent: each is a usual way of training, and workers of its DataLoader would load other samples."""

import argparse
import copy
import hashlib
import itertools
import multiprocessing
import pathlib
import socket
import sys
import threading
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

name, folder = sys.argv[1], pathlib.Path(sys.argv[2])
COUNT, BATCH, STEPS, EVERY = 200, 4, 250, 10
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(9, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 1))
teacher = copy.deepcopy(model).eval()
settings = argparse.Namespace(level=0.0)
numbers = np.random.default_rng(5)
loads = multiprocessing.Value("i", 0)
replay = np.memmap(folder / "replay.bin", "float32", "w+", shape=(COUNT,)) if name == "replay" else None
labels = folder / "labels.txt"
labels.write_text("0")
client = None


class Item:
    def __init__(self, index):
        self.index, self.memory = index, 0.0


class Samples(Dataset):
    def __init__(self):
        self.labels, self.cache, self.broken = [0.0] * COUNT, {}, []
        self.items = [Item(index) for index in range(COUNT)]

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        time.sleep(0.0005)
        if name == "objects":
            return self.items[index]
        return index, float(KINDS[name](self, index))


def ask(index):
    """One question and its answer, over a connection that the program keeps."""
    client.sendall(b"%8d" % index)
    return client.recv(8, socket.MSG_WAITALL)


def cached(data, index):
    return data.cache.setdefault(index, index % 7)


def noted(data, index):
    if index % 5 == 0 and index not in data.broken:
        data.broken.append(index)
    return 0


def counted(data, index):
    with loads:
        loads.value += 1
    return 0


def drawn(data, index):
    return numbers.normal() if index % 40 == 0 else 0


def taught(data, index):
    with torch.no_grad():
        return teacher(torch.full((1, 9), index / COUNT))


KINDS = {
    "list": lambda data, index: data.labels[index],
    "settings": lambda data, index: settings.level,
    "teacher": taught,
    "cache": cached,
    "objects": None,
    "endless": lambda data, index: 0,
    "file": lambda data, index: labels.read_text(),
    "replay": lambda data, index: replay[index],
    "random": drawn,
    "connection": lambda data, index: ask(index),
    "broken": noted,
    "counter": counted,
}


def answer(server):
    connection, _ = server.accept()
    while question := connection.recv(8, socket.MSG_WAITALL):
        connection.sendall(question)


class Endless:
    """A batch sampler that begins again and again, as in YOLO's InfiniteDataLoader."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from iter(self.sampler)


def main():
    global client
    if name == "connection":
        server = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=answer, args=(server,), daemon=True).start()
        client = socket.create_connection(server.getsockname())
    data = Samples()
    collate = list if name == "objects" else None
    loader = DataLoader(data, BATCH, shuffle=True, collate_fn=collate, generator=None if name == "endless" else torch.Generator())
    if name == "endless":
        object.__setattr__(loader, "batch_sampler", Endless(loader.batch_sampler))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    order, values = [], hashlib.sha1()
    for step, batch in zip(range(STEPS), itertools.chain.from_iterable(itertools.repeat(loader)), strict=False):
        indices = [item.index for item in batch] if collate else batch[0].tolist()
        value = [item.memory for item in batch] if collate else batch[1].tolist()
        order += indices
        values.update(repr(value).encode())
        given = torch.tensor([[index / COUNT] * 8 + [number] for index, number in zip(indices, value, strict=True)])
        output = model(given)
        optimizer.zero_grad()
        output.pow(2).mean().backward()
        optimizer.step()
        for item, number in zip(batch if collate else [], output.tolist(), strict=False):
            item.memory += number[0]
        if step % EVERY == 0:
            data.labels[(step * 7) % COUNT :: 3] = [float(step)] * len(data.labels[(step * 7) % COUNT :: 3])
            settings.level = float(step)
            teacher.load_state_dict(model.state_dict())
            labels.write_text(str(step))
            if replay is not None:
                replay[:] = step
    passes = [sorted(order[begin : begin + COUNT]) == list(range(COUNT)) for begin in range(0, len(order), COUNT)]
    print("order", passes if name == "endless" else hashlib.sha1(repr(order).encode()).hexdigest()[:10], flush=True)
    kept = sorted(data.cache), data.broken, loads.value, float(sum(item.memory for item in data.items)), numbers.random()
    print("values", values.hexdigest()[:10], hashlib.sha1(repr(kept).encode()).hexdigest()[:10])
    print("weights", hashlib.sha1(model[3].weight.detach().numpy().tobytes()).hexdigest()[:10], torch.rand(1).item())


main()
