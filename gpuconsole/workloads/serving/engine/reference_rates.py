"""Measured reference rates of the layers of a served model: for decoding and for prefill."""

from __future__ import annotations

from statistics import median

import torch
from torch import nn

from gpuconsole.workloads.calibration.repeats import repeats_s
from gpuconsole.workloads.serving.engine.packing import can_pack, pack

BEYOND_CACHES_BYTES = 2**27
PROMPT_ROWS = 512
BUDGET_S = 0.25
READINGS = 30
"""Number of products per measurement on a GPU, because a single product takes about as long as its launch and synchronisation."""


@torch.inference_mode()
def reference_rates(d_model: int, device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """`peak_bytes_per_s`: rate of reading weights for one row. `peak_flops_per_s`: rate of products with many rows.

    Measured with linear layers of the model's kind and largest shape, one after another, more layers than fit into caches. For one CPU
    thread the rate is well below that of a copy, and lower for smaller layers. The figures are medians, like the figures of a run.
    The state of torch's random generators is unchanged.
    """
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        count = max(2, BEYOND_CACHES_BYTES // (4 * d_model * d_model * dtype.itemsize))
        layers = nn.ModuleList(nn.Linear(d_model, 4 * d_model, bias=False, device=device, dtype=dtype) for _ in range(count))
        if can_pack(device, dtype):
            pack(layers)
        one, many = (torch.randn(rows, d_model, device=device).to(dtype) for rows in (1, PROMPT_ROWS))
        times = READINGS if device.type == "cuda" else 1
        reading = median(repeats_s(lambda: [layer(one) for _ in range(times) for layer in layers], device, BUDGET_S)) / times
        computing = median(repeats_s(lambda: layers[0](many), device, BUDGET_S))
    weights = 4 * d_model * d_model
    return {
        "peak_bytes_per_s": count * weights * dtype.itemsize / reading,
        "peak_flops_per_s": 2.0 * PROMPT_ROWS * weights / computing,
    }
