# torch.export, fx and functional forms of a model, each before, amid and after a training.
import torch
import torch.fx


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)

    def forward(self, inputs):
        return self.second(self.first(inputs).relu())


class Outer(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, inputs):
        return self.inner(inputs) + 1


def forms():
    graph = torch.fx.symbolic_trace(Outer(model))
    exported = torch.export.export(model, (torch.ones(2, 8),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    nodes = [(node.op, str(node.target)) for node in exported.graph.nodes]
    frames = sum("console" in str(node.meta.get("stack_trace", "")) for node in exported.graph.nodes)
    return (
        graph.code.count("\n"),
        [node.op for node in graph.graph.nodes],
        nodes,
        frames,
        round(exported.module()(torch.ones(3, 8)).sum().item(), 5),
    )


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.AdamW(model.parameters())
for part in range(3):
    print(part, forms())
    for _ in range(40):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
print(forms()[-1], round(loss.item(), 6))
