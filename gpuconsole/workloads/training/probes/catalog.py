"""All probes: short experiments on a running job. Weights, optimizer, buffers, random state and the workload's own state stay as they were.

Each probe is a function from the loop to signals. It raises ProbeError where it does not apply.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial

import torch

from gpuconsole.agent.loop import Probe, Signals
from gpuconsole.agent.probes import ProbeError, half_width, resident_batch, rounds, stopwatch, timed_pass, untouched
from gpuconsole.model.finding import Signal
from gpuconsole.model.profile import BYTES_NOTE, OP_CLASSES
from gpuconsole.workloads.profiling.window import ProfileError, profile_passes
from gpuconsole.workloads.training.loop.loop import TrainingLoop
from gpuconsole.workloads.training.probes.communication import exchange_sizes, exposed_communication
from gpuconsole.workloads.training.probes.gpu import GPU_PROBES
from gpuconsole.workloads.training.probes.loader import loader_alone, script_lines
from gpuconsole.workloads.training.probes.memory import heap_peaks, memory_parts
from gpuconsole.workloads.training.probes.swaps import swap_attention, swap_layout, swap_optim, swap_precision, swap_threads

BUDGET_S = 1.8
PROFILED_PASSES = 2


def cached_batch(loop: TrainingLoop) -> Signals:
    """P1: forward and backward on a batch that is already on the device: the cost of a step without input."""
    batch = resident_batch(loop)
    times: list[float] = []
    with untouched(loop):
        timed_pass(loop, batch)
        for _ in rounds(loop, 0.8, 3, 30):
            times.append(timed_pass(loop, batch))
    passes = int(loop.knobs["gradient_accumulation_steps"])
    return {"probe.cached_pass_s": Signal(statistics.median(times) * passes, "s", f"probe P1, median of {len(times)}")}


def batch_elasticity(loop: TrainingLoop) -> Signals:
    """P2: one forward and backward pass at 1x, 2x and 4x the batch, in turn, until the budget is used."""
    batch = resident_batch(loop)
    if loop.knobs["torch_compile"] != "off":  # tens of seconds, on a GPU minutes; and later steps may run on the new kernels
        raise ProbeError("the model is compiled, and other batch sizes would compile it again")
    batches = {factor: tuple(torch.cat([tensor] * factor) for tensor in batch) for factor in (1, 2, 4)}
    if loop.task.sizes(batches[2])[0] == loop.task.sizes(batch)[0]:
        raise ProbeError("a sample of this workload is not a row of a batch")
    times: dict[int, list[float]] = {factor: [] for factor in batches}
    largest = 4
    with untouched(loop):
        timed_pass(loop, batch)
        for _ in rounds(loop, BUDGET_S, 2, 25):
            for factor in list(batches):
                try:
                    times[factor].append(timed_pass(loop, batches[factor]))
                except torch.OutOfMemoryError:
                    loop.release_cached_memory()
                    largest = min(largest, factor // 2)
                    batches = {known: value for known, value in batches.items() if known < factor}
                    break
    if largest < 2:
        raise ProbeError("twice the batch does not fit into memory")
    n = len(times[1])
    signals = {
        f"probe.pass_{factor}x_s": Signal(statistics.median(times[factor]), "s", f"probe P2, median of {len(times[factor])}")
        for factor in batches
    }
    spread = [times[largest][i] / (largest * times[1][i]) for i in range(min(n, len(times[largest])))]
    source = f"probe P2: t({largest}b) / {largest} t(b), n={len(spread)}"
    signals["probe.batch_cost_ratio"] = Signal(statistics.median(spread), "ratio", source)
    signals["probe.batch_cost_spread"] = Signal(half_width(spread), "ratio", "probe P2: 2 standard errors of that median")
    signals["probe.batch_factor"] = Signal(largest, "x", "probe P2: largest factor that fits")
    return signals


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
    batch = resident_batch(loop)

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
    found = {one.name: one for one in report.classes}
    signals = {f"profile.{name}_ratio": Signal(found[name].share_ratio if name in found else 0.0, "ratio", source) for name in OP_CLASSES}
    elementwise = found.get("elementwise")
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
