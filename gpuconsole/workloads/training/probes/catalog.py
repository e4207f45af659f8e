"""All probes: short experiments on a running job. Weights, optimizer, buffers, random state and the
workload's own state stay as they were.

Each probe is a function from the loop to signals. It raises ProbeError where it does not apply.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from functools import partial

import torch

from gpuconsole.agent.loop import Probe, Signals
from gpuconsole.agent.probes import (
    ProbeError,
    batch_elasticity,
    cached_batch,
    rounds,
    stopwatch,
    untouched,
)
from gpuconsole.agent.probes import swap_optim as optimizer_steps_in_turn
from gpuconsole.agent.protocol import Signal
from gpuconsole.host.cores import cores
from gpuconsole.model.profile import pass_signals
from gpuconsole.workloads.profiling.window import ProfileError, as_probe, profile_passes
from gpuconsole.workloads.training.loop import TrainingLoop
from gpuconsole.workloads.training.parallel.plan import local_part
from gpuconsole.workloads.training.probes.communication import exchange_sizes, exposed_communication
from gpuconsole.workloads.training.probes.gpu import GPU_PROBES
from gpuconsole.workloads.training.probes.loader import loader_alone, script_lines
from gpuconsole.workloads.training.probes.memory import heap_peaks, memory_parts
from gpuconsole.workloads.training.probes.swaps import speedup, swap_layout, swap_precision
from gpuconsole.workloads.training.settings import make_optimizer

PROFILED_PASSES = 2


def side_work_off(loop: TrainingLoop) -> Signals:
    """P3: ordinary steps without logging, checkpoints and evaluation. The difference from other
    steps is the cost of these three."""
    loop.breakdown.restart()
    times: list[float] = []

    def steps() -> None:
        for _ in rounds(loop, 1.0, 4, 50):
            with stopwatch(loop) as measured:
                loop.step()
            times.extend(measured)

    loop.without_side_work(steps)
    return {
        "probe.step_no_side_work_s": Signal(
            statistics.median(times), "s", f"probe P3, median of {len(times)} steps"
        )
    }


def op_mix(loop: TrainingLoop) -> Signals:
    """Forward and backward under the profiler: the share of each class of kernels, and the mean
    size of a kernel."""
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
    return as_probe(
        pass_signals(
            report, f"torch.profiler, {PROFILED_PASSES} forward and backward passes", "pass"
        )
    )


def held_out_loss(loop: TrainingLoop) -> Signals:
    """The loss of the held-out batches under the present knobs. A change of numerics must not make
    it worse."""
    with untouched(loop), torch.no_grad():
        losses = [loop.forward(batch).item() for batch in loop.eval_batches()]
    mean, source = statistics.fmean(losses), f"mean over {len(losses)} held-out batches"
    if not math.isfinite(mean):  # JSON has no number for it
        return {"quality.held_out_loss_not_finite": Signal(1.0, "", source)}
    return {"quality.held_out_loss": Signal(mean, "", source)}


# --- probe P5: a pass with another value of one knob, and an optimizer step in another
# implementation ---


def swap_attention(loop: TrainingLoop) -> Signals:
    """A pass with the plain formula compared with a pass with the fused kernel."""
    if loop.knobs.get("attention") != "math":
        raise ProbeError("attention is not the plain formula")
    return speedup(loop, {"attention": "sdpa"}, "attention_sdpa")


def swap_threads(loop: TrainingLoop) -> Signals:
    """A pass with the present threads compared with a pass on all cores that the loader's workers
    leave.

    By the wall clock: waiting for a core counts.
    """
    present = torch.get_num_threads()
    tried = cores() - int(loop.knobs.get("num_workers", 0))
    if loop.device.type != "cpu" or loop.plan.world.size > 1 or tried <= present:
        raise ProbeError(f"no core is idle: {present} of {cores()} compute")
    source = "the cores of this process, less the loader's workers"
    return {"probe.threads_tried": Signal(float(tried), "threads", source)} | speedup(
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
    parts = [
        local_part(parameter) for group in optimizer.param_groups for parameter in group["params"]
    ]
    copies = [torch.nn.Parameter(part.detach().clone()) for part in parts]
    for copy in copies:
        copy.grad = torch.full_like(copy, 1e-3)  # the cost of Adam does not depend on the values
    present, fused = (make_optimizer(copies, name).step for name in (optim, "adamw_fused"))
    signals = optimizer_steps_in_turn(loop, present, fused)
    # six times the parameters: otherwise this memory would count as reserved by the job
    del copies, copy
    loop.release_cached_memory()
    return signals


# --- all probes -----------------------------------------------------------------------------------

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
