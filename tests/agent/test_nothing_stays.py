"""What the agent does for a short time ends with the agent, and in a forked child."""

from __future__ import annotations

import subprocess
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


HELD = """
import gc, torch
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, number):
        return torch.full((8,), number / 40)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def forward(self, inputs):
        return self.layer(inputs)

def train():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for epoch in range(10):
        for inputs in DataLoader(Data(), batch_size=4):
            optimizer.zero_grad()
            model(inputs).sum().backward()
            optimizer.step()

train()
gc.collect()
for each in (Data, Net, train):
    print(sorted(type(holder).__name__ for holder in gc.get_referrers(each)))
"""


@pytest.mark.slow
def test_no_class_and_no_function_of_the_program_is_held(tmp_path: Path) -> None:
    bare = subprocess.run([sys.executable, "-c", HELD], capture_output=True, text=True, check=True)
    watched = Listener(tmp_path).run(sys.executable, "-c", HELD)
    assert watched.stdout == bare.stdout
