"""On which of two simulated cards a process takes a context, which peak its products have, and the load that its kernels make; prints the results as JSON."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.fakes.cuda.machine import SLOT, Used

found: dict[str, Any] = {}
device: Any = torch.simulated_cuda  # type: ignore[attr-defined]  # runtime.py
PROCESSES = next(
    line.split()[1] for line in Path(os.environ["SIMULATED_CUDA_MACHINE"]).read_text().splitlines() if line.startswith("processes")
)


def contexts() -> list[int]:
    """The cards on which this process has a context, as SimulatedMachine.used() reports them."""
    return sorted(used.card for used in map(Used._make, SLOT.iter_unpack(Path(PROCESSES).read_bytes())) if used.pid == os.getpid())


places: dict[str, list[int]] = {}
torch.cuda.is_available(), torch.cuda.device_count(), torch.cuda.get_device_name(), torch.cuda.get_device_properties(0).total_memory
torch.cuda.memory_allocated(), torch.cuda.current_stream(), torch.cuda.manual_seed_all(1), torch.cuda.current_device()
places["asked"] = contexts()
model = torch.nn.Linear(8, 8).to("cuda:1")
model(torch.ones(2, 8, device="cuda:1")).sum().backward()
found["loss"] = model.weight.grad.cpu()[0, 0].item()  # type: ignore[union-attr]
with torch.cuda.stream(torch.cuda.current_stream(1)):
    pinned = torch.zeros(8).pin_memory()
places["model_on_1"] = contexts()
on_1, lazy = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
places["event_made"] = contexts()
on_1.record(torch.cuda.current_stream(1))
places["recorded_on_1"] = contexts()
try:
    on_1.record()
except RuntimeError as error:
    found["other_device"] = str(error).split("\n", 1)[0]
lazy.record()
places["recorded_on_0"] = contexts()
found["places"] = places
found["devices"] = [str(event.device) for event in (on_1, lazy)]


def rate(run: Callable[[], object]) -> float:
    """The seconds of the kernels of `run` on cuda:1."""
    before = device.clock(1)["busy_s"]
    run()
    return device.clock(1)["busy_s"] - before


a = torch.zeros(4096, 4096, device="cuda:1")
images, filters = torch.zeros(64, 256, 32, 32, device="cuda:1"), torch.zeros(256, 256, 3, 3, device="cuda:1")


def seconds() -> list[float]:
    """Of a product, and of a convolution in fp32."""
    return [rate(lambda: a @ a), rate(lambda: torch.nn.functional.conv2d(images, filters))]


matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
peaks = {"default": seconds()}
matmul.allow_tf32 = True
peaks["allow_tf32"] = seconds()
torch.set_float32_matmul_precision("highest")
peaks["highest"] = seconds()
torch.set_float32_matmul_precision("high")
peaks["high"] = seconds()
torch.set_float32_matmul_precision("highest")
cudnn.allow_tf32 = False
peaks["no_cudnn"] = seconds()
matmul.fp32_precision = "tf32"
peaks["new_matmul"] = seconds()
matmul.fp32_precision = "none"
cudnn.conv.fp32_precision = "tf32"  # type: ignore[attr-defined]
peaks["new_conv"] = seconds()
cudnn.conv.fp32_precision = "none"  # type: ignore[attr-defined]
torch.backends.fp32_precision = "tf32"  # type: ignore[attr-defined]
peaks["new_all"] = seconds()
torch.backends.fp32_precision = "ieee"  # type: ignore[attr-defined]
peaks["ieee"] = seconds()
b = a[:1536, :1536].bfloat16()  # a processor without instructions for bf16 takes 8 s for their product, and 160 s for that of `a`
found["peaks"] = peaks


def load(run: Callable[[], object]) -> dict[str, float]:
    """Shares of the time of the kernels of `run` in which the SMs and the tensor cores work, and in which NVML sees a kernel."""
    before = own_slot()
    run()
    after = own_slot()
    busy = after.busy_s - before.busy_s
    return {name: (getattr(after, name) - getattr(before, name)) / busy for name in ("sm_s", "tensor_s", "dram_s", "active_s")}


def own_slot() -> Used:
    return next(
        used for used in map(Used._make, SLOT.iter_unpack(Path(PROCESSES).read_bytes())) if used.pid == os.getpid() and used.card == 1
    )


def many_small_kernels() -> None:
    """One of 3 us every 100 us or more."""
    small = torch.zeros(64, device="cuda:1")
    for _ in range(500):
        small.add_(1)
        end = time.perf_counter() + 1e-4
        while time.perf_counter() < end:
            pass


torch.backends.fp32_precision = "none"  # type: ignore[attr-defined]
found["load"] = {
    "bf16": load(lambda: b @ b),
    "fp32": load(lambda: a @ a),
    "copy": load(lambda: a.clone()),
    "small": load(many_small_kernels),
}
print(json.dumps(found))
