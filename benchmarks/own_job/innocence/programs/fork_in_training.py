# The program forks in the middle of a training: children that evaluate and end by os._exit, sys.exit and an exception.
import os
import sys

import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
    return round(loss.item(), 6)


codes = []
for kind in ("_exit", "exit", "raise", "train"):
    print("parent", kind, train(30), flush=True)
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        print("child", kind, train(5), len(os.listdir("/proc/self/task")), flush=True)
        if kind == "_exit":
            os._exit(3)
        if kind == "exit":
            sys.exit(4)
        if kind == "raise":
            raise ValueError("in the child")
        print("child", train(30), flush=True)
        sys.exit(0)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(codes, train(30))
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("no other child")
