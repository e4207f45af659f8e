# design on 3.11: stdout: the agent's calls at the borders of a step are Python, and this profiler sees them
# cProfile over whole steps of training, printed by number of calls.
import cProfile
import pstats

import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def step():
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


for part in range(3):
    profiler = cProfile.Profile()
    profiler.enable()
    for _ in range(40):
        loss = step()
    profiler.disable()
    stats = pstats.Stats(profiler)
    rows = sorted((name, calls) for (_, _, name), (_, calls, *_) in stats.stats.items() if calls >= 40)
    print(part, stats.total_calls - (stats.total_calls % 40), rows[:40], round(loss, 6))
