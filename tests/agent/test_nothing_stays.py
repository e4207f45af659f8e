"""What the agent does for a short time ends with the agent, and in a forked child."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpuconsole.wire.events import RunProbe
from tests.agent.listener import Listener

HEAD = """
import os, sys, threading, time, torch
torch.set_num_threads(1)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
usual = sys.getswitchinterval()

def make_batch():
    return torch.ones(4, 8)

def step():
    x = make_batch()
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
    time.sleep(0.003)

def tasks():
    return set(os.listdir("/proc/self/task"))

before = tasks()
"""
OFF_IN_A_PROBE = (
    HEAD
    + """
end = time.monotonic() + 20
while len(tasks() - before) != 1 and time.monotonic() < end:
    step()
assert len(tasks() - before) == 1 and len(threading.enumerate()) == 1, "no sample is taken"
sys.modules["_gpuconsole_agent.hooks.guard"].switch.off("", None)
step()
print(tasks() - before, sys.getswitchinterval() == usual)
"""
)


@pytest.mark.slow
def test_samples_end_with_the_agent_also_in_a_probe(tmp_path: Path) -> None:
    listener = Listener(tmp_path, asks=[(25, RunProbe(1, "script_lines"))])
    done = listener.run(sys.executable, "-c", OFF_IN_A_PROBE)
    assert (done.stdout, done.stderr) == ("set() True\n", "")
