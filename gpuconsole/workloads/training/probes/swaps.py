"""Probe P5: the cost of a pass with another value of one knob, and the cost of an optimizer step in another implementation.

Both sides run in turn, so that other load on the machine affects both. Nothing of the job changes.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from gpuconsole.agent.loop import Signals
from gpuconsole.agent.probes import ProbeError, half_width, resident_batch, rounds, stopwatch, timed_pass, untouched
from gpuconsole.model.finding import Signal
from gpuconsole.model.knobs.catalogue import Knobs, Value
from gpuconsole.workloads.arithmetic import cores
from gpuconsole.workloads.training.loop.loop import TrainingLoop
from gpuconsole.workloads.training.loop.settings import apply_model_knobs, make_optimizer
from gpuconsole.workloads.training.parallel.plan import local_part

BUDGET_S = 1.0
LEAST, MOST = 2, 30


def swap_attention(loop: TrainingLoop) -> Signals:
    """A pass with the plain formula compared with a pass with the fused kernel."""
    if loop.knobs.get("attention") != "math":
        raise ProbeError("attention is not the plain formula")
    return _speedup(loop, {"attention": "sdpa"}, "attention_sdpa")


def swap_layout(loop: TrainingLoop) -> Signals:
    """A pass in NCHW compared with a pass in NHWC. The weights are converted each time, outside of the timed part."""
    if loop.knobs.get("channels_last", True):
        raise ProbeError("the layout is NHWC already, or there are no convolutions")
    if loop.plan.world.size > 1:
        raise ProbeError("several processes share the weights")
    return _speedup(loop, {"channels_last": True}, "channels_last")


def swap_precision(loop: TrainingLoop) -> Signals:
    """A pass at the present precision compared with a pass in bf16 and, on a GPU, in TF32.

    `bf16_native` 0: the device has no bf16 instructions.
    """
    if loop.knobs["precision"] not in ("fp32", "tf32"):
        raise ProbeError(f"precision is {loop.knobs['precision']} already")
    native, how = _bf16(loop.device)
    signals = {"probe.precision_bf16_native": Signal(float(native), "", how)}
    if native:
        signals |= _speedup(loop, {"precision": "bf16"}, "precision_bf16")
    if loop.device.type == "cuda" and loop.knobs["precision"] == "fp32" and torch.cuda.get_device_capability(loop.device) >= (8, 0):
        signals |= _speedup(loop, {"precision": "tf32"}, "precision_tf32")
    return signals


def swap_threads(loop: TrainingLoop) -> Signals:
    """A pass with the present threads compared with a pass on all cores that the loader's workers leave.

    By the wall clock: waiting for a core counts.
    """
    present = torch.get_num_threads()
    tried = cores() - int(loop.knobs.get("num_workers", 0))
    if loop.device.type != "cpu" or loop.plan.world.size > 1 or tried <= present:
        raise ProbeError(f"no core is idle: {present} of {cores()} compute")
    source = "os.sched_getaffinity, less the loader's workers"
    return {"probe.threads_tried": Signal(float(tried), "threads", source)} | _speedup(
        loop, {"num_threads": tried}, "threads", contention_free=False
    )


def swap_optim(loop: TrainingLoop) -> Signals:
    """An optimizer step on copies of the parameters: in the present implementation, and fused."""
    optim = str(loop.knobs["optim"])
    optimizer = loop.plan.local(loop.optimizer)
    if type(optimizer) is not torch.optim.AdamW:
        raise ProbeError(f"{type(optimizer).__name__} has no fused implementation here")
    if optim == "adamw_fused":
        raise ProbeError("the optimizer is fused already")
    mine = [local_part(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    copies = [torch.nn.Parameter(part.detach().clone()) for part in mine]
    for copy in copies:
        copy.grad = torch.full_like(copy, 1e-3)  # the cost of Adam does not depend on the values
    sides = [make_optimizer(copies, name) for name in (optim, "adamw_fused")]
    present: list[float] = []
    fused: list[float] = []
    for side in sides:
        side.step()
    for _ in rounds(loop, BUDGET_S, LEAST, MOST):
        for side, times in zip(sides, (present, fused), strict=True):
            with stopwatch(loop) as measured:
                side.step()
            times += measured
    del sides, side, copies, copy  # six times the parameters: otherwise this memory would count as reserved by the job
    loop.release_cached_memory()
    ratios = [one / other for one, other in zip(present, fused, strict=True)]
    source = f"probe P5: optimizer steps on copies, in turn, median of {len(present)}"
    return {
        "probe.optim_present_step_s": Signal(statistics.median(present), "s", source),
        "probe.optim_fused_step_s": Signal(statistics.median(fused), "s", source),
        "probe.optim_fused_speedup": Signal(statistics.median(ratios), "x", source),
        "probe.optim_fused_spread": Signal(half_width(ratios), "x", "probe P5: 2 standard errors of that median"),
    }


def _speedup(loop: TrainingLoop, changes: Knobs, label: str, contention_free: bool = True) -> Signals:
    """Time of forward and backward under the present knobs over their time with `changes`."""
    if loop.knobs["torch_compile"] != "off":
        raise ProbeError("the model is compiled, and another value would compile it again")
    batch = resident_batch(loop)
    ratios: list[float] = []
    with untouched(loop):
        for side in ({}, changes):
            with _under(loop, side):
                timed_pass(loop, batch)
        for _ in rounds(loop, BUDGET_S, LEAST, MOST):
            present = timed_pass(loop, batch, contention_free)
            with _under(loop, changes):
                ratios.append(present / timed_pass(loop, batch, contention_free))
    source = f"probe P5: passes in turn, {', '.join(f'{name}={value}' for name, value in changes.items())}, n={len(ratios)}"
    return {
        f"probe.{label}_speedup": Signal(statistics.median(ratios), "x", source),
        f"probe.{label}_spread": Signal(half_width(ratios), "x", "probe P5: 2 standard errors of that median"),
    }


@contextmanager
def _under(loop: TrainingLoop, changes: dict[str, Value]) -> Iterator[None]:
    """Passes in this block run under `changes`; the block must not take a step."""
    before = loop.knobs
    try:
        loop.knobs = {**before, **changes}
        _put_in_force(loop, changes)
        yield
    finally:
        loop.knobs = before
        _put_in_force(loop, changes)


def _put_in_force(loop: TrainingLoop, changes: dict[str, Value]) -> None:
    apply_model_knobs(loop.task.model, loop.knobs)
    if "channels_last" in changes:
        loop.lay_out()


def _bf16(device: torch.device) -> tuple[bool, str]:
    """Whether the device has bf16 instructions, and the source of that. oneDNN also accepts bf16 where it emulates it, at a quarter of
    the speed."""
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return major >= 8, f"compute capability {major}.{minor}"
    native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return native, f"this CPU has {'' if native else 'no '}bf16 instructions (CPUID: AVX512-BF16, AMX)"
