"""What forked children of a process with a simulated card can and cannot do; prints the results as JSON."""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from tests.fakes.cuda.machine import SLOT, Used

found: dict[str, Any] = {}


def child(name: str, work: Callable[[], object]) -> None:
    """Run `work` in a forked child, and keep its result or error, its exit code and its stderr."""
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as answer:
        pid = os.fork()
        if pid == 0:
            os.dup2(said.fileno(), 2)
            try:
                text = repr(work())
            except BaseException as error:  # the test reads each error
                text = f"{type(error).__name__}: {error}".split("\n", 1)[0]
            answer.write(text)
            answer.flush()
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        said.seek(0)
        answer.seek(0)
        found[name] = {"answer": answer.read(), "code": os.waitstatus_to_exitcode(status), "stderr": said.read()}


class Numbers(Dataset[torch.Tensor]):
    """Each item is drawn in the worker."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        torch.manual_seed(index)
        return torch.randn(4) @ torch.ones(4, 4)


def shared_bytes() -> list[int]:
    """The allocated bytes of this process in the memory that processes share."""
    shared = next(
        line.split()[1] for line in Path(os.environ["SIMULATED_CUDA_MACHINE"]).read_text().splitlines() if line.startswith("processes")
    )
    return [used.allocated for used in map(Used._make, SLOT.iter_unpack(Path(shared).read_bytes())) if used.pid == os.getpid()]


def is_bad() -> bool:
    return torch.cuda._is_in_bad_fork()


torch.manual_seed(3)
child("before", lambda: (is_bad(), torch.zeros(2, device="cuda").sum().item()))
count = torch.cuda.device_count()
child("after_device_count", is_bad)
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
available = torch.cuda.is_available()
child("after_is_available_by_nvml", is_bad)
del os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"]
available = torch.cuda.is_available()
child("after_is_available", is_bad)

tensors = [torch.ones(1000, 1000, device="cuda") for _ in range(2)]
first, last, never = (torch.cuda.Event(enable_timing=True) for _ in range(3))
first.record()
last.record()
used, unused = torch.zeros(10, pin_memory=True), torch.zeros(10, pin_memory=True)
moved = used.to("cuda", non_blocking=True)
torch.cuda.synchronize()
before = shared_bytes()

child("state", lambda: (is_bad(), torch.cuda.is_initialized(), torch.cuda.memory_allocated(), torch.cuda.device_count()))
calls: dict[str, Callable[[], object]] = {
    "new_tensor": lambda: torch.zeros(2, device="cuda"),
    "lazy_init": torch.cuda._lazy_init,
    "synchronize": torch.cuda.synchronize,
    "properties": torch.cuda.get_device_properties,
    "launch": lambda: tensors[0] + 1,
    "in_place": lambda: tensors[0].add_(1),
    "item": lambda: tensors[0][0, 0].item(),
    "to_host": lambda: tensors[0].cpu(),
    "empty_like": lambda: torch.empty_like(tensors[0]),
    "record": first.record,
    "query": first.query,
    "wait": first.synchronize,
    "elapsed": lambda: first.elapsed_time(last),
    "pinned": lambda: torch.zeros(3).pin_memory(),
}
for name, call in calls.items():
    child(name, call)
child("seed_and_cpu", lambda: (torch.manual_seed(1).initial_seed(), torch.ones(3).sum().item()))
calls.clear()  # they hold the events
child("free_tensors", tensors.clear)
child("free_unused_event", lambda: globals().pop("never") and gc.collect() and None)
child("free_unused_pinned", lambda: globals().update(unused=None))
child("free_event", lambda: globals().update(first=None))
child("free_pinned", lambda: globals().update(used=None))
child("exit", lambda: os._exit(0))
found["shared_bytes"] = [before, shared_bytes()]
found["unharmed"] = first.query() and (tensors[0] + 1).sum().item() == 2e6

batches = list(DataLoader(Numbers(), batch_size=2, num_workers=2, pin_memory=True, multiprocessing_context="fork"))
found["loader"] = [len(batches), batches[0].is_pinned(), batches[0][0, 0].item()]
torch.manual_seed(0)
found["expected"] = torch.randn(4).sum().item()
print(json.dumps(found))
sys.stdout.flush()
