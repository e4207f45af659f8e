"""Prints the steps after which a mode of torch's functions is entered. `python modes.py plain within`: the optimizer steps after the backward pass, or
within it; each in a forked process."""

import atexit
import gc
import os
import sys

import torch
import torch._dynamo  # the first step of an optimizer imports it: for a second in each process, were it not here


def train(where):
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if where == "within":
        model.bias.register_post_accumulate_grad_hook(lambda parameter: optimizer.step())
    seen = []
    for index in range(600):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 8)).square().mean()
        loss.backward()
        if where != "within":
            optimizer.step()
        torch.ones(300, 300) @ torch.ones(300, 300)
        if torch._C._len_torch_function_stack():
            seen.append(index)
    print(where, "entered after", seen, flush=True)


torch.set_num_threads(1)
gc.freeze()
for name in sys.argv[1:]:
    pid = os.fork()
    if pid == 0:
        sys.argv[0] = name
        train(name)
        atexit._run_exitfuncs()
        os._exit(0)
    os.waitpid(pid, 0)
