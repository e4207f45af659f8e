"""What torch does with the program's modules and functions, after some steps under the agent. The output is compared with the output without it."""

import copy
import inspect
import io
import os
import pickle
import sys
import threading
import warnings

import torch
import torch.nn.functional as F
from torch import nn

warnings.simplefilter("always")
torch.manual_seed(0)
torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


def make_batch():
    return torch.randn(4, 8), torch.randint(0, 4, (4,))


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
batches = torch.utils.data.DataLoader([sample for _ in range(20) for sample in zip(*make_batch(), strict=True)], batch_size=4)
for x, y in batches:
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("loss", loss.item())

compiled = torch.compile(model, backend="eager", fullgraph=True)
print("compiled", torch.equal(compiled(x), model(x)), torch._dynamo.utils.counters["stats"]["unique_graphs"])


@torch.compile(backend="aot_eager")
def train(x, y):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


print("batch in a graph", [part.shape for part in torch.compile(make_batch, backend="eager", fullgraph=True)()])
print("compiled step", [round(train(*make_batch()).item(), 6) for _ in range(4)])
print("recompiled", torch._dynamo.utils.counters["stats"]["unique_graphs"], sum(torch._dynamo.utils.counters["graph_break"].values()))


@torch.compile(backend="eager", fullgraph=True)
def scaled(x, by):
    print("traced") if False else None
    return model(x) * by


print("fullgraph", scaled(x, 2.0).shape, torch._dynamo.explain(model)(x).graph_break_count)
print("script", torch.jit.script(model)(x).shape, torch.jit.trace(model, x)(x).shape)
print("traced with another size of batch", torch.jit.trace(model, torch.randn(5, 8))(x).shape)
print("fx", [node.op for node in torch.fx.symbolic_trace(model).graph.nodes])
print("export", [node.op for node in torch.export.export(model, (x,)).graph.nodes])
print("vmap", torch.func.vmap(model)(x).shape)
parameters = dict(model.named_parameters())
gradients = torch.func.grad(lambda p: torch.func.functional_call(model, p, (x,)).sum())(parameters)
print("functional", sorted(gradients))
clone = copy.deepcopy(model)
print("deepcopy", type(clone) is Net, sorted(clone.__dict__) == sorted(model.__dict__), sorted(vars(optimizer)))
whole = io.BytesIO()
torch.save({"model": model, "optimizer": optimizer, "state": optimizer.state_dict()}, whole)
print("saved", b"gpuconsole" in whole.getvalue(), torch.load(io.BytesIO(whole.getvalue()), weights_only=False)["model"](x).shape)
print("pickled", b"gpuconsole" in pickle.dumps((print, torch.save, Net, make_batch, torch.autograd.backward, optimizer.zero_grad)))
print("signatures", inspect.signature(make_batch), inspect.signature(torch.save), inspect.signature(torch.utils.data.DataLoader))
print("threads", threading.active_count(), [name for name in os.environ if "GPUCONSOLE" in name and not name.startswith("GPUCONSOLE_")])
print("checkpointed", torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).shape)
torch.set_default_dtype(torch.float64)
print("double", Net()(torch.ones(1, 8)).dtype, file=sys.stderr)
