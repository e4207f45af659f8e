# Two models train in two threads, each with its own generator, while a third thread reads weights; names and counts of threads.
import hashlib
import threading

import torch

torch.set_num_threads(1)
results, stop = {}, threading.Event()
nets = {}


def train(name, seed):
    generator = torch.Generator().manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) / 4)
    nets[name] = model
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(150):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
    results[name] = round(loss.item(), 6), hashlib.sha1(model[0].weight.detach().numpy().tobytes()).hexdigest()[:12]


def read():
    while not stop.wait(0.01):
        for model in list(nets.values()):
            [p.detach().sum().item() for p in model.parameters()]


reader = threading.Thread(target=read, name="reader")
reader.start()
trainers = [threading.Thread(target=train, args=(name, seed), name=name) for seed, name in enumerate(("student", "teacher"))]
for thread in trainers:
    thread.start()
for thread in trainers:
    thread.join()
stop.set()
reader.join()
print(sorted(results.items()), [thread.name for thread in threading.enumerate()], threading.Thread(target=read).name)
