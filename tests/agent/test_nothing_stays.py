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

def samples():
    return [thread for thread in threading.enumerate() if thread.name == "gpuconsole-stacks"]
"""
OFF_IN_A_PROBE = (
    HEAD
    + """
end = time.monotonic() + 20
while not samples() and time.monotonic() < end:
    step()
assert samples(), "the probe has not begun"
sys.modules["_gpuconsole_agent.hooks.guard"].switch.off("", None)
step()
print(samples(), sys.getswitchinterval() == usual)
"""
)


@pytest.mark.slow
def test_samples_of_a_probe_end_with_the_agent(tmp_path: Path) -> None:
    listener = Listener(tmp_path, asks=[(25, RunProbe(1, "script_lines"))])
    done = listener.run(sys.executable, "-c", OFF_IN_A_PROBE)
    assert (done.stdout, done.stderr) == ("[] True\n", "")
