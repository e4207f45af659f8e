"""All probes: short experiments on a running job. Weights, optimizer, buffers, random state and the workload's own state stay as they were.

Each probe is a function from the loop to signals. It raises ProbeError where it does not apply.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

from gpuconsole.agent.loop import Probe, Signals
from gpuconsole.agent.probes import (
    ProbeError,
    batch_elasticity,
    cached_batch,
    half_width,
    refuse_compiled,
    rounds,
    stopwatch,
    timed_pass,
    untouched,
)
from gpuconsole.agent.probes import swap_optim as optimizer_steps_in_turn
from gpuconsole.agent.protocol import Signal
from gpuconsole.model.knobs.catalogue import Knobs, Value
from gpuconsole.model.profile import BYTES_NOTE, OP_CLASSES
from gpuconsole.workloads.device import cores
from gpuconsole.workloads.profiling.window import ProfileError, profile_passes
from gpuconsole.workloads.training.loop import TrainingLoop
from gpuconsole.workloads.training.parallel.plan import local_part
from gpuconsole.workloads.training.probes.communication import exchange_sizes, exposed_communication
from gpuconsole.workloads.training.probes.gpu import GPU_PROBES
from gpuconsole.workloads.training.probes.loader import loader_alone, script_lines
from gpuconsole.workloads.training.probes.memory import heap_peaks, memory_parts
from gpuconsole.workloads.training.settings import apply_model_knobs, make_optimizer

PROFILED_PASSES = 2


def side_work_off(loop: TrainingLoop) -> Signals:
    """P3: ordinary steps without logging, checkpoints and evaluation. The difference from other steps is the cost of these three."""
    loop.account.restart()
    times: list[float] = []

    def steps() -> None:
        for _ in rounds(loop, 1.0, 4, 50):
            with stopwatch(loop) as measured:
                loop.step()
            times.extend(measured)

    loop.without_side_work(steps)
    return {"probe.step_no_side_work_s": Signal(statistics.median(times), "s", f"probe P3, median of {len(times)} steps")}


def op_mix(loop: TrainingLoop) -> Signals:
    """Forward and backward under the profiler: the share of each class of kernels, and the mean size of a kernel."""
    batch = loop.batch

    def one_pass() -> None:
        loop.forward(batch).backward()
        loop.drop_gradients()

    with untouched(loop):
        one_pass()
        try:
            report = profile_passes(one_pass, PROFILED_PASSES, loop.device, loop.scratch)
        except ProfileError as error:
            raise ProbeError(str(error)) from None
    source = f"torch.profiler, {PROFILED_PASSES} forward and backward passes: {report.clock}"
    classes = {op_class.name: op_class for op_class in report.classes}
    signals = {
        f"profile.{name}_ratio": Signal(classes[name].share_ratio if name in classes else 0.0, "ratio", source) for name in OP_CLASSES
    }
    elementwise = classes.get("elementwise")
    moved = (elementwise.bytes or 0.0) if elementwise else 0.0
    signals["profile.elementwise_bytes"] = Signal(moved / PROFILED_PASSES, "B", f"{source}; per pass, {BYTES_NOTE}")
    if elementwise is not None and elementwise.bytes_per_s:
        signals["profile.elementwise_bytes_per_s"] = Signal(elementwise.bytes_per_s, "B/s", f"{source}; {BYTES_NOTE}")
    signals["profile.busy_ratio"] = Signal(report.busy_ratio, "ratio", source)
    signals["profile.launches_per_s"] = Signal(report.kernels_per_s, "1/s", source)
    if report.mean_kernel_s is not None:
        signals["profile.mean_kernel_s"] = Signal(report.mean_kernel_s, "s", source)
    if report.tensor_core_ratio is not None:
        signals["profile.tensor_core_ratio"] = Signal(report.tensor_core_ratio, "ratio", f"{source}; {report.tensor_core_note}")
    return signals


def held_out_loss(loop: TrainingLoop) -> Signals:
    """The loss of the held-out batches under the present knobs. A change of numerics must not make it worse."""
    with untouched(loop), torch.no_grad():
        losses = [loop.forward(batch).item() for batch in loop.eval_batches()]
    return {"quality.held_out_loss": Signal(statistics.fmean(losses), "", f"mean over {len(losses)} held-out batches")}


# --- probe P5: the cost of a pass with another value of one knob, and of an optimizer step in another implementation ---
# Both sides run in turn, so that other load on the machine affects both. Nothing of the job changes.

SWAP_BUDGET_S = 1.0
LEAST_SWAPS, MOST_SWAPS = 2, 30


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
    parts = [local_part(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    copies = [torch.nn.Parameter(part.detach().clone()) for part in parts]
    for copy in copies:
        copy.grad = torch.full_like(copy, 1e-3)  # the cost of Adam does not depend on the values
    signals = optimizer_steps_in_turn(loop, *(make_optimizer(copies, name).step for name in (optim, "adamw_fused")))
    del copies, copy  # six times the parameters: otherwise this memory would count as reserved by the job
    loop.release_cached_memory()
    return signals


def _speedup(loop: TrainingLoop, changes: Knobs, label: str, contention_free: bool = True) -> Signals:
    """Time of forward and backward under the present knobs over their time with `changes`."""
    refuse_compiled(loop.knobs, "another value")
    batch = loop.batch
    ratios: list[float] = []
    with untouched(loop):
        for side in ({}, changes):
            with _under(loop, side):
                timed_pass(loop, batch)
        for _ in rounds(loop, SWAP_BUDGET_S, LEAST_SWAPS, MOST_SWAPS):
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


# --- all probes ---------------------------------------------------------------------------------------------

PROBES: dict[str, Callable[[TrainingLoop], Signals]] = {
    "cached_batch": cached_batch,
    "batch_elasticity": batch_elasticity,
    "side_work_off": side_work_off,
    "loader_alone": loader_alone,
    "op_mix": op_mix,
    "memory_parts": memory_parts,
    "heap_peaks": heap_peaks,
    "held_out_loss": held_out_loss,
    "script_lines": script_lines,
    "swap_attention": swap_attention,
    "swap_precision": swap_precision,
    "swap_optim": swap_optim,
    "swap_layout": swap_layout,
    "swap_threads": swap_threads,
    "exposed_communication": exposed_communication,
    "exchange_sizes": exchange_sizes,
    **GPU_PROBES,
}


def probes_of(loop: TrainingLoop) -> dict[str, Probe]:
    """Every probe by name, ready to run on `loop`."""
    return {name: partial(probe, loop) for name, probe in PROBES.items()}
