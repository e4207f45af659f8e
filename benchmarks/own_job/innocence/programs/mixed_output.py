# command: bash -c "{python} -u {program} 2>&1"
# Unbuffered prints to stdout and stderr in turn, writes by descriptor, a subprocess and a C library: the order is compared.
import ctypes
import os
import subprocess
import sys

import torch

libc = ctypes.CDLL(None)
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(100):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    print("loss", step, round(loss.item(), 6))
    print("step", step, file=sys.stderr)
    optimizer.step()
    if step % 10 == 0:
        os.write(1, b"by descriptor\n")
        libc.write(2, b"by libc\n", 8)
        subprocess.run(["echo", "by a child"], check=True)
print(sys.stdout.line_buffering, sys.stdout.write_through, sys.stderr.errors, os.isatty(1), sys.stdin.read())
