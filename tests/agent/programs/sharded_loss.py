"""A model whose parameters and loss are DTensors, in one process: the value of the loss would take an exchange between processes."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_module, distribute_tensor

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))
torch.manual_seed(0)
model = distribute_module(nn.Linear(8, 1), mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, foreach=False)
values = []
plain_item = DTensor.item if "item" in DTensor.__dict__ else torch.Tensor.item


def item(self):
    values.append(1)
    return plain_item(self)


DTensor.item = item
for _ in range(60):
    loss = model(distribute_tensor(torch.randn(4, 8), mesh, [Shard(0)])).pow(2).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(type(loss).__name__, len(values), [type(placement).__name__ for placement in loss.placements])
dist.destroy_process_group()
