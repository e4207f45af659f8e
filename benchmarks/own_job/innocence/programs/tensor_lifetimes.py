# Tensors must die where the program drops them: inside forward, in hooks, between backward and step.
import collections
import weakref

import torch

alive = collections.Counter()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 64), torch.nn.Linear(64, 1)

    def forward(self, batch):
        inputs = batch.pop()
        gone = weakref.ref(inputs)
        with torch.no_grad():
            mean = inputs.mean()
        hidden = self.first(inputs * 1.0).relu()
        del inputs
        alive["inputs in forward", gone() is not None] += 1
        kept = weakref.ref(hidden)
        out = self.second(hidden)
        del hidden
        alive["hidden in forward", kept() is not None] += 1
        return out + mean


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(150):
    batch = [torch.randn(4, 8)]
    out = model(batch)
    loss = out.square().mean()
    out_reference, loss_reference = weakref.ref(out), weakref.ref(loss)
    del out
    alive["out before backward", out_reference() is not None] += 1
    optimizer.zero_grad()
    loss.backward()
    value = loss.item()
    del loss
    alive["loss before step", loss_reference() is not None] += 1
    gradients = [weakref.ref(p.grad) for p in model.parameters()]
    optimizer.step()
    optimizer.zero_grad()
    alive["gradients after zero_grad", any(g() is not None for g in gradients)] += 1
for key, count in sorted(alive.items()):
    print(*key, count)
print(round(value, 6))
