"""Measured reference rates of the layers of a served model: for decoding and for prefill."""

from __future__ import annotations

from statistics import median

import torch

from gpuconsole.workloads.calibration.reading import reading
from gpuconsole.workloads.calibration.repeats import repeats_s

PROMPT_ROWS = 512
BUDGET_S = 0.25


@torch.inference_mode()
def reference_rates(d_model: int, device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """`peak_bytes_per_s`: rate of reading weights for one row. `peak_flops_per_s`: rate of products with many rows.

    Measured with linear layers of the model's kind and largest shape, one after another, more layers than fit into caches. For one CPU
    thread the rate is well below that of a copy, and lower for smaller layers. The figures are medians, like the figures of a run.
    The state of torch's random generators is unchanged.
    """
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        moved, work, layers = reading(d_model, device, dtype)
        many = torch.randn(PROMPT_ROWS, d_model, device=device).to(dtype)
        read_s = median(repeats_s(work, device, BUDGET_S))
        computing = median(repeats_s(lambda: layers[0](many), device, BUDGET_S))
    return {
        "peak_bytes_per_s": moved / read_s,
        "peak_flops_per_s": 2.0 * PROMPT_ROWS * 4 * d_model * d_model / computing,
    }
