"""The program forgets all modules that belong to no library, to load its own ones again."""

import sys
import sysconfig

import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def batch():
    return torch.randn(2, 4)


def forget_project():
    library = sysconfig.get_paths()["stdlib"]
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and name != "__main__" and "site-packages" not in file and not file.startswith(library):
            del sys.modules[name]


for i in range(60):
    if i == 30:
        forget_project()
    optimizer.zero_grad()
    loss = model(batch()).pow(2).mean()
    loss.backward()
    optimizer.step()
print(loss.item())
