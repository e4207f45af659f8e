"""Models compiled as one graph: by torch.compile, by their own method, in blocks, or within a pass after 20 steps. The arguments say which; each of them is a
forked process."""

import atexit
import gc
import os
import sys
import traceback

import torch
import torch._dynamo  # for a second in each process, were it not here

how = ""


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x):
        return torch.relu(self.linear(x))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(4))
        self.scale = lambda x: 2 * x
        self.step = 0

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        if how == "late":
            if self.step == 20:
                self.scale = torch.compile(self.scale, fullgraph=True, backend="eager")
            self.step += 1
            x = self.scale(x)
        return x


def train():
    torch.manual_seed(0)
    model = Model()
    call = model
    if how == "function":
        call = torch.compile(model, fullgraph=True, backend="eager")
    elif how == "method":
        model.compile(fullgraph=True, backend="eager")
    elif how == "blocks":
        for block in model.blocks:
            block.compile(fullgraph=True, backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(60):
        loss = call(torch.randn(8, 16)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"{how} {loss.item():.9f}", flush=True)


gc.freeze()
for how in sys.argv[1:]:
    pid = os.fork()
    if pid == 0:
        sys.argv[0] = how
        try:
            train()
        except BaseException:
            traceback.print_exc()
        atexit._run_exitfuncs()
        os._exit(0)
    os.waitpid(pid, 0)
