"""Gaps in the work of a GPU after a synchronisation, from a trace. This module does not import torch."""

from __future__ import annotations

from typing import NamedTuple

from gpuconsole.workloads.profiling import trace
from gpuconsole.workloads.profiling.trace import TraceError, TraceEvent

RUNTIME = ("cuda_runtime", "cuda_driver")
NEAR_US = 50.0
"""Maximum time between the end of the last kernel and the return of the synchronisation."""
NAMED = 20
"""Number of longest gaps for which the operator is looked up."""


class Stalls(NamedTuple):
    """Seconds over the whole trace; `syncs` is a count. `where`: the operator with the most gap time; empty where unknown."""

    busy_s: float
    gaps_s: float
    after_sync_s: float
    syncs: int
    where: str


def stalls(events: list[TraceEvent]) -> Stalls:
    """The gaps from the first kernel or copy to the last. Raises TraceError."""
    work = sorted((event.ts, event.end) for event in events if event.cat in trace.ON_GPU)
    if not work:
        raise TraceError("the trace holds no GPU kernel")
    syncs = [event for event in events if event.cat in RUNTIME and ("Synchronize" in event.name or event.name == "cudaMemcpy")]
    last = max(end for _, end in work)
    within = [sync for sync in syncs if work[0][0] < sync.end < last]  # the synchronisation that ends the window belongs to no step
    gaps: list[tuple[float, float]] = []
    reached = work[0][1]
    for start, end in work:
        if start > reached:
            gaps.append((reached, start))
        reached = max(reached, end)
    blamed = [(end - start, sync) for start, end in gaps if (sync := _nearest(within, start)) is not None]
    idle = sum(end - start for start, end in gaps)
    return Stalls(
        busy_s=(last - work[0][0] - idle) * 1e-6,
        gaps_s=idle * 1e-6,
        after_sync_s=sum(length for length, _ in blamed) * 1e-6,
        syncs=len(within),
        where=_where(sorted(blamed, key=lambda one: -one[0])[:NAMED], events),
    )


def _nearest(syncs: list[TraceEvent], t: float) -> TraceEvent | None:
    """The synchronisation that returned within NEAR_US of `t`."""
    return min((sync for sync in syncs if abs(sync.end - t) <= NEAR_US), key=lambda sync: abs(sync.end - t), default=None)


def _where(blamed: list[tuple[float, TraceEvent]], events: list[TraceEvent]) -> str:
    """The innermost operator around the synchronisations with the most time."""
    lost: dict[str, float] = {}
    ops = [event for event in events if event.cat == trace.OP]
    for length, sync in blamed:
        around = [op for op in ops if op.tid == sync.tid and op.ts <= sync.ts and op.end >= sync.end]
        if around:
            name = min(around, key=lambda op: op.dur).name
            lost[name] = lost.get(name, 0.0) + length
    return max(lost, key=lambda name: lost[name]) if lost else ""
