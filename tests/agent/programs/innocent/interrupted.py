"""Another thread or a signal ends parts of the training by an exception, many times. Each of these exceptions must arrive.

The first argument: `signal`, `once` (the handler puts the default back, as for the second Ctrl-C) or `thread`. The second: `off` where the agent is off.
"""

import ctypes
import random
import signal
import sys
import threading
import time

import torch


class Preempted(Exception):
    pass


how = sys.argv[1]
raised = caught = 0
model, x = torch.nn.Linear(64, 64), torch.ones(8, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
main = threading.get_ident()


def preempt(*_):
    global raised
    raised += 1
    if how == "once":
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    raise Preempted


def plan(seconds):
    if how == "thread":
        threading.Timer(seconds, raise_in_main).start()
    else:
        signal.signal(signal.SIGALRM, preempt)
        signal.setitimer(signal.ITIMER_REAL, seconds)


def raise_in_main():
    global raised
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main), ctypes.py_object(Preempted))
    raised += 1


delays = random.Random(0)
if sys.argv[2] == "off" and "_gpuconsole_agent.hooks.guard" in sys.modules:
    optimizer.step()
    sys.modules["_gpuconsole_agent.hooks.guard"].switch.off("", None)
end = time.monotonic() + 20
lost = []
while raised < 150 and time.monotonic() < end:
    torch.set_grad_enabled(True)
    before = raised
    try:
        plan(delays.uniform(0.004, 0.04))
        while raised == before:
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
        time.sleep(0.05)
        lost.append(raised)
    except Preempted:
        caught += 1
print("raised", raised, "lost", len(lost))
