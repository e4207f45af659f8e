# A job of a cluster that can be preempted: SIGUSR1 and SIGTERM raise in the loop, which saves, and resumes.
import os
import signal
import threading
import time

import torch


class Preempted(BaseException):
    pass


def on_term(number, frame):
    raise Preempted(signal.Signals(number).name)


for number in (signal.SIGUSR1, signal.SIGTERM):
    signal.signal(number, on_term)
torch.manual_seed(0)
model = torch.nn.Linear(32, 32)
optimizer = torch.optim.AdamW(model.parameters())
caught, sent = [], 0
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt")
for sent in range(20):
    number = (signal.SIGUSR1, signal.SIGTERM)[sent % 2]
    timer = threading.Timer(0.02 + 0.003 * sent, os.kill, (os.getpid(), number))
    timer.start()
    begun = time.monotonic()
    try:
        while time.monotonic() - begun < 20:
            with torch.enable_grad():
                optimizer.zero_grad()
                model(torch.ones(4, 32)).square().mean().backward()
                optimizer.step()
    except Preempted as error:
        caught.append(str(error))
    timer.join()
    state = torch.load("last.pt")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
print(len(caught), caught[:4], signal.getsignal(signal.SIGTERM) is on_term, signal.pthread_sigmask(signal.SIG_BLOCK, []))
print(sorted(str(p.sum().item())[:8] for p in model.parameters()))
