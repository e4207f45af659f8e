# command: {python} -X faulthandler -X dev -W error::UserWarning {program}
# The interpreter's own checks on: developer mode, faulthandler, resource warnings, and a segmentation fault at the end.
# exit: -11
import faulthandler
import os
import sys

import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.RMSprop(model.parameters())
for _ in range(100):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 16)).square().mean()
    loss.backward()
    optimizer.step()
print(faulthandler.is_enabled(), sys.flags.dev_mode, round(loss.item(), 6), flush=True)


class Crash(torch.nn.Module):
    def forward(self, _):
        with open("crash.txt", "w") as file:
            faulthandler.enable(file, all_threads=False)
            os.kill(os.getpid(), 11)


Crash()(1)
