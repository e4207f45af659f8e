# Ends with daemon threads that work, atexit functions in their order, a thread that is joined late, and exit code 7.
# exit: 7
import atexit
import sys
import threading
import time

import torch

for name in ("first", "second", "third"):
    atexit.register(lambda name=name: print("at exit", name, threading.active_count() >= 1, flush=True))
stop = threading.Event()


def beat():
    while True:
        time.sleep(0.01)


def late():
    stop.wait(30)
    print("late thread ends", flush=True)


threading.Thread(target=beat, daemon=True, name="heartbeat").start()
threading.Thread(target=late, name="late").start()
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(100):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
print(sorted(thread.name for thread in threading.enumerate()), threading.active_count(), round(loss.item(), 6))
stop.set()
sys.exit(7)
