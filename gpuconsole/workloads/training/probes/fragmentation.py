"""How much memory is reserved and how much of it is used when a job's memory is fullest: the difference is lost to fragments."""

from __future__ import annotations

from gpuconsole.agent.memory_stats import allocator_name, watched_heap_peaks
from gpuconsole.model.finding import Signal
from gpuconsole.workloads.training.loop.loop import TrainingLoop
from gpuconsole.workloads.training.probes.measure import ProbeError, Signals, rounds, untouched

BUDGET_S = 1.5
LEAST, MOST = 3, 12
"""Passes: batches differ, and memory is at its fullest in the longest."""


def heap_peaks(loop: TrainingLoop) -> Signals:
    """Forward and backward on fresh batches, asking the C library all the while. CUDA's allocator keeps peaks by itself."""
    if loop.device.type != "cpu":
        raise ProbeError("CUDA's allocator tells its peaks without a probe")
    stream = loop.task.open_stream(loop.knobs)
    try:
        with untouched(loop), watched_heap_peaks() as peaks:
            for _ in rounds(loop, BUDGET_S, LEAST, MOST):
                loop.forward(stream.next()).backward()
                loop.optimizer.zero_grad(set_to_none=True)
    finally:
        stream.close()
    if not peaks:
        raise ProbeError("the C library does not tell what its heap holds (glibc 2.33 or newer does)")
    return {
        f"memory.{name}": Signal(value, "B", f"{allocator_name(loop.device)}, the most in a few passes") for name, value in peaks.items()
    }
