# command: bash -c "TORCH_LOGS=graph_breaks,recompiles,guards {python} {program}"
# The logs of Dynamo go to stdout: reasons of graph breaks and recompilations, with their stacks, are compared.
import logging
import re
import sys

import torch
import torch._dynamo

lines = []


class Keep(logging.Handler):
    def emit(self, record):
        lines.append(record.getMessage())


for name in ("torch._dynamo", "torch._dynamo.guards", "torch.__graph_breaks", "torch.__recompiles"):
    logging.getLogger(name).addHandler(Keep())


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.scale = torch.nn.Linear(8, 1), 1.0

    def forward(self, inputs):
        hidden = self.layer(inputs)
        print("", end="")
        return hidden * self.scale


def train(model, optimizer, inputs):
    optimizer.zero_grad()
    loss = model(inputs).square().mean()
    loss.backward()
    optimizer.step()
    return loss


torch.manual_seed(0)
model = Net()
compiled = torch.compile(model, backend="eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(40):
    model.scale = 1.0 + step // 20
    loss = train(compiled, optimizer, torch.randn(4, 8))
explained = torch._dynamo.explain(model)(torch.ones(2, 8))
print(explained.graph_count, explained.graph_break_count, [str(r.reason)[:60] for r in explained.break_reasons])
print([frame.name for reason in explained.break_reasons for frame in reason.user_stack])
text = "\n".join(lines)
print(len(lines), sorted(set(re.findall(r"\b\w*console\w*", text))), round(loss.item(), 6))
print(text[:3000], file=sys.stdout)
