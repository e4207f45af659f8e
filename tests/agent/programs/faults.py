"""Breaks each entry point of the agent, and trains on. `python faults.py`: imports torch once, and makes each trial in a forked process.

Without the agent the same trials run: the lines of both must be equal. The name of each trial is in the name of its script.
"""

import atexit
import contextlib
import gc
import hashlib
import os
import sys
import time

import cloudpickle
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

NAMES = sys.argv[1:]
FIRST = ("made", "asked", "loss.", "optimizer.begin", "job.step_ended")
"""Entry points with these words break before the first step, the others after six steps."""
READINGS = "readings"
"""Trials with such a name break what a mark of a sampled step reads."""
LIGHT = ("light", "usual")
"""Entry points with these words run once the agent knows the program, and in steps that are usual from end to end."""


class Pickled:
    """Of `__main__`: pickled by value."""


def broken(*args, **kwargs):
    raise RuntimeError("broken by the test")


def break_entry_point(name):
    guard = sys.modules.get("_gpuconsole_agent.hooks.guard")
    if guard is None:
        return
    if name.startswith(READINGS):
        recorder = sys.modules["_gpuconsole_agent.hooks.watch"].recorder
        assert recorder.read is not None
        recorder.read = broken
        return
    guarded = guard.ENTRY_POINTS[name]
    if guarded.__closure__ is None:
        break_first_line(guarded.__code__)
        return
    cells = dict(zip(guarded.__code__.co_freevars, guarded.__closure__, strict=True))
    cells["function"].cell_contents = broken


def break_first_line(code):
    """Raise an exception in the first line within the function's own `try`, once."""
    lines = []

    def in_function(frame, event, argument):
        if event == "line":
            lines.append(frame.f_lineno)
            if len(lines) == 2:
                broken()
        return in_function

    sys.settrace(lambda frame, event, argument: in_function if frame.f_code is code and len(lines) < 2 else None)


def train(name, at, light):
    """24 steps, or 120 where they are to be light, prints what must not change."""
    if at == 0:
        break_entry_point(name)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = TensorDataset(torch.randn(64, 8), torch.randint(0, 4, (64,)))
    dataset = DataLoader(data, 4, shuffle=True)
    loader = iter(dataset)
    loss_function = torch.compile(F.cross_entropy, backend="eager") if "compiled" in name else F.cross_entropy
    losses = []
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    log = os.open(os.devnull, os.O_WRONLY)
    for n in range(120 if light else 24):
        if n == at > 0:
            break_entry_point(name)
        if n % 4 == 2:
            loader = iter(dataset)
        if not light:
            with contextlib.suppress(OSError):  # a device that is no file
                os.fsync(log)
            cloudpickle.dumps(Pickled)
        x, y = next(loader)
        loss = loss_function(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        if light:
            optimizer.step()
        else:
            scaler.step(optimizer)
        print(n, end=" ")
        losses.append(loss.item())
        if "end_light" in name and n >= 100:  # a step that changes nothing: there are no gradients
            optimizer.zero_grad()
            optimizer.step()
        if light:
            time.sleep(0.01)  # the agent works each 50 ms at most
    weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    print(name, hashlib.sha256(repr(losses).encode() + weights).hexdigest()[:16], flush=True)


torch.set_num_threads(1)
gc.freeze()  # a look at all objects would copy the memory of torch into each process
for name in NAMES:
    pid = os.fork()
    if pid == 0:
        sys.argv[0] = name
        code = 7
        try:
            light = any(word in name for word in LIGHT)
            train(name, 80 if light else 0 if any(word in name for word in FIRST) else 6, light=light)
        except BaseException as problem:
            print("the program failed:", repr(problem), flush=True)
            code = 8
        atexit._run_exitfuncs()
        os._exit(code)
    print("exit", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
