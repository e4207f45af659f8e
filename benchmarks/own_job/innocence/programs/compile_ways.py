# torch.compile of a model, in place, of a whole loss and with fullgraph: graphs, breaks, recompilations and guards are counted.
import torch
import torch._dynamo
from torch._dynamo.utils import counters

graphs = []


def backend(graph, inputs):
    graphs.append(len(graph.graph.nodes))
    return graph.forward


class Net(torch.nn.Module):
    def __init__(self, breaks=False):
        super().__init__()
        self.layer, self.breaks = torch.nn.Linear(8, 8), breaks

    def forward(self, inputs):
        hidden = self.layer(inputs)
        if self.breaks:
            torch._dynamo.graph_break()
        return hidden.relu().sum(1)


def whole(model, inputs):
    return model(inputs).square().mean()


for name in ("model", "in place", "loss", "fullgraph", "breaks"):
    torch._dynamo.reset()
    counters.clear()
    graphs.clear()
    torch.manual_seed(0)
    model = Net(name == "breaks")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run, loss_of = model, whole
    if name == "in place":
        model.compile(backend=backend)
    elif name == "loss":
        loss_of = torch.compile(whole, backend=backend)
    else:
        run = torch.compile(model, backend=backend, fullgraph=name == "fullgraph")
    for step in range(40):
        optimizer.zero_grad()
        loss = loss_of(run, torch.randn(4 if step < 20 else 6, 8))
        loss.backward()
        optimizer.step()
    print(name, graphs, dict(counters["stats"]), sorted(counters["graph_break"].values()), round(loss.item(), 6))
