"""Another thread or a signal ends parts of the training by an exception, many times. Each of these exceptions must arrive.

Each argument is a case, in a forked process: `signal`, `once` (the handler puts the default back, as for the second Ctrl-C) or `thread`, and `-off` after
it where the agent is off.
"""

import atexit
import ctypes
import gc
import os
import random
import signal
import sys
import threading
import time

import torch
import torch._dynamo  # the first step of an optimizer imports it: for a second in each process, were it not here


class Preempted(Exception):
    pass


model, x = torch.nn.Linear(64, 64), torch.ones(8, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
main = threading.get_ident()
how, raised, caught = "", 0, 0


def preempt(*_):
    global raised
    raised += 1
    if how.startswith("once"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    raise Preempted


def plan(seconds):
    if how.startswith("thread"):
        threading.Timer(seconds, raise_in_main).start()
    else:
        signal.signal(signal.SIGALRM, preempt)
        signal.setitimer(signal.ITIMER_REAL, seconds)


def raise_in_main():
    global raised
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main), ctypes.py_object(Preempted))
    raised += 1


def train_until_raised(before):
    """Train. A function of its own: Python 3.13 does not let a `try` around a loop catch what is raised at the jump from the loop's end to its begin."""
    while raised == before:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()


def interrupt():
    """Train, and have an exception raised at 120 random moments of the steps, which take less than a ms."""
    global caught
    model(x).pow(2).mean().backward()
    optimizer.step()  # torch imports what it needs: an exception within these imports is lost without the agent, too
    delays = random.Random(0)
    if how.endswith("-off") and "_gpuconsole_agent.hooks.guard" in sys.modules:
        optimizer.step()
        sys.modules["_gpuconsole_agent.hooks.guard"].switch.off("", None)
    end = time.monotonic() + 20
    lost = []
    while raised < 120 and time.monotonic() < end:
        torch.set_grad_enabled(True)
        before = raised
        try:
            plan(delays.uniform(0.002, 0.010))
            train_until_raised(before)
            time.sleep(0.05)
            lost.append(raised)
        except Preempted:
            caught += 1
    print(how, "raised", raised, "lost", len(lost), flush=True)


gc.freeze()
for how in sys.argv[1:]:
    pid = os.fork()
    if pid == 0:
        sys.argv[0] = how
        interrupt()
        atexit._run_exitfuncs()
        os._exit(0)
    print("exit", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
