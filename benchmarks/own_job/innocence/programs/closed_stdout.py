# command: bash -c "{python} {program} | head -3; echo status ${PIPESTATUS[0]}"
# Its reader goes away: `train.py | head -3`. The broken pipe ends the loop, and the program says so on stderr and exits with 5.
import os
import signal
import sys

import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
try:
    for step in range(100000):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        if step < 4 or step > 50:
            print(step, round(loss.item(), 6), "." * 4096 if step > 50 else "", flush=True)
except BrokenPipeError:
    print("pipe gone", signal.getsignal(signal.SIGPIPE), file=sys.stderr)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(5)
