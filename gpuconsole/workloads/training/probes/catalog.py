"""Short experiments on a running job, free of side effects: weights, optimizer, buffers and random state stay as they were.

Each probe is a function from the loop to signals.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable
from typing import NamedTuple

import torch

from gpuconsole.agent.clock import ThreadTimes, now, process_cpu_s
from gpuconsole.agent.memory_stats import allocator_name
from gpuconsole.model.finding import Signal
from gpuconsole.model.knobs.catalogue import Knobs, describe_changes
from gpuconsole.model.profile import BYTES_NOTE, OP_CLASSES
from gpuconsole.workloads.profiling.recorder import ProfileError, profile_passes
from gpuconsole.workloads.training.input.loader import LoaderStream, waits_for_messages
from gpuconsole.workloads.training.loop import memory
from gpuconsole.workloads.training.loop.loop import TrainingLoop
from gpuconsole.workloads.training.probes.communication import exchange_sizes, exposed_communication
from gpuconsole.workloads.training.probes.fragmentation import heap_peaks
from gpuconsole.workloads.training.probes.gpu_probes import GPU_PROBES
from gpuconsole.workloads.training.probes.measure import (
    ProbeError,
    Signals,
    half_width,
    resident_batch,
    rounds,
    stopwatch,
    timed_pass,
    untouched,
)
from gpuconsole.workloads.training.probes.stacks import script_lines
from gpuconsole.workloads.training.probes.swaps import swap_attention, swap_layout, swap_optim, swap_precision, swap_threads

BUDGET_S = 1.8
PROFILED_PASSES = 2


def cached_batch(loop: TrainingLoop) -> Signals:
    """P1: forward and backward on a batch that is already there: what a step costs without input."""
    batch = resident_batch(loop)
    times: list[float] = []
    with untouched(loop):
        timed_pass(loop, batch)
        for _ in rounds(loop, 0.8, 3, 30):
            times.append(timed_pass(loop, batch))
    passes = int(loop.knobs["gradient_accumulation_steps"])
    return {"probe.cached_pass_s": Signal(statistics.median(times) * passes, "s", f"probe P1, median of {len(times)}")}


def batch_elasticity(loop: TrainingLoop) -> Signals:
    """P2: one forward and backward pass at 1x, 2x and 4x the batch, interleaved, until the budget is used."""
    batch = resident_batch(loop)
    if loop.knobs["torch_compile"] != "off":  # tens of seconds, minutes on a GPU; and the job may run on the new kernels from then on
        raise ProbeError("the model is compiled, and other batch sizes would have it compiled anew")
    batches = {factor: tuple(torch.cat([tensor] * factor) for tensor in batch) for factor in (1, 2, 4)}
    if loop.task.sizes(batches[2])[0] == loop.task.sizes(batch)[0]:
        raise ProbeError("a sample of this workload is no row of a batch")
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
    """P3: ordinary steps without logging, checkpoints and evaluation: exactly what those cost."""
    loop.account.restart()
    times: list[float] = []

    def steps() -> None:
        for _ in rounds(loop, 1.0, 4, 50):
            with stopwatch(loop) as measured:
                loop.step()
            times.extend(measured)

    loop.without_side_work(steps)
    return {"probe.step_no_side_work_s": Signal(statistics.median(times), "s", f"probe P3, median of {len(times)} steps")}


SLEEPS = 0.5
"""As the rule has it: loading processes on a core for less than half of their time wait for storage."""
LONGEST = 4
"""Times its budget a drain may take, and as much before it, of a loader whose batches come slowly and in bursts."""


def loader_alone(loop: TrainingLoop) -> Signals:
    """P6: the loader with nothing behind it, at the present number of workers, and whether it computes or sleeps.

    Then with one worker more, or, where it sleeps, with so many more that the storage itself is the limit, if it is; where the training process
    gets samples one by one, also with batches made in the workers.
    """
    if "num_workers" not in loop.knobs:
        raise ProbeError("this workload has no DataLoader")
    present = int(loop.knobs["num_workers"])
    first = _drain(loop, loop.knobs)
    more = 4 if first.cpu_ratio < SLEEPS else 1
    ways: dict[str, Knobs] = {f"loader_plus_{more}": {"num_workers": present + more}}
    if present and loop.knobs["collate_fn"] == "list":
        ways["loader_stacked"] = {"collate_fn": "stack"}
    drained, failed = {"loader": first}, ""
    for label, way in ways.items():
        try:
            drained[label] = _drain(loop, {**loop.knobs, **way})
        except (OSError, RuntimeError) as error:  # shared memory or descriptors do not suffice for more: what is known by then counts
            failed = f"; {describe_changes(way, loop.knobs)} failed: {error}"
            break
    signals: Signals = {}
    for label, found in drained.items():
        source = f"probe P6, {found.batches} batches, {found.workers} workers{failed}"
        signals[f"probe.{label}_samples_per_s"] = Signal(found.samples_per_s, "samples/s", source)
        signals[f"probe.{label}_cpu_ratio"] = Signal(
            found.cpu_ratio, "ratio", source + ": CPU time of the loading processes over their time"
        )
    if present:
        source = f"probe P6, {first.batches} batches: time that the receiving process does not wait for a message, but unpacks one"
        signals["probe.loader_receive_ratio"] = Signal(first.receive_ratio, "ratio", source)
    return signals


class Drained(NamedTuple):
    """What a loader gives when nothing is behind it. `cpu_ratio`: of the loading processes' time outside of run queues."""

    workers: int
    samples_per_s: float
    cpu_ratio: float
    receive_ratio: float
    batches: int


