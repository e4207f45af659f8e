# torch.profiler with stacks over the first steps: the number of events by name, and of the functions in the trace.
import collections
import json

import torch
from torch.profiler import ProfilerActivity, profile, record_function

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
with profile(activities=[ProfilerActivity.CPU], with_stack=True, record_shapes=True) as profiler:
    for _ in range(10):
        with record_function("my step"):
            loss = model(torch.randn(4, 8)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        profiler.step()
operators = {event.key: event.count for event in profiler.key_averages()}
print(sum(operators.values()), sorted(operators.items()))
profiler.export_chrome_trace("trace.json")
with open("trace.json") as file:
    events = json.load(file)["traceEvents"]
import os

os.remove("trace.json")
names = collections.Counter(event["name"] for event in events if event.get("cat") == "python_function")
print("python functions", sum(names.values()), len(names), [name for name in names if "console" in name])
print(round(loss.item(), 6))
