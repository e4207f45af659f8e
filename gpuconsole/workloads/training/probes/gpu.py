"""Probes that need a GPU: the cost of launches (P9), of synchronisations (P4), and of copying a batch (P10)."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

from gpuconsole.agent.clock import now
from gpuconsole.agent.loop import Signals
from gpuconsole.agent.probes import ProbeError, rounds, stopwatch, synchronize, untouched
from gpuconsole.agent.protocol import Signal
from gpuconsole.workloads.profiling.trace import TraceError, read_trace, stalls
from gpuconsole.workloads.profiling.window import Recorder
from gpuconsole.workloads.training.loop import TrainingLoop

BUDGET_S = 1.0
PROFILED_STEPS = 3
CYCLES_PER_S = 3e9
"""No SM has a higher clock, so a wait of that many cycles a second never ends early."""
LONGEST_WAIT_S = 0.5
LINK_BYTES = 64 * 2**20


def _needs_gpu(loop: TrainingLoop) -> None:
    if loop.device.type != "cuda":
        raise ProbeError("no GPU: nothing is launched or copied to one")


def launch(loop: TrainingLoop) -> Signals:
    """P9: the host's time to issue a forward and backward pass, the time of the pass, and the GPU's time when all work is issued beforehand.

    A full launch queue makes the host wait for the GPU. Then the second and the third figure are alike, and no rule fires.
    """
    _needs_gpu(loop)
    batch = loop.batch
    issue: list[float] = []
    whole: list[float] = []
    alone: list[float] = []

    def one_pass() -> None:
        with loop.silence():
            loop.forward(batch).backward()
        loop.drop_gradients()

    with untouched(loop):
        one_pass()
        for _ in rounds(loop, BUDGET_S, 3, 30):
            with stopwatch(loop) as times:
                start, runq = now(), loop.account.times.runq_s()
                one_pass()
                issue.append(max(1e-9, now() - start - (loop.account.times.runq_s() - runq)))
            whole += times
        wait_s = min(LONGEST_WAIT_S, 1.5 * statistics.median(issue))
        for _ in rounds(loop, BUDGET_S, 3, 30):
            alone.append(_behind_a_wait(loop, one_pass, wait_s))
    source = f"probe P9, median of {len(whole)} passes"
    return {
        "probe.issue_s": Signal(statistics.median(issue), "s", f"{source}: until the host has issued all of it"),
        "probe.pass_s": Signal(statistics.median(whole), "s", source),
        "probe.pass_gpu_s": Signal(statistics.median(alone), "s", f"probe P9, median of {len(alone)}: on the GPU, all issued beforehand"),
    }


def _behind_a_wait(loop: TrainingLoop, run: Callable[[], None], wait_s: float) -> float:
    """GPU seconds of the work that `run` issues while a waiting kernel occupies the stream."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    synchronize(loop)
    torch.cuda._sleep(int(wait_s * CYCLES_PER_S))
    begin.record()
    run()
    end.record()
    synchronize(loop)
    return float(begin.elapsed_time(end)) * 1e-3


def sync_gaps(loop: TrainingLoop) -> Signals:
    """P4: ordinary steps under the profiler: idle time of the GPU, and the part of it that begins when a synchronisation returns."""
    _needs_gpu(loop)
    _ = loop.batch  # raises ProbeError before the first step
    path = loop.scratch / "steps.json"
    synchronize(loop)
    recorder = Recorder(loop.device, path)
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
    source = f"probe P4, {PROFILED_STEPS} steps under torch.profiler, per step"
    where = f", mostly in {stalled.where}" if stalled.where else ""
    return {
        "probe.sync_gaps_s": Signal(
            stalled.after_sync_s / PROFILED_STEPS, "s", f"{source}: gaps that begin with a synchronisation's return{where}"
        ),
        "probe.gaps_s": Signal(stalled.gaps_s / PROFILED_STEPS, "s", f"{source}: no kernel and no copy runs"),
        "probe.busy_s": Signal(stalled.busy_s / PROFILED_STEPS, "s", f"{source}: a kernel or a copy runs"),
        "probe.syncs_per_step": Signal(stalled.syncs / PROFILED_STEPS, "", source),
    }


def _steps(loop: TrainingLoop) -> None:
    for _ in range(PROFILED_STEPS):
        loop.step()


def h2d_copies(loop: TrainingLoop) -> Signals:
    """P10: copies of the present batch from pageable and from pinned memory, in turn, and the link's bandwidth from a large pinned copy."""
    _needs_gpu(loop)
    pageable = [tensor.to("cpu") for tensor in loop.batch]
    sources = {"pageable": pageable, "pinned": [tensor.pin_memory() for tensor in pageable]}
    large = _pinned(LINK_BYTES)
    target = torch.empty(LINK_BYTES, dtype=torch.uint8, device=loop.device)
    times: dict[str, list[float]] = {name: [] for name in (*sources, "large")}
    for index in rounds(loop, BUDGET_S, 4, 50):
        measured: dict[str, list[float]] = {}
        for name, tensors in sources.items():
            with stopwatch(loop) as measured[name]:
                copies = [tensor.to(loop.device, non_blocking=name == "pinned") for tensor in tensors]
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
            statistics.median(times[name]), "s", f"{source}: the batch of {size / 1e6:.1f} MB, from {name} memory"
        )
        for name in sources
    }
    rate = LINK_BYTES / statistics.median(times["large"])
    return signals | {"probe.h2d_bytes_per_s": Signal(rate, "B/s", f"{source}: {LINK_BYTES >> 20} MiB from pinned memory")}


def _pinned(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


GPU_PROBES: dict[str, Callable[[TrainingLoop], Signals]] = {"launch": launch, "sync_gaps": sync_gaps, "h2d_copies": h2d_copies}
