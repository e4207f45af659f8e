# Ctrl-C in the middle of a step, sent by the program to itself: the loop ends, and the traceback is printed.
# exit: 130
import os
import signal
import sys
import traceback

import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model.register_forward_hook(lambda *_: os.kill(os.getpid(), signal.SIGINT) if steps in (60, 90) else None)
steps, caught = 0, 0
try:
    while steps < 200:
        steps += 1
        try:
            optimizer.zero_grad()
            model(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()
        except KeyboardInterrupt:
            caught += 1
            if caught == 2:
                raise
            print("once", [frame.name for frame in traceback.extract_tb(sys.exc_info()[2])])
except KeyboardInterrupt:
    traceback.print_exc()
    print("interrupted at", steps)
    sys.exit(130)
