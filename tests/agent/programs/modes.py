"""Prints the steps after which a mode of torch's functions is entered. `python modes.py plain|within`: the optimizer steps after the backward pass, or
within it."""

import sys

import torch

within = sys.argv[1] == "within"
torch.set_num_threads(1)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
if within:
    model.bias.register_post_accumulate_grad_hook(lambda parameter: optimizer.step())
seen = []
for index in range(600):
    optimizer.zero_grad()
    loss = model(torch.ones(2, 8)).square().mean()
    loss.backward()
    if not within:
        optimizer.step()
    torch.ones(300, 300) @ torch.ones(300, 300)
    if torch._C._len_torch_function_stack():
        seen.append(index)
print("entered after", seen)
