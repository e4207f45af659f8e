# design: stdout: the agent has a callback of gc, and its import leaves objects for the first collection
# The collector is off: counts of the program's own objects, of garbage, and weak references that must be dead.
import collections
import gc
import sys
import warnings
import weakref

import torch

warnings.simplefilter("ignore")
gc.collect()
gc.disable()


class Batch:
    def __init__(self, number):
        self.number, self.x = number, torch.full((4, 8), number / 100)


torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
references, found = [], []
for step in range(150):
    batch = Batch(step)
    references.append(weakref.ref(batch))
    optimizer.zero_grad()
    out = model(batch.x)
    loss = out.square().mean()
    loss.backward()
    optimizer.step()
    references += [weakref.ref(out), weakref.ref(loss)]
    del out, batch
    if step % 50 == 49:
        found.append(gc.collect())
last = loss.item()
del loss
print(
    "garbage",
    found,
    "enabled",
    gc.isenabled(),
    "threshold",
    gc.get_threshold(),
    "frozen",
    gc.get_freeze_count(),
    "alive",
    sum(r() is not None for r in references),
)
ours = collections.Counter(
    type(one).__name__ for one in gc.get_objects() if type(one).__module__ == "__main__" or isinstance(one, torch.Tensor)
)
print(
    sorted(ours.items()),
    [sys.getrefcount(p) for p in model.parameters()],
    sys.getrefcount(model),
    sys.getrefcount(optimizer),
    len(gc.callbacks),
)
print(round(last, 6))
