# A program that looks at the stack in forward, in a step, in collate, in a sampler and in hooks.
import collections
import inspect

import torch
from torch.utils.data import DataLoader, Sampler, TensorDataset

seen = collections.defaultdict(collections.Counter)


def look(where):
    seen[where][tuple(f"{frame.function}@{frame.filename.rsplit('/', 1)[-1]}" for frame in inspect.stack(0)[1:7])] += 1


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)

    def forward(self, inputs):
        look("forward")
        return self.second(self.first(inputs))


class Own(torch.optim.Adam):
    def step(self, closure=None):
        look("step")
        return super().step(closure)

    def zero_grad(self, set_to_none=True):
        look("zero_grad")
        return super().zero_grad(set_to_none)


class Order(Sampler):
    def __iter__(self):
        look("sampler")
        yield from range(200)

    def __len__(self):
        return 200


def collate(items):
    look("collate")
    return torch.stack([item[0] for item in items])


torch.manual_seed(0)
model = Net()
model.second.register_forward_hook(lambda *_: look("hook"))
model.second.weight.register_hook(lambda gradient: look("gradient"))
optimizer = Own(model.parameters())
optimizer.register_step_post_hook(lambda *_: look("step hook"))
loader = DataLoader(TensorDataset(torch.randn(200, 8)), batch_size=4, sampler=Order(), collate_fn=collate)
for _ in range(3):
    for batch in loader:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
for where, stacks in sorted(seen.items()):
    print(where, sorted(stacks.items()))
print(round(loss.item(), 6))
