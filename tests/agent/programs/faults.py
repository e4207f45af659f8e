"""Breaks each entry point of the agent, and trains on. `python faults.py`: imports torch once, and makes each trial in a forked process.

Without the agent the same trials run: the lines of both must be equal. The name of each trial is in the name of its script.
"""

import atexit
import gc
import hashlib
import os
import sys

import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

NAMES = sys.argv[1:]
FIRST = ("call ", "job.step_ended")
"""Entry points with these words break before the first step, the others after six steps."""
READINGS = "readings"
"""Trials with such a name break what a mark of a sampled step reads."""


def broken(*args, **kwargs):
    raise RuntimeError("broken by the test")


def break_entry_point(name):
    guard = sys.modules.get("_gpuconsole_agent.hooks.guard")
    if guard is None:
        return
    if name.startswith(READINGS):
        recorder = sys.modules["_gpuconsole_agent.hooks.watch"].recorder
        assert recorder.read is not None
        recorder.read, recorder.sample_at = broken, recorder.index + 1
        return
    if " " in name:
        break_border(*name.split(" "))
        return
    guarded = guard.ENTRY_POINTS[name]
    cells = dict(zip(guarded.__code__.co_freevars, guarded.__closure__, strict=True))
    cells["function"].cell_contents = broken


def break_border(act, path):
    """Break what the agent does where a function begins or ends."""
    monitor = sys.modules["_gpuconsole_agent.hooks.install"]._monitors[0]
    if path == "Module._wrapped_call_impl":
        module = sys.modules["_gpuconsole_agent.hooks.borders.monitor"]
        module.FORWARD_PASS = module.FORWARD_PASS._replace(end=broken)
    for borders in (monitor._borders, monitor._notes):
        for key, border in borders.items():
            if border.path == path:
                borders[key] = border._replace(**{act: broken})


def train(name, at):
    """Makes 24 steps, and prints what must not change."""
    if at == 0:
        break_entry_point(name)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = TensorDataset(torch.randn(64, 8), torch.randint(0, 4, (64,)))
    dataset = DataLoader(data, 4, shuffle=True)
    loader = iter(dataset)
    loss_function = torch.compile(F.cross_entropy, backend="eager") if "_Torch" in name else F.cross_entropy
    losses = []
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    for n in range(24):
        if n == at > 0:
            break_entry_point(name)
        if n % 4 == 2:
            loader = iter(dataset)
        x, y = next(loader)
        loss = loss_function(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        scaler.step(optimizer)
        print(n, end=" ")
        losses.append(loss.item())
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
            train(name, 0 if any(word in name for word in FIRST) else 6)
        except BaseException as problem:
            print("the program failed:", repr(problem), flush=True)
            code = 8
        atexit._run_exitfuncs()
        os._exit(code)
    print("exit", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
