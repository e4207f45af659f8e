"""The cost of an optimizer step in another implementation, on copies of the parameters."""

from __future__ import annotations

import importlib
import statistics
from collections.abc import Generator
from typing import Any

from ...clock import now
from ...loop import Signals
from ...probes import ProbeError, half_width
from ..watch import watch

BUDGET_S = 1.0
LEAST, MOST = 2, 30
COPIES = 8
"""Copies of the parameters in memory: for both sides the parameters and two moments, once the gradients, and one to spare."""


def swap_optim(loop: Any) -> Generator[None, None, Signals]:
    """P5: steps of AdamW on copies, in the present implementation and fused, in turn. The optimizer of the program is only read."""
    import torch

    yield
    update: Any = importlib.import_module("torch.optim.adamw").adamw  # the function form: no optimizer object that hooks would see
    optimizers = [optimizer for optimizer in watch.alive(watch.optimizers) if type(optimizer) is torch.optim.AdamW]
    if not optimizers:
        raise ProbeError("the optimizer is not AdamW, and the probe knows no fused form of it")
    groups = [group for group in optimizers[-1].param_groups if group["params"]]
    if any(group.get("fused") for group in groups):
        raise ProbeError("the optimizer is fused already")
    if any(group.get("amsgrad") or group.get("capturable") or group.get("differentiable") for group in groups):
        raise ProbeError("amsgrad, capturable or differentiable AdamW has no fused form here")
    parameters = [parameter for group in groups for parameter in group["params"] if parameter.grad is not None or parameter.requires_grad]
    if any(parameter.is_sparse or parameter.is_complex() for parameter in parameters):
        raise ProbeError("parameters are sparse or complex")
    device = parameters[0].device
    needed, free = COPIES * sum(p.numel() * p.element_size() for p in parameters), free_bytes(device)
    if free is not None and needed > free:
        raise ProbeError(f"the copies need {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free")
    group = groups[0]
    beta1, beta2 = group["betas"]
    settings = {
        "amsgrad": False,
        "beta1": beta1,
        "beta2": beta2,
        "lr": float(group["lr"]),
        "weight_decay": group["weight_decay"],
        "eps": group["eps"],
        "maximize": bool(group.get("maximize")),
    }
    gradients = [torch.full_like(parameter, 1e-3) for parameter in parameters]  # the cost does not depend on the values

    def side(**form: bool) -> Any:
        copies = [parameter.detach().clone() for parameter in parameters]
        moments = [[torch.zeros_like(copy) for copy in copies] for _ in range(2)]
        steps = [torch.zeros((), dtype=torch.float32, device=device if form.get("fused") else "cpu") for _ in copies]

        def step() -> None:
            update(copies, gradients, *moments, [], steps, **settings, **form)

        return step

    foreach = bool(group["foreach"]) if group.get("foreach") is not None else device.type == "cuda"
    sides = [side(foreach=foreach, fused=False), side(foreach=False, fused=True)]
    times: tuple[list[float], list[float]] = ([], [])
    with torch.no_grad():
        for one in sides:
            one()
        end = now() + BUDGET_S
        while len(times[0]) < LEAST or (now() < end and len(times[0]) < MOST):
            for one, measured in zip(sides, times, strict=True):
                measured.append(_timed(one, device, loop.account.times))
    present, fused = times
    ratios = [one / other for one, other in zip(present, fused, strict=True)]
    source = f"probe P5: optimizer steps on copies, in turn, median of {len(present)}"
    return {
        "probe.optim_present_step_s": {"value": statistics.median(present), "unit": "s", "source": source},
        "probe.optim_fused_step_s": {"value": statistics.median(fused), "unit": "s", "source": source},
        "probe.optim_fused_speedup": {"value": statistics.median(ratios), "unit": "x", "source": source},
        "probe.optim_fused_spread": {"value": half_width(ratios), "unit": "x", "source": "probe P5: 2 standard errors of that median"},
    }


def free_bytes(device: Any) -> float | None:
    """Memory that new tensors may use; None where it is not known."""
    if device.type == "cuda":
        import torch

        return float(torch.cuda.mem_get_info(device)[0])
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            return next(float(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return None


def _timed(step: Any, device: Any, clock: Any) -> float:
    """Seconds of one step; on a CPU less the run-queue delay of the thread."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start, runq = now(), clock.runq_s()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    delay = clock.runq_s() - runq if device.type == "cpu" else 0.0
    return max(1e-9, now() - start - delay)
