# torch.compile with its default backend on a CPU, where a compiler is there, else with aot_eager: trained, and saved.
import hashlib
import shutil

import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
compiled = torch.compile(model, backend="aot_eager" if shutil.which("g++") is None else "inductor")
for step in range(100):
    inputs, targets = torch.randn(8, 16), torch.randint(0, 4, (8,))
    loss = torch.nn.functional.cross_entropy(compiled(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(type(compiled).__name__, sorted(compiled.state_dict())[:2], round(loss.item(), 4))
state = {name.removeprefix("_orig_mod."): value for name, value in compiled.state_dict().items()}
print(all(torch.equal(state[name], value) for name, value in model.state_dict().items()))
