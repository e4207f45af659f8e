# needs: debugpy
# command: {python} -X frozen_modules=off -m debugpy --listen 127.0.0.1:0 {program}
# A job that a debugger could attach to: debugpy listens, and the script prints what it sees of itself.
import sys
import threading

import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(120):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
print("debugger", "debugpy" in sys.modules, "threads", sorted(t.name for t in threading.enumerate() if "pydevd" not in t.name))
print(sys._getframe().f_back.f_code.co_name, round(loss.item(), 6))
