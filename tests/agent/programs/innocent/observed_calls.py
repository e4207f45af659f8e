"""What sees all calls in a program: a trace function while torch is imported, cProfile over steps, a function in place of Python's `start_new_thread`; and a
DataLoader with `__eq__` and `__hash__` of its own."""

import _thread
import collections
import cProfile
import pstats
import sys

counts, files, plain = collections.Counter(), set(), _thread.start_new_thread


def start(*arguments):
    counts["threads"] += 1
    return plain(*arguments)


def trace(frame, event, argument):
    """As coverage: files with a real name that are of no library."""
    if not frame.f_code.co_filename.startswith("<") and "/lib/python" not in frame.f_code.co_filename:
        files.add(frame.f_code.co_filename.rpartition("/")[2])


_thread.start_new_thread = start
sys.settrace(trace)
import torch  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

sys.settrace(None)


class Loader(DataLoader):
    def __eq__(self, other):
        counts["eq"] += 1
        return self is other

    def __hash__(self):
        counts["hash"] += 1
        return 1


model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = Loader(TensorDataset(torch.ones(80, 8)), batch_size=4)
profiler = cProfile.Profile()
for epoch in range(3):
    for (inputs,) in loader:
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if epoch == 0:
        profiler.enable()
profiler.disable()
called = (
    sorted({(file.rpartition("/")[2], name) for file, _, name in pstats.Stats(profiler).stats if file.startswith("/")})
    if sys.version_info >= (3, 12)
    else []
)
print(sorted(files), sorted(counts.items()), called)
