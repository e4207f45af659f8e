# Deep copies of models, optimizers, loaders and their iterators, in the middle of a training that goes on with the copy.
import copy
import hashlib

import torch
from torch.utils.data import DataLoader, TensorDataset


def digest(model):
    return hashlib.sha1(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()[:10]


torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(TensorDataset(torch.randn(160, 8)), batch_size=4, shuffle=True)
for epoch in range(5):
    for (inputs,) in loader:
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
    copied_model, copied_optimizer = copy.deepcopy((model, optimizer))
    copied_loader = copy.deepcopy(loader)
    inner = {id(p) for p in copied_model.parameters()} == {id(p) for group in copied_optimizer.param_groups for p in group["params"]}
    print(
        epoch,
        inner,
        digest(model) == digest(copied_model),
        sorted(set(vars(loader)) ^ set(vars(copied_loader))),
        sorted(vars(copied_loader)),
    )
    model, optimizer, loader = copied_model, copied_optimizer, copied_loader
iterator = iter(loader)
next(iterator)
print(sorted(name for name in vars(iterator)), digest(model), round(loss.item(), 6))
