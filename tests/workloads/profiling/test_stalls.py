"""Gaps that begin with a synchronisation's return, and gaps that do not."""

from __future__ import annotations

import pytest

from gpuconsole.workloads.profiling.trace import TraceError, TraceEvent, stalls


def event(cat: str, ts: float, dur: float, name: str = "k", tid: int = 1) -> TraceEvent:
    return TraceEvent("X", name, cat, ts, dur, tid)


def test_a_gap_belongs_to_the_synchronisation_that_returned_as_it_began() -> None:
    found = stalls(
        [
            event("kernel", 0, 1000, tid=7),
            event("kernel", 1400, 600, tid=7),  # 400 µs after a synchronisation's return
            event("kernel", 2100, 900, tid=7),  # 100 µs because launching is slow
            event("kernel", 2500, 300, tid=20),  # beside the other, on a stream of its own
            event("cpu_op", 100, 950, "aten::to"),
            event("cpu_op", 200, 820, "aten::item"),
            event("cuda_runtime", 210, 800, "cudaStreamSynchronize"),
            event("cuda_runtime", 1300, 5, "cudaLaunchKernel"),
            event("cuda_runtime", 2600, 500, "cudaDeviceSynchronize"),  # ends the window
        ]
    )
    assert found.after_sync_s == pytest.approx(400e-6)
    assert found.gaps_s == pytest.approx(500e-6)
    assert found.busy_s == pytest.approx(2500e-6)
    assert (found.syncs, found.where) == (1, "aten::item")


def test_a_synchronisation_that_the_gpu_did_not_notice_costs_nothing() -> None:
    found = stalls(
        [
            event("kernel", 0, 1000),
            event("kernel", 1000, 1000),
            event("cuda_runtime", 300, 200, "cudaEventSynchronize"),
        ]
    )
    assert (found.after_sync_s, found.gaps_s, found.syncs) == (0.0, 0.0, 1)


def test_a_trace_without_kernels_says_nothing() -> None:
    with pytest.raises(TraceError):
        stalls([event("cpu_op", 0, 10)])
