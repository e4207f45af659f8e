# Threads that build tuples from generators all the time: f(*generator), zip(*generator), tuple(generator).
import threading
import time

import torch

torch.manual_seed(0)
errors, done = [], threading.Event()
counts = [0, 0, 0]


def slow(numbers):
    for number in numbers:
        time.sleep(0.0005)
        yield number


def add(*numbers):
    return sum(numbers)


def work(kind):
    makers = [lambda: add(*slow(range(12))), lambda: len(list(zip(*slow([(1, 2)] * 12)))), lambda: len(tuple(slow(range(12))))]
    while not done.is_set():
        try:
            makers[kind]()
            counts[kind] += 1
        except Exception as error:
            errors.append(f"{kind}: {type(error).__name__}")


threads = [threading.Thread(target=work, args=(kind,)) for kind in range(3)]
for thread in threads:
    thread.start()
model = torch.nn.Linear(32, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(300):
    loss = model(torch.randn(16, 32)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.003)
done.set()
for thread in threads:
    thread.join()
print("errors", sorted(set(errors)), "all worked", all(count > 20 for count in counts), "loss", round(loss.item(), 6))
