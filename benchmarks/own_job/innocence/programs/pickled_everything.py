# needs: cloudpickle, dill
# design on 3.11: stdout: dill writes out the registered functions of optimizers, of which two are the agent's
# Pickles of models, optimizers, schedulers, loaders, functions and classes, by pickle, cloudpickle and dill, before, amid and after.
import copy
import hashlib
import pickle

import cloudpickle
import dill
import torch
from torch.utils.data import DataLoader, TensorDataset

dill.settings["recurse"] = True


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def forward(self, inputs):
        return self.layer(inputs)


def objective(model, inputs):
    return model(inputs).square().mean()


def sizes():
    made = {
        "model": model,
        "scheduler": scheduler.state_dict(),
        "loader": loader,
        "objective": objective,
        "class": Net,
        "optimizer": type(optimizer),
    }
    return {name: [len(pickler.dumps(copy.copy(value))) for pickler in (pickle, cloudpickle, dill)] for name, value in made.items()}


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
loader = DataLoader(TensorDataset(torch.randn(160, 8)), batch_size=4)
for epoch in range(4):
    for (inputs,) in loader:
        optimizer.zero_grad()
        loss = objective(model, inputs)
        loss.backward()
        optimizer.step()
        scheduler.step()
    print(epoch, sizes())
print(hashlib.sha1(pickle.dumps([model.state_dict(), scheduler.state_dict()])).hexdigest()[:12])
for pickler in (pickle, cloudpickle, dill):
    again, other = pickler.loads(pickler.dumps((model, optimizer)))
    print(type(again).__name__, sorted(vars(type(again)))[:4], sorted(vars(other)), round(objective(again, torch.ones(1, 8)).item(), 6))
