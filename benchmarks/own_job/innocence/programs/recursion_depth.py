# A tree network: a module that calls itself for its children, as deep as Python allows.
import torch

torch.manual_seed(0)


class Node:
    def __init__(self, value, child=None):
        self.value, self.child = value, child


class TreeNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = torch.nn.Linear(4, 4)
        self.out = torch.nn.Linear(4, 1)

    def forward(self, node):
        hidden = torch.zeros(4) if node.child is None else self(node.child)
        return torch.tanh(self.cell(hidden) + node.value)


def chain(length):
    node = None
    for number in range(length):
        node = Node(number / length, node)
    return node


def deepest(model):
    low, high = 10, 400
    while high - low > 1:
        middle = (low + high) // 2
        try:
            model(chain(middle))
            low = middle
        except RecursionError:
            high = middle
    return low


model = TreeNet()
print("before", deepest(model))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(60):
    optimizer.zero_grad()
    loss = model.out(model(chain(30))).square().sum()
    loss.backward()
    optimizer.step()
    if step in (0, 1, 2, 3, 10, 59):
        print(step, deepest(model), round(loss.item(), 6))
