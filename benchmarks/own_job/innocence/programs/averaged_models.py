# Averages of the weights: AveragedModel, an EMA by hand by parametrised copies, SWALR and update_bn over a loader.
import copy
import hashlib

import torch
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.data import DataLoader, TensorDataset


class EMA:
    def __init__(self, model, decay=0.99):
        self.model, self.decay, self.updates = copy.deepcopy(model).eval(), decay, 0
        for p in self.model.parameters():
            p.requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        self.updates += 1
        for name, value in model.state_dict().items():
            mine = self.model.state_dict()[name]
            mine.lerp_(value, 1 - self.decay) if mine.dtype.is_floating_point else mine.copy_(value)


def digest(model):
    return hashlib.sha1(b"".join(v.detach().numpy().tobytes() for v in model.state_dict().values())).hexdigest()[:12]


torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
loader = DataLoader(TensorDataset(torch.randn(320, 8)), batch_size=8, shuffle=True)
averaged, swa, own = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)), AveragedModel(model), EMA(model)
scheduler = SWALR(optimizer, swa_lr=0.01, anneal_epochs=2)
for epoch in range(4):
    for (inputs,) in loader:
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        averaged.update_parameters(model)
        own.update(model)
    swa.update_parameters(model)
    scheduler.step()
    own.model(inputs)
    print(epoch, digest(own.model), round(loss.item(), 6))
update_bn(loader, swa)
print(digest(model), digest(averaged), digest(swa), own.updates, swa.n_averaged.item())
