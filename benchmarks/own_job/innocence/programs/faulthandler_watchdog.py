# design: stdout: faulthandler lists the thread that reads stacks, without a frame
# A watchdog for steps that hang: faulthandler timers, and a thread that names each thread of sys._current_frames().
import faulthandler
import sys
import threading
import time
import traceback

import torch

found, errors = set(), []
stop = threading.Event()


def watch():
    while not stop.wait(0.02):
        try:
            names = {thread.ident: thread.name for thread in threading.enumerate()}
            found.update(names[ident] for ident in sys._current_frames())
        except Exception as error:
            errors.append(type(error).__name__)


watchdog = threading.Thread(target=watch, name="watchdog", daemon=True)
watchdog.start()
torch.manual_seed(0)
model = torch.nn.Linear(64, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(150):
    faulthandler.dump_traceback_later(30)
    optimizer.zero_grad()
    loss = model(torch.randn(16, 64)).square().mean()
    loss.backward()
    optimizer.step()
    time.sleep(0.005)
faulthandler.cancel_dump_traceback_later()
with open("stacks.txt", "w+") as file:
    faulthandler.dump_traceback(file, all_threads=True)
    file.seek(0)
    print("stacks", file.read().count("hread 0x"))
import os

os.remove("stacks.txt")
stop.set()
print(sorted(found), sorted(set(errors)), round(loss.item(), 6))
print([traceback.extract_stack(frame)[-1].name for frame in sys._current_frames().values()].count("watch") <= 1)
