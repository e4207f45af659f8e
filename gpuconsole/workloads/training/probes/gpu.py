"""Probes that need a GPU: the cost of synchronisations (P4), and of copying a batch (P10). The cost
of launches (P9) is in `agent.probes`."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

from gpuconsole.agent.loop import Signals
from gpuconsole.agent.probes import ProbeError, launch, needs_gpu, rounds, stopwatch, synchronize
from gpuconsole.agent.protocol import Signal
from gpuconsole.model.profile import stall_signals
from gpuconsole.workloads.profiling.trace import TraceError, read_trace, stalls
from gpuconsole.workloads.profiling.window import ProfileRecorder, as_probe
from gpuconsole.workloads.training.loop import TrainingLoop

BUDGET_S = 1.0
PROFILED_STEPS = 3
LINK_BYTES = 64 * 2**20


def sync_gaps(loop: TrainingLoop) -> Signals:
    """P4: ordinary steps under the profiler: idle time of the GPU, and the part of it that begins
    when a synchronisation returns."""
    needs_gpu(loop)
    _ = loop.batch  # raises ProbeError before the first step
    path = loop.scratch / "steps.json"
    synchronize(loop)
    recorder = ProfileRecorder(loop.device, path)
    try:
        loop.without_side_work(lambda: _steps(loop))
        synchronize(loop)
        recorder.stop()
        if recorder.error:
            raise ProbeError(recorder.error)
        stalled = stalls(read_trace(path))
    except TraceError as error:
        raise ProbeError(str(error)) from None
    finally:
        recorder.stop()
        path.unlink(missing_ok=True)
    return as_probe(
        stall_signals(
            stalled, PROFILED_STEPS, f"probe P4, {PROFILED_STEPS} steps under torch.profiler"
        )
    )


def _steps(loop: TrainingLoop) -> None:
    for _ in range(PROFILED_STEPS):
        loop.step()


def h2d_copies(loop: TrainingLoop) -> Signals:
    """P10: copies of the present batch from pageable and from pinned memory, in turn, and the
    link's bandwidth from a large pinned copy."""
    needs_gpu(loop)
    pageable = [tensor.to("cpu") for tensor in loop.batch]
    sources = {"pageable": pageable, "pinned": [tensor.pin_memory() for tensor in pageable]}
    large = _pinned(LINK_BYTES)
    target = torch.empty(LINK_BYTES, dtype=torch.uint8, device=loop.device)
    times: dict[str, list[float]] = {name: [] for name in (*sources, "large")}
    for index in rounds(loop, BUDGET_S, 4, 50):
        measured: dict[str, list[float]] = {}
        for name, tensors in sources.items():
            with stopwatch(loop) as measured[name]:
                copies = [
                    tensor.to(loop.device, non_blocking=name == "pinned") for tensor in tensors
                ]
            del copies
        with stopwatch(loop) as measured["large"]:
            target.copy_(large, non_blocking=True)
        if index:  # the first allocates
            for name, seconds in measured.items():
                times[name] += seconds
    size = sum(tensor.numel() * tensor.element_size() for tensor in pageable)
    source = f"probe P10, median of {len(times['large'])}"
    signals = {
        f"probe.h2d_{name}_s": Signal(
            statistics.median(times[name]),
            "s",
            f"{source}: the batch of {size / 1e6:.1f} MB, from {name} memory",
        )
        for name in sources
    }
    rate = LINK_BYTES / statistics.median(times["large"])
    return signals | {
        "probe.h2d_bytes_per_s": Signal(
            rate, "B/s", f"{source}: {LINK_BYTES >> 20} MiB from pinned memory"
        )
    }


def _pinned(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


GPU_PROBES: dict[str, Callable[[TrainingLoop], Signals]] = {
    "launch": launch,
    "sync_gaps": sync_gaps,
    "h2d_copies": h2d_copies,
}
