"""Knobs whose present value has no effect on the device, each with the reason in one line."""

from __future__ import annotations

import torch

from gpuconsole.model.knobs.catalogue import Knobs, Value

TF32_SINCE = (8, 0)
"""Compute capability of the first GPUs with TF32 and bf16 tensor cores (Ampere)."""

ON_A_CPU: dict[str, tuple[tuple[Value, ...], str]] = {
    "precision": (("tf32",), "a CPU has no TF32: matrix products stay in fp32"),
    "torch_compile": (("reduce-overhead",), "CUDA graphs need a GPU: the model is compiled, and launched as with default"),
    "pin_memory": ((True,), "page-locked memory serves copies to a GPU"),
    "cudnn_benchmark": ((True,), "a CPU has no cuDNN"),
    "non_blocking": ((True,), "batches are already on the device: nothing is copied"),
    "h2d_stream": ((True,), "batches are already on the device: nothing is copied"),
    "pytorch_alloc_conf": (("expandable_segments:True",), "it configures CUDA's allocator, which a CPU run does not use"),
}


def without_effect(knobs: Knobs, device: torch.device) -> dict[str, str]:
    """The knobs whose present value has no effect on `device`, with the reason."""
    if device.type == "cuda":
        return _on_cuda(knobs, device)
    found = {name: why for name, (values, why) in ON_A_CPU.items() if name in knobs and knobs[name] in values}
    if knobs.get("memory_limit_mb"):
        found["memory_limit_mb"] = "no CPU allocator enforces it: it is the limit that the memory rules compare with"
    return found


def _on_cuda(knobs: Knobs, device: torch.device) -> dict[str, str]:
    found = {}
    capability = torch.cuda.get_device_capability(device)
    if knobs.get("precision") == "tf32" and capability < TF32_SINCE:
        found["precision"] = (
            f"TF32 needs compute capability 8.0, this GPU has {capability[0]}.{capability[1]}: matrix products stay in fp32"
        )
    if knobs.get("non_blocking") and not knobs.get("pin_memory"):
        found["non_blocking"] = "batches are not in page-locked memory, so the host waits for each copy"
    return found
