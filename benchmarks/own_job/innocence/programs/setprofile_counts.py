# design on 3.11: stdout: the agent's calls at the borders of a step are Python, and this profiler sees them
# sys.setprofile counts each call in a training step, of Python and of C, and the depth of the stack in forward.
import collections
import sys

import torch

counts, depths, c_calls = collections.Counter(), set(), collections.Counter()


def profile(frame, event, arg):
    if event == "call":
        counts[frame.f_code.co_name] += 1
        if frame.f_code.co_name == "forward":
            depth = 0
            while frame:
                frame, depth = frame.f_back, depth + 1
            depths.add(depth)
    elif event == "c_call":
        c_calls[getattr(arg, "__name__", "?")] += 1


torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
per_step = []
for step in range(60):
    before = sum(counts.values()), sum(c_calls.values())
    sys.setprofile(profile)
    loss = model(torch.ones(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    sys.setprofile(None)
    per_step.append((sum(counts.values()) - before[0], sum(c_calls.values()) - before[1]))
print("calls of a step", collections.Counter(per_step[2:]).most_common(4), "depths", sorted(depths))
print(counts.most_common(12))
print(sorted(name for name in counts if "console" in name), round(loss.item(), 6))
