"""A training job with steps of about 23 ms, most of it a wait of known length: `job.py SECONDS WAIT_MS [SPREAD]`.

SPREAD: each start of the program waits for another time, drawn evenly from WAIT_MS times 1 - SPREAD to 1 + SPREAD, as on a machine where runs differ.
"""

import random
import sys
import time

import torch

seconds, wait_s, spread = float(sys.argv[1]), float(sys.argv[2]) / 1e3, float((sys.argv[3:] or ["0"])[0])
wait_s *= 1 + spread * random.uniform(-1, 1)
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(3200, 256)), batch_size=32)
end = time.perf_counter() + seconds
while time.perf_counter() < end:
    for (batch,) in loader:
        time.sleep(wait_s)
        model(batch).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if time.perf_counter() >= end:
            break
