# design on 3.11: stdout: the agent's calls at the borders of a step are Python, and this tracer sees them
# A debugger of the program's own: sys.settrace counts the calls and lines of every file that is not a library.
import collections
import sys
import threading

import torch

counts = collections.Counter()


def local(frame, event, _):
    if "/lib/python" not in frame.f_code.co_filename:
        counts[frame.f_code.co_filename.rsplit("/", 1)[-1], frame.f_code.co_name, event] += 1
    return local


def tracer(frame, event, arg):
    return local(frame, event, arg) if "/lib/python" not in frame.f_code.co_filename else None


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def forward(self, inputs):
        return self.layer(inputs)


def train(model, optimizer):
    loss = model(torch.ones(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
sys.settrace(tracer)
threading.settrace(tracer)
for step in range(80):
    loss = train(model, optimizer)
print("still ours", sys.gettrace() is tracer, threading.gettrace() is tracer)
sys.settrace(None)
threading.settrace(None)
for key, count in sorted(counts.items()):
    print(*key, count)
print(round(loss, 6))
