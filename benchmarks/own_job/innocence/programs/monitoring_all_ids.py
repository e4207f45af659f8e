# design: stdout: the agent holds one of Python's six ids for tools
# python: 3.12
# A tool that takes all ids of sys.monitoring before it trains, as a test of a debugger does.
import sys

import torch

taken = []
for tool in range(6):
    try:
        sys.monitoring.use_tool_id(tool, f"mine {tool}")
        taken.append(tool)
    except ValueError:
        pass
print("taken", taken)
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(200):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
print([sys.monitoring.get_tool(tool) for tool in range(6)], round(loss.item(), 6))
