# python: 3.12
# A line profiler and a call counter on sys.monitoring, each under an id of its own; then every id that is free is taken.
import collections
import sys

import torch

monitoring = sys.monitoring
lines, starts = collections.Counter(), collections.Counter()
monitoring.use_tool_id(monitoring.PROFILER_ID, "lines")
monitoring.use_tool_id(3, "calls")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def forward(self, inputs):
        hidden = self.layer(inputs)
        return hidden.square()


def on_line(code, line):
    lines[code.co_name, line - code.co_firstlineno] += 1


def on_start(code, _):
    if "/lib/python" not in code.co_filename and not code.co_filename.startswith("<"):
        starts[code.co_filename.rsplit("/", 1)[-1], code.co_name] += 1


monitoring.register_callback(monitoring.PROFILER_ID, monitoring.events.LINE, on_line)
monitoring.register_callback(3, monitoring.events.PY_START, on_start)
monitoring.set_local_events(monitoring.PROFILER_ID, Net.forward.__code__, monitoring.events.LINE)
monitoring.set_events(3, monitoring.events.PY_START)
torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(100):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8)).mean()
    loss.backward()
    optimizer.step()
    if step == 50:
        monitoring.set_events(3, 0)
        monitoring.restart_events()
print(sorted(lines.items()), sorted(starts.items()))
print(monitoring.get_tool(3), monitoring.get_tool(monitoring.PROFILER_ID), monitoring.get_events(3), round(loss.item(), 6))
for tool in (3, monitoring.PROFILER_ID):
    monitoring.free_tool_id(tool)
print([monitoring.get_tool(tool) for tool in (0, 1, 2, 3)])