def _drain(loop: TrainingLoop, knobs: Knobs, budget_s: float = 0.8) -> Drained:
    """A fresh loader with `knobs`, its queue emptied first."""
    workers = int(knobs["num_workers"])
    with waits_for_messages() as waits:
        stream = loop.task.open_stream(knobs)
        assert isinstance(stream, LoaderStream)
        try:
            batch = stream.next()
            start = now()
            for _ in range(workers * int(knobs["prefetch_factor"])):
                if now() - start < LONGEST * budget_s:
                    stream.next()
            usage = LoaderUsage(stream, workers, loop.account.times)
            start, batches = now(), 0
            waits.clear()
            least = 3 * max(1, workers)  # several hand out their batches in bursts
            while batches < 2 or now() - start < budget_s or (batches < least and now() - start < LONGEST * budget_s):
                stream.next()
                batches += 1
                usage.read()
            wall, waited = now() - start, sum(waits)
        finally:
            stream.close()
    busy, queued = usage.seconds()
    present = max(1e-9, wall * max(1, workers) - queued)
    return Drained(workers, batches * len(batch[0]) / wall, min(1.0, busy / present), max(0.0, 1 - waited / wall), batches)


class LoaderUsage:
    """CPU and run-queue seconds of a loader's processes from now on; of this thread where the loader has no processes.

    The end of an epoch may replace the processes. So they are read after each batch, and the last reading of a process that has ended counts.
    """

    def __init__(self, stream: LoaderStream, workers: int, times: ThreadTimes) -> None:
        self._stream, self._workers, self._times = stream, workers, times
        self._last: dict[int, tuple[float, float]] = {}
        self.read()
        self._first = dict(self._last)

    def read(self) -> None:
        if not self._workers:
            self._last[0] = (self._times.cpu_s(), self._times.runq_s())
            return
        for pid in self._stream.worker_pids():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended since
                self._last[pid] = process_cpu_s(pid)

    def seconds(self) -> tuple[float, float]:
        """CPU and run-queue seconds between the construction and the last reading."""
        first = [self._first.get(pid, (0.0, 0.0)) for pid in self._last]  # a process that began later began at 0
        return (
            sum(cpu for cpu, _ in self._last.values()) - sum(cpu for cpu, _ in first),
            sum(queued for _, queued in self._last.values()) - sum(queued for _, queued in first),
        )


def op_mix(loop: TrainingLoop) -> Signals:
    """Forward and backward under the profiler: the share of each class of kernels, and how large kernels are."""
    batch = resident_batch(loop)

    def one_pass() -> None:
        loop.forward(batch).backward()
        loop.optimizer.zero_grad(set_to_none=True)

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


def memory_parts(loop: TrainingLoop) -> Signals:
    """Where this process's device memory goes, and how much there is. Activations: what one forward pass saves for its backward."""
    batch = resident_batch(loop)
    model, device = loop.task.model, loop.device
    figures = memory.allocator_figures(device)  # of the job itself, before this probe adds to them
    with untouched(loop):
        loss, activations = memory.saved_bytes(lambda: loop.forward(batch), [*batch, *model.parameters()])
        loss.backward()
        gradients = memory.held_bytes(parameter.grad for parameter in model.parameters())
    parts = {
        "parameters": (memory.held_bytes(model.parameters()), "this process's part"),
        "gradients": (gradients, "after a backward pass, this process's part"),
        "optimizer": (memory.state_bytes(loop.plan.local(loop.optimizer)), "optimizer state, this process's part"),
        "activations": (activations, "saved_tensors_hooks on one forward pass, each storage once, without parameters and batch"),
        "limit": (memory.limit_bytes(device, loop.knobs), "memory_limit_mb" if loop.knobs["memory_limit_mb"] else "the device's memory"),
    }
    signals = {f"memory.{name}_bytes": Signal(value, "B", source) for name, (value, source) in parts.items()}
    for name, value in figures.items():
        signals[name] = Signal(value, "B" if name.endswith("_bytes") else "", allocator_name(device))
    return signals


def held_out_loss(loop: TrainingLoop) -> Signals:
    """The loss of the held-out batches as the job computes it now: what a change of numerics must not make worse."""
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
